//! A disk in memory that loses unsynced changes at a power cut.
//!
//! Must hold: the disk guarantees no more than a real disk. A name lasts when its directory was synced
//! and is reachable; the contents of a file last when the file was synced. Other changes may last or not.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use dl_runtime::fault::{Cut, CutPoint};
use dl_runtime::locked;

use super::LocalStore;
use super::directory::Directory;
use super::files::{Entry, Errno, Files, Node, Result, State};
use crate::{Error, Store};

/// A disk for crash tests below the real local store. Its file calls are points of a [`CutPoint`], and a
/// power cut drops unsynced changes. Clones are the same disk.
#[derive(Debug, Clone)]
pub struct VolatileDisk {
    files: Volatile,
}

impl VolatileDisk {
    /// An empty disk. Each changing call has two write points of `cut`: before and after.
    pub fn new(cut: CutPoint) -> Self {
        Self { files: Volatile::new(true, cut) }
    }

    /// Opens the store, as each new process does.
    ///
    /// # Errors
    /// The process is cut off during the opening.
    pub fn open(&self) -> std::result::Result<Arc<dyn Store>, Error> {
        let directory = Directory::open(self.files.clone())
            .map_err(|errno| Error::from_errno(errno, "open store", "on a volatile disk"))?;
        Ok(Arc::new(LocalStore::new(Path::new("volatile"), directory)))
    }

    /// Cuts the power: unsynced changes are gone, except for changes that last by chance, for which `keep`
    /// gives true. Stores that were opened before belong to dead processes.
    pub fn lose_power(&self, keep: impl FnMut() -> bool) {
        self.files.lose_power(keep);
    }
}

/// Clones are the same disk, used by another process.
#[derive(Debug, Clone)]
pub(super) struct Volatile {
    images: Arc<Mutex<Images>>,
    cut: CutPoint,
    has_unnamed_files: bool,
    loses_answers: bool,
}

#[derive(Debug, Default)]
struct Images {
    live: BTreeMap<String, Name>,
    durable: BTreeMap<String, Name>,
}

#[derive(Debug, Clone)]
enum Name {
    Dir,
    File(Arc<Inode>),
}

#[derive(Debug, Default)]
pub(super) struct Inode {
    live: Mutex<Vec<u8>>,
    durable: Mutex<Vec<u8>>,
    holder: Mutex<Weak<()>>,
}

#[derive(Debug)]
pub(super) struct Handle {
    inode: Arc<Inode>,
    _lock: Option<Arc<()>>,
}

impl Name {
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Dir, Self::Dir) => true,
            (Self::File(one), Self::File(other)) => Arc::ptr_eq(one, other),
            (Self::Dir, Self::File(_)) | (Self::File(_), Self::Dir) => false,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    locked(mutex)
}

fn dead(_: Cut) -> Errno {
    Errno::IO
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

impl Volatile {
    pub(super) fn new(has_unnamed_files: bool, cut: CutPoint) -> Self {
        Self { images: Arc::default(), cut, has_unnamed_files, loses_answers: false }
    }

    /// A network file system whose client repeats each link, like after a lost answer, and whose server
    /// forgets files without a name.
    #[cfg(test)]
    pub(super) fn on_network() -> Self {
        Self { loses_answers: true, ..Self::new(false, CutPoint::new()) }
    }

    /// Cuts the power. `keep` decides for each unsynced change whether the change lasts by chance.
    pub(super) fn lose_power(&self, mut keep: impl FnMut() -> bool) {
        let mut images = lock(&self.images);
        let mut paths: Vec<String> =
            images.live.keys().chain(images.durable.keys()).cloned().collect();
        paths.sort();
        paths.dedup();
        let mut left = BTreeMap::<String, Name>::new();
        for path in paths {
            let (live, durable) = (images.live.get(&path), images.durable.get(&path));
            let is_synced = live.zip(durable).is_some_and(|(live, durable)| live.is(durable));
            let name = if is_synced || keep() { live } else { durable };
            let is_reachable = parent(&path).is_empty() || left.contains_key(parent(&path));
            if let Some(name) = name.filter(|_| is_reachable) {
                left.insert(path, name.clone());
            }
        }
        for name in left.values() {
            if let Name::File(inode) = name {
                let (mut live, mut durable) = (lock(&inode.live), lock(&inode.durable));
                if *live != *durable && keep() {
                    *durable = live.clone();
                }
                *live = durable.clone();
            }
        }
        images.durable = left.clone();
        images.live = left;
    }

    /// The paths of all files.
    #[cfg(test)]
    pub(super) fn files(&self) -> Vec<String> {
        let images = lock(&self.images);
        let files = images.live.iter().filter(|(_, name)| matches!(name, Name::File(_)));
        files.map(|(path, _)| path.clone()).collect()
    }

    /// A changing step, with cut points before and after.
    fn step<T>(&self, change: impl FnOnce(&mut Images) -> Result<T>) -> Result<T> {
        self.cut.write_point().map_err(dead)?;
        let changed = change(&mut lock(&self.images))?;
        self.cut.write_point().map_err(dead)?;
        Ok(changed)
    }

    fn look<T>(&self, look: impl FnOnce(&Images) -> Result<T>) -> Result<T> {
        self.cut.read_point().map_err(dead)?;
        look(&lock(&self.images))
    }
}

impl Images {
    fn dir(&self, dir: &str) -> Result<()> {
        match self.live.get(dir) {
            _ if dir.is_empty() => Ok(()),
            Some(Name::Dir) => Ok(()),
            Some(Name::File(_)) => Err(Errno::NOTDIR),
            None if dir.contains('/') => self.dir(parent(dir)).and(Err(Errno::NOENT)),
            None => Err(Errno::NOENT),
        }
    }

    fn file(&self, path: &str) -> Result<Arc<Inode>> {
        self.dir(parent(path))?;
        match self.live.get(path) {
            Some(Name::File(inode)) => Ok(Arc::clone(inode)),
            Some(Name::Dir) => Err(Errno::ISDIR),
            None => Err(Errno::NOENT),
        }
    }

    fn state(&self, inode: &Arc<Inode>) -> State {
        let this = Name::File(Arc::clone(inode));
        let names = self.live.values().filter(|name| name.is(&this)).count();
        let id = (0, Arc::as_ptr(inode) as u64);
        State { id, size: lock(&inode.live).len() as u64, names }
    }

    fn name(&mut self, path: &str, name: Name) -> Result<()> {
        self.dir(parent(path))?;
        if self.live.contains_key(path) {
            return Err(Errno::EXIST);
        }
        self.live.insert(path.to_owned(), name);
        Ok(())
    }
}

fn take_lock(inode: &Inode) -> Option<Arc<()>> {
    let mut holder = lock(&inode.holder);
    if holder.strong_count() > 0 {
        return None;
    }
    let taken = Arc::new(());
    *holder = Arc::downgrade(&taken);
    Some(taken)
}

impl Files for Volatile {
    type File = Handle;

    fn make_dir(&self, dir: &str) -> Result<()> {
        self.step(|images| images.name(dir, Name::Dir))
    }

    fn sync_dir(&self, dir: &str) -> Result<()> {
        self.step(|images| {
            images.dir(dir)?;
            images.durable.retain(|path, _| parent(path) != dir);
            let live = images.live.iter().filter(|(path, _)| parent(path) == dir);
            images.durable.extend(live.map(|(path, name)| (path.clone(), name.clone())));
            Ok(())
        })
    }

    fn entries(&self, dir: &str) -> Result<Vec<Entry>> {
        self.look(|images| {
            images.dir(dir)?;
            let within = images.live.iter().filter(|(path, _)| parent(path) == dir);
            let entry = |(path, name): (&String, &Name)| Entry {
                name: path.rsplit('/').next().unwrap_or_default().to_owned(),
                node: match name {
                    Name::Dir => Node::Dir,
                    Name::File(inode) => Node::File(lock(&inode.live).len() as u64),
                },
            };
            Ok(within.map(entry).collect())
        })
    }

    fn create_unnamed(&self, dir: &str) -> Result<Handle> {
        if !self.has_unnamed_files {
            return Err(Errno::OPNOTSUPP);
        }
        self.step(|images| {
            images.dir(dir)?;
            Ok(Handle { inode: Arc::default(), _lock: None })
        })
    }

    fn link_unnamed(&self, file: &Handle, to: &str) -> Result<()> {
        self.step(|images| images.name(to, Name::File(Arc::clone(&file.inode))))
    }

    fn stage(&self, path: &str) -> Result<Option<Handle>> {
        self.step(|images| {
            let inode = Arc::<Inode>::default();
            images.name(path, Name::File(Arc::clone(&inode)))?;
            let held = take_lock(&inode);
            Ok(held.map(|held| Handle { inode, _lock: Some(held) }))
        })
    }

    fn claim(&self, path: &str) -> Result<Option<Handle>> {
        self.look(|images| {
            let inode = images.file(path)?;
            let held = take_lock(&inode);
            Ok(held.map(|held| Handle { inode, _lock: Some(held) }))
        })
    }

    fn link(&self, from: &str, to: &str) -> Result<()> {
        self.step(|images| {
            let inode = images.file(from)?;
            images.name(to, Name::File(inode))?;
            if self.loses_answers { Err(Errno::EXIST) } else { Ok(()) }
        })
    }

    fn remove(&self, path: &str) -> Result<()> {
        self.step(|images| {
            images.file(path)?;
            images.live.remove(path);
            Ok(())
        })
    }

    fn remove_dir(&self, dir: &str) -> Result<()> {
        self.step(|images| {
            images.dir(dir)?;
            if images.live.keys().any(|path| parent(path) == dir) {
                return Err(Errno::NOTEMPTY);
            }
            images.live.remove(dir);
            Ok(())
        })
    }

    fn write(&self, file: &Handle, body: &[u8]) -> Result<()> {
        let (first, second) = body.split_at(body.len() / 2);
        for half in [first, second] {
            self.step(|_| {
                lock(&file.inode.live).extend_from_slice(half);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn sync_file(&self, file: &Handle) -> Result<()> {
        self.step(|_| {
            lock(&file.inode.durable).clone_from(&lock(&file.inode.live));
            Ok(())
        })
    }

    fn open(&self, path: &str) -> Result<Handle> {
        self.look(|images| Ok(Handle { inode: images.file(path)?, _lock: None }))
    }

    fn state(&self, file: &Handle) -> Result<State> {
        self.look(|images| {
            let state = images.state(&file.inode);
            if state.names == 0 && self.loses_answers {
                return Err(Errno::STALE);
            }
            Ok(state)
        })
    }

    fn state_at(&self, path: &str) -> Result<State> {
        self.look(|images| Ok(images.state(&images.file(path)?)))
    }

    fn read(&self, file: &Handle, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        self.look(|_| {
            let bytes = lock(&file.inode.live);
            let bytes = bytes.get(offset as usize..).unwrap_or_default();
            let length = bytes.len().min(buffer.len());
            buffer[..length].copy_from_slice(&bytes[..length]);
            Ok(length)
        })
    }

    fn read_cached(&self, _: &Handle, _: u64, _: &mut [u8]) -> Result<usize> {
        Err(Errno::OPNOTSUPP)
    }
}
