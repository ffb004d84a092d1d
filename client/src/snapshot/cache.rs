//! The snapshot cache: a folder shared by all processes of a user.
//!
//! Must hold: a file gets its final name only when complete, checked and durable. Snapshots from
//! files of users have other names than snapshots from servers. A single process at a time fetches
//! the snapshots of a dataset. The folder stays within its quota: the least recently used files go
//! first. A removed file stays readable for processes with a mapping.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use dl_format::{DatasetId, Version};

use crate::error::{Error, Kind};
use crate::snapshot::file;
use crate::snapshot::index::Snapshot;
use crate::snapshot::local_folder;
use crate::snapshot::lock::Lock;
use crate::snapshot::marker::{MARKER, Marker};
use crate::snapshot::user_file::UserFile;

/// The default quota of a user's snapshots, in bytes.
const QUOTA: u64 = 16 << 30;

const LOCK: &str = "lock";

/// Characters of a written id.
const ID_LENGTH: usize = 22;

/// The folder of snapshots on the local machine, with its quota in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotCache {
    folder: PathBuf,
    quota: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Servers,
    /// A file named by the user, with untrusted content.
    File,
}

impl Origin {
    /// Snapshots from servers come first.
    pub(crate) const ALL: [Self; 2] = [Self::Servers, Self::File];

    /// The suffixes of complete files and of partial files.
    const fn endings(self) -> (&'static str, &'static str) {
        match self {
            Self::Servers => ("snapshot", "partial"),
            Self::File => ("given", "given-partial"),
        }
    }
}

/// The origin, dataset and version of a cached snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) origin: Origin,
    pub(crate) dataset: DatasetId,
    pub(crate) version: Version,
}

impl SnapshotCache {
    /// A folder on a local disk, made on first use, and its quota in bytes.
    pub fn new(folder: impl Into<PathBuf>, quota: u64) -> Self {
        Self { folder: folder.into(), quota }
    }

    /// The cache of the user of the process: `diesel/snapshots` in the folder of the environment
    /// variable `XDG_CACHE_HOME`, else in `.cache` in `HOME`. If `HOME` lies on a network file
    /// system, a folder of the user among the temporary files serves instead. None without any such
    /// folder.
    pub fn of_user() -> Option<Self> {
        let folder = |name| std::env::var_os(name).map(PathBuf::from);
        let absolute = |folder: &PathBuf| folder.is_absolute();
        let home = || {
            let home = folder("HOME").filter(absolute)?;
            if local_folder::is_shared(&home) {
                local_folder::own_temporary()
            } else {
                Some(home.join(".cache"))
            }
        };
        let cache = folder("XDG_CACHE_HOME").filter(absolute).or_else(home)?;
        Some(Self::new(cache.join("diesel/snapshots"), QUOTA))
    }

    /// The folder of the cache.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, key: Key, ending: &str) -> PathBuf {
        self.folder.join(format!("{}-{}.{ending}", key.dataset, key.version))
    }

    fn whole(&self, key: Key) -> PathBuf {
        self.path(key, key.origin.endings().0)
    }

    fn partial(&self, key: Key) -> PathBuf {
        self.path(key, key.origin.endings().1)
    }

    /// The marker of the file of a snapshot.
    pub(crate) fn marker(&self, key: Key) -> Marker {
        Marker::of(&self.whole(key))
    }

    /// The error for a failed file operation in the cache.
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

    /// A complete snapshot of the cache, marked as used now.
    pub(crate) fn find(&self, key: Key, now: SystemTime) -> Option<Snapshot> {
        let path = self.whole(key);
        let file = file::open(&path).ok()?;
        let marker = self.marker(key);
        let opened = Snapshot::map(&file, &path, self.marker(key)).and_then(|snapshot| {
            snapshot.check_is(key.dataset, key.version)?;
            marker.once(&file, || snapshot.verify_checksums())?;
            Ok(snapshot)
        });
        match opened {
            Ok(snapshot) => {
                marker.touch(now);
                Some(snapshot)
            }
            Err(why) if why.kind() == Kind::Local => None,
            Err(why) => {
                // A damaged file counts as absent.
                tracing::warn!(why = why.chain(), "removing a damaged snapshot");
                marker.remove();
                file::remove(&file, &path);
                None
            }
        }
    }

    /// The cached file with the bytes of a snapshot, if any.
    pub(crate) fn file_of(&self, snapshot: &Snapshot) -> Option<File> {
        let (dataset, version) = (snapshot.dataset(), snapshot.version());
        Origin::ALL.into_iter().find_map(|origin| {
            let file = UserFile::open(&self.whole(Key { origin, dataset, version })).ok()?;
            file.is(snapshot).then(|| file.into_file())
        })
    }

    /// The right to write snapshots of a dataset; none while another process or thread has the
    /// right. Never waits.
    pub(crate) fn lock(&self, dataset: DatasetId) -> io::Result<Option<Lock>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        Lock::take(&self.lock_path(dataset))
    }

    fn lock_path(&self, dataset: DatasetId) -> PathBuf {
        self.folder.join(format!("{dataset}.{LOCK}"))
    }

    /// A value that changes while another process fetches a snapshot of a dataset, or waits for the
    /// servers to build the snapshot.
    pub(crate) fn sign_of_life(&self, dataset: DatasetId) -> impl PartialEq + use<> {
        let files = self.files().unwrap_or_default();
        let partials = files.into_iter().filter(|file| file.is_of(dataset) && file.is_partial());
        let bytes: u64 = partials.map(|file| file.length.saturating_add(1)).sum();
        let shown = fs::metadata(self.lock_path(dataset)).and_then(|lock| lock.modified());
        (bytes, shown.ok())
    }

    /// The partial file for a snapshot, with the bytes of an earlier attempt. Partial files of
    /// other versions from the same origin are removed.
    pub(crate) fn begin(&self, _: &Lock, key: Key) -> io::Result<(File, PathBuf)> {
        let path = self.partial(key);
        for file in self.files()? {
            let is_begun = file.ending() == Some(key.origin.endings().1);
            if is_begun && file.is_of(key.dataset) && file.path != path {
                // The file takes room, and does no other harm.
                let _ = fs::remove_file(&file.path);
            }
        }
        Ok((file::open_or_make(&path)?, path))
    }

    /// Gives a complete, checked file its final name. If the renaming fails, the file is removed:
    /// existing mappings stay valid, as no process ever writes to the file again.
    pub(crate) fn end(&self, _: &Lock, key: Key, file: &File, now: SystemTime) {
        let (whole, partial) = (self.whole(key), self.partial(key));
        if let Err(why) = self.name(file, &partial, &whole) {
            tracing::warn!(why = self.failed(why).chain(), "a snapshot was not kept in the cache");
            file::remove(file, &partial);
            return;
        }
        let marker = self.marker(key);
        marker.set(file);
        marker.touch(now);
        self.tidy(&whole);
    }

    fn name(&self, file: &File, partial: &Path, whole: &Path) -> io::Result<()> {
        file.sync_all()?;
        if !file::is_at(file, partial)? {
            return Err(io::Error::other("another process has removed the file meanwhile"));
        }
        fs::rename(partial, whole)?;
        File::open(&self.folder)?.sync_all()
    }

    /// Removes useless files, and the least recently used snapshots beyond the quota except the
    /// newest. Failures are ignored: other processes may tidy up at the same time.
    fn tidy(&self, newest: &Path) {
        let files = self.files().unwrap_or_default();
        let of_file: HashMap<&Path, &CachedFile> =
            files.iter().map(|file| (file.path.as_path(), file)).collect();
        let mut bytes: u64 = 0;
        let mut kept = Vec::new();
        for file in &files {
            match file.ending() {
                // A free lock file is removed by its drop.
                Some(LOCK) => drop(Lock::take(&file.path)),
                Some(MARKER) if !of_file.contains_key(file.path.with_extension("").as_path()) => {
                    let _ = fs::remove_file(&file.path);
                }
                _ if file.is_whole() || file.is_partial() => {
                    let marker = Marker::of(&file.path);
                    let used = of_file.get(marker.path()).map_or(file.used, |marker| marker.used);
                    bytes = bytes.saturating_add(file.length);
                    kept.push((used, file));
                }
                _ => {}
            }
        }
        kept.sort_by_key(|(used, _)| *used);
        for (_, file) in kept.into_iter().filter(|(_, file)| file.path != newest) {
            if bytes <= self.quota {
                break;
            }
            if self.evict(file) {
                bytes = bytes.saturating_sub(file.length);
            }
        }
    }

    /// Removes a file; whether the file is gone now.
    fn evict(&self, file: &CachedFile) -> bool {
        // No other process may be writing the file.
        let _lock = match file.dataset() {
            Some(dataset) if file.is_partial() => match Lock::take(&self.lock_path(dataset)) {
                Ok(Some(lock)) => Some(lock),
                Ok(None) | Err(_) => return false,
            },
            _ => None,
        };
        Marker::of(&file.path).remove();
        match fs::remove_file(&file.path) {
            Ok(()) => true,
            Err(why) => why.kind() == io::ErrorKind::NotFound,
        }
    }

    fn files(&self) -> io::Result<Vec<CachedFile>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            // Another process may have removed the file.
            let Ok(metadata) = entry.metadata() else { continue };
            let used = metadata.modified()?;
            files.push(CachedFile { path: entry.path(), length: metadata.len(), used });
        }
        Ok(files)
    }
}

#[derive(Debug)]
struct CachedFile {
    path: PathBuf,
    length: u64,
    used: SystemTime,
}

impl CachedFile {
    fn ending(&self) -> Option<&str> {
        self.path.extension()?.to_str()
    }

    fn is_whole(&self) -> bool {
        Origin::ALL.map(|origin| Some(origin.endings().0)).contains(&self.ending())
    }

    fn is_partial(&self) -> bool {
        Origin::ALL.map(|origin| Some(origin.endings().1)).contains(&self.ending())
    }

    /// The dataset in the name of a snapshot. Ids have a fixed length, and may hold dashes.
    fn dataset(&self) -> Option<DatasetId> {
        let (dataset, rest) = self.path.file_name()?.to_str()?.split_at_checked(ID_LENGTH)?;
        dataset.parse().ok().filter(|_| rest.starts_with('-'))
    }

    fn is_of(&self, dataset: DatasetId) -> bool {
        self.dataset() == Some(dataset)
    }
}
