//! Snapshots on this machine: a folder that all processes of a user share.
//!
//! Must hold: a file has its name only once all of it is there, checked and durable; what somebody
//! handed in never has the name of what servers give; of several processes that want one, one fetches it;
//! the folder keeps to its quota, and what was unused for longest goes first. A mapped file that is
//! removed stays readable for who has it mapped.

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
use crate::snapshot::lock::Lock;
use crate::snapshot::marker::{MARKER, Marker};
use crate::snapshot::place;

/// Most bytes of a user's snapshots, unless something else is said.
const QUOTA: u64 = 16 << 30;

const LOCK: &str = "lock";

/// Characters of an id, as it is written.
const ID_LENGTH: usize = 22;

/// Where snapshots are kept on this machine, and how many bytes of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotCache {
    folder: PathBuf,
    quota: u64,
}

/// Who gave a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Source {
    /// The servers of its dataset.
    Servers,
    /// Whoever named a file: what is in it may be anything.
    File,
}

impl Source {
    /// How names of whole files end, and of those that are being written.
    const fn endings(self) -> (&'static str, &'static str) {
        match self {
            Self::Servers => ("snapshot", "partial"),
            Self::File => ("given", "given-partial"),
        }
    }
}

/// Which snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) source: Source,
    pub(crate) dataset: DatasetId,
    pub(crate) version: Version,
}

impl SnapshotCache {
    /// A folder on a disk of this machine, which is made when it is needed, and most bytes of
    /// snapshots in it.
    pub fn new(folder: impl Into<PathBuf>, quota: u64) -> Self {
        Self { folder: folder.into(), quota }
    }

    /// That of the user who runs this process: `diesel/snapshots` in the folder that the environment
    /// variable `XDG_CACHE_HOME` names, or else in `.cache` in the one that `HOME` names. A home on a
    /// file system that several machines share is no place for it: there it is the user's own folder
    /// below that for temporary files. None where there is none of these.
    pub fn of_user() -> Option<Self> {
        let folder = |name| std::env::var_os(name).map(PathBuf::from);
        let absolute = |folder: &PathBuf| folder.is_absolute();
        let home = || {
            let home = folder("HOME").filter(absolute)?;
            if place::is_shared(&home) { place::own_temporary() } else { Some(home.join(".cache")) }
        };
        let cache = folder("XDG_CACHE_HOME").filter(absolute).or_else(home)?;
        Some(Self::new(cache.join("diesel/snapshots"), QUOTA))
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, key: Key, ending: &str) -> PathBuf {
        self.folder.join(format!("{}-{}.{ending}", key.dataset, key.version))
    }

    fn whole(&self, key: Key) -> PathBuf {
        self.path(key, key.source.endings().0)
    }

    fn partial(&self, key: Key) -> PathBuf {
        self.path(key, key.source.endings().1)
    }

    /// That of the file of a snapshot.
    pub(crate) fn marker(&self, key: Key) -> Marker {
        Marker::of(&self.whole(key))
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

    /// A snapshot, if it is here and whole. It was used now.
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
                // As if it were not there.
                tracing::warn!(why = why.chain(), "a damaged snapshot is removed");
                marker.remove();
                file::remove(&file, &path);
                None
            }
        }
    }

    /// The file that holds a snapshot here, if it does.
    pub(crate) fn file_of(&self, snapshot: &Snapshot) -> Option<File> {
        let (dataset, version) = (snapshot.dataset(), snapshot.version());
        let key = Key { source: Source::Servers, dataset, version };
        let file = file::open(&self.whole(key)).ok()?;
        (file.metadata().ok()?.len() == snapshot.length()).then_some(file)
    }

    /// The right to write snapshots of one dataset. Waits for nobody: none while another process or
    /// thread has it.
    pub(crate) fn lock(&self, dataset: DatasetId) -> io::Result<Option<Lock>> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        Lock::take(&self.lock_path(dataset))
    }

    fn lock_path(&self, dataset: DatasetId) -> PathBuf {
        self.folder.join(format!("{dataset}.{LOCK}"))
    }

    /// What changes while somebody fetches a snapshot of a dataset, or waits for it to be built.
    pub(crate) fn sign_of_life(&self, dataset: DatasetId) -> impl PartialEq + use<> {
        let files = self.files().unwrap_or_default();
        let partials = files.into_iter().filter(|file| file.is_of(dataset) && file.is_partial());
        let bytes: u64 = partials.map(|file| file.length.saturating_add(1)).sum();
        let shown = fs::metadata(self.lock_path(dataset)).and_then(|lock| lock.modified());
        (bytes, shown.ok())
    }

    /// The file for a snapshot that is about to be written, with what is there of it already. Of
    /// other versions from the same source, nothing that was begun stays.
    pub(crate) fn begin(&self, _: &Lock, key: Key) -> io::Result<(File, PathBuf)> {
        let path = self.partial(key);
        for file in self.files()? {
            let is_begun = file.ending() == Some(key.source.endings().1);
            if is_begun && file.is_of(key.dataset) && file.path != path {
                // It takes room, and does no other harm.
                let _ = fs::remove_file(&file.path);
            }
        }
        Ok((file::open_or_make(&path)?, path))
    }

    /// Gives a file that was begun, and that is whole and checked, its name. When that can't be, the
    /// file is removed: whoever has it mapped goes on with it, and nobody ever writes to it again.
    pub(crate) fn end(&self, _: &Lock, key: Key, file: &File, now: SystemTime) {
        let (whole, partial) = (self.whole(key), self.partial(key));
        if let Err(why) = self.name(file, &partial, &whole) {
            tracing::warn!(why = self.failed(why).chain(), "a snapshot is not kept");
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
            return Err(io::Error::other("somebody has removed it meanwhile"));
        }
        fs::rename(partial, whole)?;
        File::open(&self.folder)?.sync_all()
    }

    /// Removes what was unused for longest, but not this one, and what is of no use any more. What
    /// can't be removed stays: others may do the same at this moment.
    fn tidy(&self, newest: &Path) {
        let files = self.files().unwrap_or_default();
        let of_file: HashMap<&Path, &Kept> =
            files.iter().map(|file| (file.path.as_path(), file)).collect();
        let mut bytes: u64 = 0;
        let mut kept = Vec::new();
        for file in &files {
            match file.ending() {
                // Nobody has it: it goes as it is dropped.
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

    /// Whether a file is gone now.
    fn evict(&self, file: &Kept) -> bool {
        // Nobody may be writing it.
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
    fn ending(&self) -> Option<&str> {
        self.path.extension()?.to_str()
    }

    fn is_whole(&self) -> bool {
        [Source::Servers, Source::File]
            .map(|source| Some(source.endings().0))
            .contains(&self.ending())
    }

    fn is_partial(&self) -> bool {
        [Source::Servers, Source::File]
            .map(|source| Some(source.endings().1))
            .contains(&self.ending())
    }

    /// The dataset, by the name of a snapshot. Ids are all of one length, and may hold dashes.
    fn dataset(&self) -> Option<DatasetId> {
        let (dataset, rest) = self.path.file_name()?.to_str()?.split_at_checked(ID_LENGTH)?;
        dataset.parse().ok().filter(|_| rest.starts_with('-'))
    }

    fn is_of(&self, dataset: DatasetId) -> bool {
        self.dataset() == Some(dataset)
    }
}
