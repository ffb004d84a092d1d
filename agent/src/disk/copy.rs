//! A copy of a chunk in a file, past the page cache.
//!
//! Must hold: bytes stand at their offsets in the chunk's object. A file is linked under its name only
//! after its last byte was written. Memory for a read or a write belongs to its thread, so a call that
//! hangs holds no slot of the arena.

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
const BLOCK: usize = 4_096;

/// Bytes of a read or a write.
pub(super) const PIECE: usize = 1 << 20;

/// Prefix of a file that is being written where files without a name don't exist.
const UNFINISHED: &str = ".unfinished-";

/// A chunk and the covered part of its object.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    pub(super) fn bytes(&self) -> u64 {
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
            let mut block = Block::new();
            let file = Unfinished::create(&folder, access)?;
            file.file.write_all_at(block.part(BLOCK), 0)?;
            let read = file.file.read_at(block.part(BLOCK), 0)?;
            Ok::<bool, io::Error>(read == BLOCK)
        };
        match attempt(Self::Direct) {
            Ok(true) => Ok(Self::Direct),
            Ok(false) => Ok(Self::Buffered),
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

/// Memory for a piece, aligned.
#[derive(Debug)]
pub(super) struct Block(Vec<u8>);

impl Block {
    pub(super) fn new() -> Self {
        Self(vec![0; PIECE + BLOCK])
    }

    /// The first `length` bytes, at most [`PIECE`].
    pub(super) fn part(&mut self, length: usize) -> &mut [u8] {
        let start = self.0.as_ptr().align_offset(BLOCK).min(BLOCK);
        self.0.get_mut(start..start + length.min(PIECE)).unwrap_or_default()
    }
}

/// An open copy.
#[derive(Debug)]
pub(super) struct CopyFile {
    file: File,
    range: Range<u32>,
    access: Access,
}

impl CopyFile {
    pub(super) fn open(folder: impl AsFd, name: &CopyName, access: Access) -> io::Result<Self> {
        let flags = access.flags() | OFlags::RDONLY;
        let file = File::from(openat(folder, name.file(), flags, Mode::empty())?);
        Ok(Self { file, range: name.range.clone(), access })
    }

    /// The starts of the pieces that cover a part of the object.
    pub(super) fn pieces(span: &Range<u32>) -> impl Iterator<Item = u32> + use<> {
        let (start, end) = (span.start as usize / BLOCK * BLOCK, span.end as usize);
        (start..end).step_by(PIECE).map(|at| at as u32)
    }

    /// Reads the piece at an offset, which ends with the copy at the latest; gives its length.
    pub(super) fn read(&self, at: u32, block: &mut Block) -> io::Result<usize> {
        let length = PIECE.min((self.range.end as usize).saturating_sub(at as usize));
        let buffer = block.part(length.next_multiple_of(BLOCK));
        let mut read = 0;
        while read < length {
            let rest = buffer.get_mut(read..).unwrap_or_default();
            // Interrupted by a signal, a read may end between two blocks.
            match self.file.read_at(rest, u64::from(at) + read as u64)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                some => read += some,
            }
        }
        self.access.forget(&self.file);
        Ok(length)
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
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT) => {
                let name = format!("{UNFINISHED}{:016x}", OsRandom.u64());
                let create = flags | OFlags::CREATE | OFlags::EXCL;
                let file = File::from(openat(&folder, &name, create, mode)?);
                let named = Some((folder.as_fd().try_clone_to_owned()?, name));
                let unfinished = Self { file, access, named };
                // Others remove the file once nobody locks it.
                unfinished.file.lock_shared()?;
                Ok(unfinished)
            }
            Err(why) => Err(why.into()),
        }
    }

    /// Writes the bytes of a part of the object.
    pub(super) fn write(&self, range: &Range<u32>, bytes: &[u8]) -> io::Result<()> {
        let mut block = Block::new();
        for at in CopyFile::pieces(range) {
            let skipped = range.start.saturating_sub(at) as usize;
            let from = at.saturating_sub(range.start) as usize;
            let rest = bytes.get(from..).unwrap_or_default();
            let rest = rest.get(..rest.len().min(PIECE - skipped)).unwrap_or_default();
            let length = (skipped + rest.len()).next_multiple_of(BLOCK);
            let buffer = block.part(length);
            buffer.fill(0);
            let part = buffer.get_mut(skipped..skipped + rest.len()).unwrap_or_default();
            part.copy_from_slice(rest);
            self.file.write_all_at(buffer, at.into())?;
        }
        self.file.set_len(range.end.into())?;
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
