//! Snapshots on this machine: a folder that all processes of a user share.
//!
//! Must hold: a file has its name only once all of it is there, checked and durable; of several
//! processes that want one, one fetches it; the folder keeps to its quota, and what was unused for
//! longest goes first. A mapped file that is removed stays readable for who has it mapped.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use dl_format::{DatasetId, Version};
use rustix::fs::{FlockOperation, flock};

use crate::error::{Error, Kind};
use crate::snapshot::index::Snapshot;

/// Most bytes of a user's snapshots, unless something else is said.
const QUOTA: u64 = 16 << 30;

const WHOLE: &str = "snapshot";
const PARTIAL: &str = "partial";

/// Where snapshots are kept on this machine, and how many bytes of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotCache {
    folder: PathBuf,
    quota: u64,
}

/// The right to fetch snapshots of one dataset, until it is dropped or its process ends.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl SnapshotCache {
    /// A folder on a disk of this machine, which is made when it is needed, and most bytes of
    /// snapshots in it.
    pub fn new(folder: impl Into<PathBuf>, quota: u64) -> Self {
        Self { folder: folder.into(), quota }
    }

    /// That of the user who runs this process: `diesel/snapshots` in the folder that the environment
    /// variable `XDG_CACHE_HOME` names, or else in `.cache` in the one that `HOME` names. None where
    /// neither does.
    pub fn of_user() -> Option<Self> {
        let folder = |name| std::env::var_os(name).map(PathBuf::from);
        let absolute = |folder: &PathBuf| folder.is_absolute();
        let home = || folder("HOME").filter(absolute).map(|home| home.join(".cache"));
        let cache = folder("XDG_CACHE_HOME").filter(absolute).or_else(home)?;
        Some(Self::new(cache.join("diesel/snapshots"), QUOTA))
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, dataset: DatasetId, version: Version, ending: &str) -> PathBuf {
        self.folder.join(format!("{dataset}-{version}.{ending}"))
    }

    /// What to say of a failure here.
    pub(crate) fn failed(&self, why: io::Error) -> Error {
        let is_full =
            matches!(why.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let folder = self.folder.display();
        if !is_full {
            return Error::new(Kind::Local, "keep a snapshot in", folder, why);
        }
        let why = format!("{why}; free space there, or let XDG_CACHE_HOME name another folder");
        Error::new(Kind::Local, "keep a snapshot in", folder, why)
    }

    /// The snapshot of a version, if it is here. It was used now.
    pub(crate) fn find(
        &self,
        dataset: DatasetId,
        version: Version,
        now: SystemTime,
    ) -> Option<Snapshot> {
        let path = self.path(dataset, version, WHOLE);
        let found = Snapshot::map(&path);
        match found {
            Ok(snapshot) if (snapshot.dataset(), snapshot.version()) == (dataset, version) => {
                // Only makes it go later.
                let _ = File::open(&path).and_then(|file| file.set_modified(now));
                Some(snapshot)
            }
            Err(error) if error.kind() == Kind::Local => None,
            _ => {
                // No snapshot, or another one: as if it were not there.
                let _ = fs::remove_file(&path);
                None
            }
        }
    }

    /// Waits for nobody: none while another process or thread has it.
    pub(crate) fn lock(&self, dataset: DatasetId) -> io::Result<Option<Lock>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let path = self.folder.join(format!("{dataset}.lock"));
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock { _file: file })),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What changes while somebody fetches a snapshot of a dataset.
    pub(crate) fn sign_of_life(&self, dataset: DatasetId) -> u64 {
        let partial = |path: &Path| path.extension().is_some_and(|ending| ending == PARTIAL);
        let files = self.files().unwrap_or_default();
        let of_dataset =
            files.into_iter().filter(|file| file.is_of(dataset) && partial(&file.path));
        of_dataset.map(|file| file.length.saturating_add(1)).sum()
    }

    /// The file for a version that is being fetched, with what is there of it already. Of other
    /// versions of the dataset, nothing that was begun stays.
    pub(crate) fn begin(
        &self,
        _: &Lock,
        dataset: DatasetId,
        version: Version,
    ) -> io::Result<(File, PathBuf)> {
        let path = self.path(dataset, version, PARTIAL);
        for file in self.files()? {
            let is_partial = file.path.extension().is_some_and(|ending| ending == PARTIAL);
            if is_partial && file.is_of(dataset) && file.path != path {
                fs::remove_file(&file.path)?;
            }
        }
        let file =
            OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&path)?;
        Ok((file, path))
    }

    /// Gives a file that was begun, and that is whole and checked, its name.
    pub(crate) fn end(
        &self,
        _: &Lock,
        dataset: DatasetId,
        version: Version,
        file: &File,
    ) -> io::Result<()> {
        let whole = self.path(dataset, version, WHOLE);
        file.sync_all()?;
        fs::rename(self.path(dataset, version, PARTIAL), &whole)?;
        File::open(&self.folder)?.sync_all()?;
        self.keep_to_quota(&whole)
    }

    /// Removes what was unused for longest, but not this one.
    fn keep_to_quota(&self, newest: &Path) -> io::Result<()> {
        let mut files = self.files()?;
        files.retain(|file| file.path.extension().is_some_and(|ending| ending == WHOLE));
        files.sort_by_key(|file| file.used);
        let mut bytes: u64 = files.iter().map(|file| file.length).sum();
        for file in files.iter().filter(|file| file.path != newest) {
            if bytes <= self.quota {
                break;
            }
            fs::remove_file(&file.path)?;
            bytes = bytes.saturating_sub(file.length);
        }
        Ok(())
    }

    fn files(&self) -> io::Result<Vec<Kept>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            // Another process may have removed it.
            let Ok(metadata) = entry.metadata() else { continue };
            let used = metadata.modified()?;
            files.push(Kept { path: entry.path(), length: metadata.len(), used });
        }
        Ok(files)
    }
}

/// A file in the folder.
#[derive(Debug)]
struct Kept {
    path: PathBuf,
    length: u64,
    used: SystemTime,
}

impl Kept {
    fn is_of(&self, dataset: DatasetId) -> bool {
        let name = self.path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(&format!("{dataset}-")))
    }
}
