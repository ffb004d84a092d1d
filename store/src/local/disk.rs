//! The file calls of Linux.
//!
//! Must hold: all calls go through the descriptor of the root, so that renames above the root do not move
//! the store.

use std::fs::{self, DirBuilder};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::{ReadWriteFlags, preadv2, retry_on_intr};

use super::files::{Entry, Errno, Files, Node, Result, State};

/// Mode of the root and of directories made above: a reader of the files needs no key.
const ROOT_MODE: u32 = 0o700;

/// The umask takes permissions away.
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);
const DIR_MODE: Mode = Mode::from_raw_mode(0o777);

/// Bytes of a write call. In a virtual machine that reports free memory to its host, calls of four times
/// as many bytes took nine times as long once the memory had been free for seconds.
const BYTES_PER_WRITE: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Disk {
    root: OwnedFd,
}

impl Disk {
    /// Opens the directory `root`, and makes it durable: an existing directory may come from a process
    /// that ended before the sync. Missing directories are made.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let root = std::path::absolute(root)?;
        let missing: Vec<PathBuf> =
            root.ancestors().take_while(|dir| !dir.exists()).map(Path::to_path_buf).collect();
        for dir in missing.iter().rev() {
            match DirBuilder::new().mode(ROOT_MODE).create(dir) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Ok(()) | Err(_) => {}
            }
            sync_above(dir)?;
        }
        if missing.is_empty() {
            match sync_above(&root) {
                // A process with the same permissions can't have made the directory.
                Err(error) if is_out_of_reach(&error) => {}
                synced => synced?,
            }
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { root: rustix::fs::open(&root, flags, Mode::empty())? })
    }

    fn open_at(&self, path: &str, flags: OFlags) -> Result<OwnedFd> {
        let path = if path.is_empty() { "." } else { path };
        retry_on_intr(|| rustix::fs::openat(&self.root, path, flags | OFlags::CLOEXEC, FILE_MODE))
    }

    fn open_dir(&self, dir: &str) -> Result<OwnedFd> {
        self.open_at(dir, OFlags::RDONLY | OFlags::DIRECTORY)
    }
}

fn sync_above(dir: &Path) -> io::Result<()> {
    dir.parent().map_or(Ok(()), |parent| fs::File::open(parent)?.sync_all())
}

/// Whether a directory is closed to the process, or its file system can't sync directories.
fn is_out_of_reach(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, PermissionDenied, ReadOnlyFilesystem, Unsupported};
    matches!(error.kind(), InvalidInput | PermissionDenied | ReadOnlyFilesystem | Unsupported)
}

fn lock(file: &OwnedFd) -> Result<bool> {
    match retry_on_intr(|| rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(errno) => Err(errno),
    }
}

fn state(stat: Stat) -> State {
    State {
        id: (stat.st_dev, stat.st_ino),
        size: stat.st_size.unsigned_abs(),
        names: usize::try_from(stat.st_nlink).unwrap_or(usize::MAX),
    }
}

impl Files for Disk {
    type File = OwnedFd;

    fn make_dir(&self, dir: &str) -> Result<()> {
        rustix::fs::mkdirat(&self.root, dir, DIR_MODE)
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        let dir = self.open_dir(dir)?;
        retry_on_intr(|| rustix::fs::fsync(&dir))
    }

    fn entries(&self, dir: &str) -> Result<Vec<Entry>> {
        let dir = self.open_dir(dir)?;
        let mut entries = Vec::new();
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let Ok(printed) = name.to_str() else { continue };
            if matches!(printed, "." | "..") {
                continue;
            }
            let node = match rustix::fs::statat(&dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                    FileType::Directory => Node::Dir,
                    FileType::RegularFile => Node::File(stat.st_size.unsigned_abs()),
                    _ => continue,
                },
                // Removed meanwhile.
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(errno),
            };
            entries.push(Entry { name: printed.to_owned(), node });
        }
        Ok(entries)
    }

    fn create_unnamed(&self, dir: &str) -> Result<OwnedFd> {
        self.open_at(dir, OFlags::TMPFILE | OFlags::WRONLY).map_err(|errno| match errno {
            // From file systems and kernels without O_TMPFILE.
            Errno::ISDIR | Errno::INVAL => Errno::OPNOTSUPP,
            errno => errno,
        })
    }

    fn link_unnamed(&self, file: &OwnedFd, to: &str) -> Result<()> {
        // Linking a descriptor itself needs a capability that servers lack; /proc needs none.
        let from = format!("/proc/self/fd/{}", file.as_raw_fd());
        let linked = rustix::fs::linkat(CWD, &*from, &self.root, to, AtFlags::SYMLINK_FOLLOW);
        linked.map_err(|errno| match errno {
            // /proc isn't mounted. Otherwise the directory was removed.
            Errno::NOENT if rustix::fs::statat(CWD, &*from, AtFlags::SYMLINK_NOFOLLOW).is_err() => {
                Errno::OPNOTSUPP
            }
            // The file system links no unnamed files.
            Errno::XDEV | Errno::PERM => Errno::OPNOTSUPP,
            errno => errno,
        })
    }

    fn stage(&self, path: &str) -> Result<Option<OwnedFd>> {
        let file = self.open_at(path, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR)?;
        // Between the two calls a sweeper may have locked the file and removed its name.
        Ok((lock(&file)? && self.state(&file)?.names > 0).then_some(file))
    }

    fn claim(&self, path: &str) -> Result<Option<OwnedFd>> {
        let file = self.open_at(path, OFlags::RDWR)?;
        Ok(lock(&file)?.then_some(file))
    }

    fn link(&self, from: &str, to: &str) -> Result<()> {
        rustix::fs::linkat(&self.root, from, &self.root, to, AtFlags::empty())
    }

    fn remove(&self, path: &str) -> Result<()> {
        rustix::fs::unlinkat(&self.root, path, AtFlags::empty())
    }

    fn remove_dir(&self, dir: &str) -> Result<()> {
        rustix::fs::unlinkat(&self.root, dir, AtFlags::REMOVEDIR)
    }

    fn write(&self, file: &OwnedFd, body: &[u8]) -> Result<()> {
        let mut left = body;
        while !left.is_empty() {
            let (piece, _) = left.split_at(left.len().min(BYTES_PER_WRITE));
            let written = retry_on_intr(|| rustix::io::write(file, piece))?;
            left = left.get(written..).unwrap_or_default();
        }
        Ok(())
    }

    fn sync_file(&self, file: &OwnedFd) -> Result<()> {
        retry_on_intr(|| rustix::fs::fsync(file))
    }

    fn open(&self, path: &str) -> Result<OwnedFd> {
        self.open_at(path, OFlags::RDONLY | OFlags::NOFOLLOW)
    }

    fn state(&self, file: &OwnedFd) -> Result<State> {
        rustix::fs::fstat(file).map(state)
    }

    fn state_at(&self, path: &str) -> Result<State> {
        rustix::fs::statat(&self.root, path, AtFlags::SYMLINK_NOFOLLOW).map(state)
    }

    fn read(&self, file: &OwnedFd, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while let Some(left) = buffer.get_mut(filled..).filter(|left| !left.is_empty()) {
            match retry_on_intr(|| rustix::io::pread(file, &mut *left, offset + filled as u64))? {
                0 => break,
                count => filled += count,
            }
        }
        Ok(filled)
    }

    fn read_cached(&self, file: &OwnedFd, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let buffer = &mut [IoSliceMut::new(buffer)];
        match preadv2(file, buffer, offset, ReadWriteFlags::NOWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            // Older kernels, and file systems that always wait.
            Err(Errno::NOSYS | Errno::INVAL) => Err(Errno::OPNOTSUPP),
            read => read,
        }
    }
}
