//! A copy of a chunk in a file, past the page cache.
//!
//! Must hold: bytes stand at their offsets in the chunk's object. A file is linked under its name only
//! after its last byte was written.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use dl_format::ChunkId;
use dl_runtime::{OsRandom, Random};
use rustix::fs::{Advice, AtFlags, CWD, Mode, OFlags, fadvise, linkat, openat, unlinkat};
use rustix::io::Errno;

/// Alignment of files, offsets and memory for reads and writes past the page cache.
pub(crate) const BLOCK: u32 = 4_096;

/// Prefix of a file that is being written where files without a name don't exist.
const UNFINISHED: &str = ".unfinished-";

/// A chunk and the covered part of its object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct CopyName {
    pub(crate) chunk: ChunkId,
    pub(crate) range: Range<u32>,
}

impl CopyName {
    /// From the name of a file; none for another file.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (chunk, range) = name.split_once('.')?;
        let (start, end) = range.split_once('-')?;
        let range = start.parse().ok()?..end.parse().ok()?;
        let copy = Self { chunk: chunk.parse().ok()?, range };
        (!copy.range.is_empty() && copy.file() == name).then_some(copy)
    }

    /// The name of the file.
    pub(super) fn file(&self) -> String {
        format!("{}.{}-{}", self.chunk, self.range.start, self.range.end)
    }

    /// Bytes of the copy, as the usage counts them.
    pub(crate) fn bytes(&self) -> u64 {
        self.range.len() as u64
    }
}

/// How the file system serves reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Past the page cache.
    Direct,
    /// Through the page cache, whose pages are given back.
    Buffered,
}

impl Access {
    fn flags(self) -> OFlags {
        match self {
            Self::Direct => OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::DIRECT,
            Self::Buffered => OFlags::CLOEXEC | OFlags::NOFOLLOW,
        }
    }

    /// The access that a folder permits, by a file without a name or contents.
    pub(super) fn of(folder: impl AsFd) -> io::Result<Self> {
        let attempt = |access: Self| {
            let mut memory = vec![0; 2 * BLOCK as usize];
            let start = memory.as_ptr().align_offset(BLOCK as usize).min(BLOCK as usize);
            let block = memory.get_mut(start..start + BLOCK as usize).unwrap_or_default();
            let file = Unfinished::create(&folder, access)?;
            file.file.write_all_at(block, 0)?;
            let read = file.file.read_at(block, 0)?;
            Ok::<bool, io::Error>(read == block.len())
        };
        match attempt(Self::Direct) {
            Ok(true) => Ok(Self::Direct),
            Ok(false) => Ok(Self::Buffered),
            // The copies of a full disk can still be read.
            Err(why) if is_full(&why) => Ok(Self::Direct),
            Err(why) if why.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                attempt(Self::Buffered).map(|_| Self::Buffered)
            }
            Err(why) => Err(why),
        }
    }

    /// Gives pages of a file back to the system.
    fn forget(self, file: &File) {
        if self == Self::Buffered {
            // Advice: without effect the pages leave later.
            let _ = fadvise(file, 0, None, Advice::DontNeed);
        }
    }
}

/// Whether an error says that nothing more fits.
pub(super) fn is_full(why: &io::Error) -> bool {
    let full = [Errno::NOSPC, Errno::DQUOT, Errno::FBIG];
    why.raw_os_error().is_some_and(|code| full.iter().any(|one| one.raw_os_error() == code))
}

/// The blocks with a part of an object.
pub(crate) fn blocks(span: &Range<u32>) -> Range<u32> {
    span.start / BLOCK * BLOCK..span.end.next_multiple_of(BLOCK)
}

/// An open copy.
#[derive(Debug)]
pub(crate) struct CopyFile {
    file: File,
    access: Access,
}

impl CopyFile {
    pub(super) fn open(folder: impl AsFd, name: &CopyName, access: Access) -> io::Result<Self> {
        let flags = access.flags() | OFlags::RDONLY;
        let file = File::from(openat(folder, name.file(), flags, Mode::empty())?);
        Ok(Self { file, access })
    }

    /// Reads whole blocks from an offset on, of which `least` bytes must be there.
    pub(crate) fn read(&self, memory: &mut [u8], offset: u32, least: usize) -> io::Result<()> {
        let mut read = 0;
        while read < least {
            let rest = memory.get_mut(read..).unwrap_or_default();
            // Interrupted by a signal, a read may end between two blocks.
            match self.file.read_at(rest, u64::from(offset) + read as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                some => read += some,
            }
        }
        self.access.forget(&self.file);
        Ok(())
    }
}

/// A copy that is being written.
#[derive(Debug)]
pub(super) struct Unfinished {
    file: File,
    access: Access,
    /// The name, where files without a name don't exist, with its folder.
    named: Option<(OwnedFd, String)>,
}

impl Unfinished {
    pub(super) fn create(folder: impl AsFd, access: Access) -> io::Result<Self> {
        let (flags, mode) = (access.flags() | OFlags::RDWR, Mode::RUSR | Mode::WUSR);
        match openat(&folder, ".", flags | OFlags::TMPFILE, mode) {
            Ok(file) => Ok(Self { file: file.into(), access, named: None }),
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => Self::with_name(folder, access),
            Err(why) => Err(why.into()),
        }
    }

    /// A file with a name of its own, for file systems without unnamed files.
    pub(super) fn with_name(folder: impl AsFd, access: Access) -> io::Result<Self> {
        let name = format!("{UNFINISHED}{:016x}", OsRandom.u64());
        let flags = access.flags() | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let file = File::from(openat(&folder, &name, flags, Mode::RUSR | Mode::WUSR)?);
        let named = Some((folder.as_fd().try_clone_to_owned()?, name));
        let unfinished = Self { file, access, named };
        // Others remove the file once nobody locks it.
        unfinished.file.lock_shared()?;
        Ok(unfinished)
    }

    /// Writes whole blocks from an offset on; the file ends at `end`.
    pub(super) fn write(&self, blocks: &[u8], offset: u32, end: u32) -> io::Result<()> {
        self.file.write_all_at(blocks, offset.into())?;
        self.file.set_len(end.into())?;
        if self.access == Access::Buffered {
            // Pages leave memory only after they were written.
            self.file.sync_data()?;
            self.access.forget(&self.file);
        }
        Ok(())
    }

    /// Links the file under a name; false if there is a file of that name.
    pub(super) fn link(&self, folder: impl AsFd, name: &CopyName) -> io::Result<bool> {
        let linked = match &self.named {
            None => {
                let path = format!("/proc/self/fd/{}", self.file.as_raw_fd());
                linkat(CWD, path, folder, name.file(), AtFlags::SYMLINK_FOLLOW)
            }
            Some((from, file)) => linkat(from, file, folder, name.file(), AtFlags::empty()),
        };
        match linked {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(why) => Err(why.into()),
        }
    }

    /// Removes a file left by a killed writer; anything else stays.
    pub(super) fn clean(folder: impl AsFd, name: &str) {
        if !name.starts_with(UNFINISHED) {
            return;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let Ok(file) = openat(&folder, name, flags, Mode::empty()) else { return };
        if File::from(file).try_lock().is_ok() {
            let _ = unlinkat(&folder, name, AtFlags::empty());
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let Some((folder, name)) = &self.named {
            let _ = unlinkat(folder, name, AtFlags::empty());
        }
    }
}
