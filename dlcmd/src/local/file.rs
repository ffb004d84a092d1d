//! A local file, opened to be put.
//!
//! Must hold: reading returns the whole file in its state at opening, or an error. A file that
//! changes meanwhile never counts as complete, nor a file whose size differs from its metadata.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};

use dl_format::Attributes;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Stat, fstat};

use super::nanos;

/// An open regular file, read once from start to end.
#[derive(Debug)]
pub(crate) struct OpenFile {
    file: File,
    /// The size in the kernel's metadata at opening.
    expected: u64,
    /// The number of bytes to read.
    size: u64,
    attributes: Attributes,
    /// Bytes not yet read.
    left: u64,
    failed: Option<ReadFailure>,
}

/// The reason for an incomplete read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReadFailure {
    /// The file was modified meanwhile.
    Changed,
    /// The file has another size than its metadata, although unmodified.
    Size,
    /// An error of the kernel.
    Io(io::ErrorKind),
}

impl OpenFile {
    /// The file of `descriptor`, or the type of anything but a regular file.
    pub(crate) fn new(descriptor: OwnedFd) -> io::Result<Result<Self, FileType>> {
        let stat = fstat(&descriptor)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::RegularFile {
            return Ok(Err(kind));
        }
        let size = size(&stat);
        let mut file = Self {
            file: File::from(descriptor),
            expected: size,
            size,
            attributes: attributes(&stat),
            left: size,
            failed: None,
        };
        // Generated files of the kernel claim a size of 0, but have bytes.
        if size == 0 && !file.is_at_end()? {
            file.measure()?;
        }
        Ok(Ok(file))
    }

    /// Replaces a wrong size by the number of readable bytes.
    pub(crate) fn measure(&mut self) -> io::Result<()> {
        self.file.rewind()?;
        self.size = io::copy(&mut self.file, &mut io::sink())?;
        (self.left, self.failed) = (self.size, None);
        self.file.rewind()
    }

    /// The number of bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The permission bits and modification time.
    pub(crate) fn attributes(&self) -> Attributes {
        self.attributes
    }

    /// The reason of a failed read.
    pub(crate) fn failure(&self) -> Option<ReadFailure> {
        self.failed
    }

    fn read_on(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = match buffer.get_mut(..most) {
            None | Some([]) => return Ok(0),
            Some(buffer) => self.file.read(buffer)?,
        };
        self.left = self.left.saturating_sub(read as u64);
        if read > 0 && self.left > 0 {
            return Ok(read);
        }
        let failure = if self.has_changed()? {
            ReadFailure::Changed
        } else if read == 0 || !self.is_at_end()? {
            ReadFailure::Size
        } else {
            return Ok(read);
        };
        self.failed = Some(failure);
        Err(io::Error::other(failure))
    }

    fn has_changed(&self) -> io::Result<bool> {
        let stat = fstat(&self.file)?;
        Ok(size(&stat) != self.expected || attributes(&stat).mtime != self.attributes.mtime)
    }

    /// Whether the end is reached, regardless of the size in the metadata.
    fn is_at_end(&mut self) -> io::Result<bool> {
        loop {
            match self.file.read(&mut [0]) {
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                read => return Ok(read? == 0),
            }
        }
    }
}

impl Read for OpenFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.read_on(buffer);
        if let Err(error) = &read
            && error.kind() != io::ErrorKind::Interrupted
        {
            self.failed = self.failed.or(Some(ReadFailure::Io(error.kind())));
        }
        read
    }
}

impl fmt::Display for ReadFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed => f.write_str("it changes while it is read"),
            Self::Size => f.write_str("it has another size each time it is read"),
            Self::Io(kind) => kind.fmt(f),
        }
    }
}

impl std::error::Error for ReadFailure {}

/// The size in a file's metadata.
pub(super) fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Permission bits and modification time in a file's metadata.
pub(super) fn attributes(stat: &Stat) -> Attributes {
    Attributes {
        mode: (stat.st_mode & 0o7777) as u16,
        mtime: nanos(stat.st_mtime, i64::try_from(stat.st_mtime_nsec).unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use tempfile::NamedTempFile;

    use super::*;

    fn opened(file: &NamedTempFile) -> OpenFile {
        let descriptor = file.reopen().expect("it exists").into();
        OpenFile::new(descriptor).expect("it is open").expect("it is regular")
    }

    #[test]
    fn a_file_modified_while_read_fails() {
        let grow = |file: &mut NamedTempFile| file.write_all(b"more");
        let shrink = |file: &mut NamedTempFile| file.as_file().set_len(3);
        let touch = |file: &mut NamedTempFile| {
            file.as_file().set_modified(std::time::SystemTime::UNIX_EPOCH)
        };
        for change in [grow as fn(&mut NamedTempFile) -> io::Result<()>, shrink, touch] {
            let mut file = NamedTempFile::new().expect("a temporary file");
            file.write_all(b"12345678").expect("written");
            let mut open = opened(&file);
            assert_eq!(open.read(&mut [0; 4]).expect("readable"), 4);
            change(&mut file).expect("changed");
            assert!(open.read_to_end(&mut Vec::new()).is_err());
            assert_eq!(open.failure(), Some(ReadFailure::Changed));
        }
    }

    #[test]
    fn a_file_with_a_wrong_size_fails_until_measured() {
        let mut file = NamedTempFile::new().expect("a temporary file");
        file.write_all(b"12345678").expect("written");
        for expected in [3, 20] {
            let mut open = opened(&file);
            (open.size, open.left) = (expected, expected);
            assert!(open.read_to_end(&mut Vec::new()).is_err());
            assert_eq!(open.failure(), Some(ReadFailure::Size));
            open.measure().expect("readable");
            let mut read = Vec::new();
            assert_eq!(open.read_to_end(&mut read).expect("readable"), 8);
            assert_eq!((read.as_slice(), open.size()), (&b"12345678"[..], 8));
        }
    }

    #[test]
    fn a_generated_file_of_size_0_is_measured_at_opening() {
        let contents = std::fs::read("/proc/version").expect("there");
        let file = File::open("/proc/version").expect("there");
        let mut open = OpenFile::new(file.into()).expect("open").expect("regular");
        let mut read = Vec::new();
        open.read_to_end(&mut read).expect("readable");
        assert_eq!((read, open.size()), (contents.clone(), contents.len() as u64));
    }

    #[test]
    fn an_unchanged_file_is_read_in_full_and_ends() {
        let mut file = NamedTempFile::new().expect("a temporary file");
        file.write_all(b"12345678").expect("written");
        let mut open = opened(&file);
        let mut read = Vec::new();
        assert_eq!(open.read_to_end(&mut read).expect("readable"), 8);
        assert_eq!((read.as_slice(), open.size(), open.failure()), (&b"12345678"[..], 8, None));
    }
}
