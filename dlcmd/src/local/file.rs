//! A file of this machine, opened to be put.
//!
//! Must hold: what is read is the file as it was when it was opened, all of it, or an error; a
//! file that changes meanwhile never passes as whole, nor one that holds more or less than it says.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Seek};

use dl_format::Attributes;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Stat, fstat};

use super::nanos;

/// An open regular file, read once from its beginning to its end.
#[derive(Debug)]
pub(crate) struct OpenFile {
    file: File,
    /// What the kernel said of it when it was opened.
    said: u64,
    /// Bytes that are read of it.
    size: u64,
    attributes: Attributes,
    /// Bytes not yet read.
    left: u64,
    failed: Option<Trouble>,
}

/// Why a file could not be read to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Somebody wrote to it meanwhile.
    Changed,
    /// Nobody did, and it has another size than it says.
    Size,
    /// The kernel says so.
    Io(io::ErrorKind),
}

impl OpenFile {
    /// What `descriptor` is open for, or the type that it has instead of a regular file.
    pub(crate) fn new(descriptor: OwnedFd) -> io::Result<Result<Self, FileType>> {
        let stat = fstat(&descriptor)?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind != FileType::RegularFile {
            return Ok(Err(kind));
        }
        let size = size(&stat);
        let mut file = Self {
            file: File::from(descriptor),
            said: size,
            size,
            attributes: attributes(&stat),
            left: size,
            failed: None,
        };
        // What the kernel makes up when it is read says so, and is not empty.
        if size == 0 && !file.is_at_end()? {
            file.measure()?;
        }
        Ok(Ok(file))
    }

    /// Takes for its size what can be read of it: the size that it says is wrong.
    pub(crate) fn measure(&mut self) -> io::Result<()> {
        self.file.rewind()?;
        self.size = io::copy(&mut self.file, &mut io::sink())?;
        (self.left, self.failed) = (self.size, None);
        self.file.rewind()
    }

    /// Bytes of the file.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Its permission bits and modification time.
    pub(crate) fn attributes(&self) -> Attributes {
        self.attributes
    }

    /// Why reading failed, if it did.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
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
        let trouble = if self.has_changed()? {
            Trouble::Changed
        } else if read == 0 || !self.is_at_end()? {
            Trouble::Size
        } else {
            return Ok(read);
        };
        self.failed = Some(trouble);
        Err(io::Error::other(trouble))
    }

    fn has_changed(&self) -> io::Result<bool> {
        let stat = fstat(&self.file)?;
        Ok(size(&stat) != self.said || attributes(&stat).mtime != self.attributes.mtime)
    }

    /// Whether nothing more can be read, whatever the kernel says of its size.
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
            self.failed = self.failed.or(Some(Trouble::Io(error.kind())));
        }
        read
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Changed => f.write_str("it changes while it is read"),
            Self::Size => f.write_str("it has another size each time it is read"),
            Self::Io(kind) => kind.fmt(f),
        }
    }
}

impl std::error::Error for Trouble {}

/// Bytes, of what the kernel says of a file.
pub(super) fn size(stat: &Stat) -> u64 {
    u64::try_from(stat.st_size).unwrap_or(0)
}

/// Permission bits and modification time, of what the kernel says of a file.
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
    fn a_file_that_grows_shrinks_or_is_touched_while_read_is_not_passed_as_whole() {
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
            assert_eq!(open.trouble(), Some(Trouble::Changed));
        }
    }

    #[test]
    fn a_file_that_has_another_size_than_it_says_is_not_passed_as_whole_until_it_is_measured() {
        let mut file = NamedTempFile::new().expect("a temporary file");
        file.write_all(b"12345678").expect("written");
        for said in [3, 20] {
            let mut open = opened(&file);
            (open.size, open.left) = (said, said);
            assert!(open.read_to_end(&mut Vec::new()).is_err());
            assert_eq!(open.trouble(), Some(Trouble::Size));
            open.measure().expect("readable");
            let mut read = Vec::new();
            assert_eq!(open.read_to_end(&mut read).expect("readable"), 8);
            assert_eq!((read.as_slice(), open.size()), (&b"12345678"[..], 8));
        }
    }

    #[test]
    fn a_file_that_says_0_and_has_bytes_has_the_size_of_these() {
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
        assert_eq!((read.as_slice(), open.size(), open.trouble()), (&b"12345678"[..], 8, None));
    }
}
