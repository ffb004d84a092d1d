//! Objects as files below a directory: what each operation does, step by step.
//!
//! Must hold: a name appears only when its file is complete and synced, and an operation
//! returns only when the directories that make it last are synced. After a crash at any step
//! nothing is torn, nothing acknowledged is lost, and no file is left that is no object.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dl_runtime::{Buffers, OsRandom, Random};

use super::descriptors::Descriptors;
use super::files::{Entry, Errno, Files, Named, Node, Result};
use crate::{Error, Key, Kind, ObjectInfo};

/// Files in the making, where the file system has no unnamed files. No key begins with a dot.
const STAGING: &str = ".staging";

/// Half of the 1,024 descriptors that a process usually may have.
const OPEN_FILES: usize = 512;

/// Directories remembered as durable; beyond it all are forgotten, and synced once more.
const KNOWN_DIRS: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Directory<F: Files> {
    pub(super) files: F,
    pub(super) open: Descriptors<Named<F::File>>,
    /// Directories whose own names are known to be durable, up to the root.
    durable: Mutex<HashSet<Box<str>>>,
    staged: AtomicBool,
    /// Whether reads of this file system can't say that they would wait.
    pub(super) waits_always: AtomicBool,
    /// What is read goes here.
    pub(super) buffers: Arc<Buffers>,
}

impl<F: Files> Directory<F> {
    /// Takes a directory over, and removes what crashed processes left in the making.
    pub(super) fn open(files: F) -> Result<Self> {
        let directory = Self {
            files,
            open: Descriptors::new(OPEN_FILES),
            durable: Mutex::default(),
            staged: AtomicBool::new(false),
            waits_always: AtomicBool::new(false),
            buffers: Arc::default(),
        };
        directory.sweep()?;
        Ok(directory)
    }

    /// From now on as on a file system without unnamed files.
    #[cfg(test)]
    pub(super) fn stage_always(self) -> Self {
        self.staged.store(true, Ordering::Relaxed);
        self
    }

    fn sweep(&self) -> Result<()> {
        let entries = match self.files.entries(STAGING) {
            Err(Errno::NOENT) => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let path = format!("{STAGING}/{}", entry.name);
            match self.files.claim(&path) {
                Ok(Some(_locked)) => self.files.remove(&path)?,
                Ok(None) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    pub(super) fn create(&self, key: &Key, body: &[u8]) -> std::result::Result<(), Error> {
        let created = match self.place(key.as_str(), body) {
            Err(Errno::NOENT) => {
                // Somebody removed an empty directory that this process has made.
                self.known().clear();
                self.place(key.as_str(), body)
            }
            created => created,
        };
        created.map_err(|errno| {
            let mut error = Error::from_errno(errno, "create object", key);
            match errno {
                Errno::NOTDIR => error.kind = Kind::Unsupported,
                Errno::NOENT => error.kind = Kind::Unavailable,
                _ => {}
            }
            error
        })
    }

    fn place(&self, path: &str, body: &[u8]) -> Result<()> {
        let dir = parent(path);
        let parents = self.make_dirs(dir)?;
        let linked = self.link_body(dir, path, body);
        if let Err(errno) = linked
            && errno != Errno::EXIST
        {
            return Err(errno);
        }
        // Also when the key was taken: its maker may have died before this sync, and the caller
        // will take the object for durable.
        self.files.sync_dir(dir)?;
        for parent in parents.iter().rev() {
            self.files.sync_dir(parent)?;
        }
        self.remember(dir);
        linked
    }

    /// Makes `dir` and all above it. Returns the directories to sync before any of them counts
    /// as durable; also one that was there may have been made by a process that died.
    fn make_dirs<'a>(&self, dir: &'a str) -> Result<Vec<&'a str>> {
        let mut parents = Vec::new();
        if self.known().contains(dir) {
            return Ok(parents);
        }
        let ends = dir.match_indices('/').map(|(end, _)| end).chain([dir.len()]);
        for dir in ends.filter_map(|end| dir.get(..end)).filter(|dir| !dir.is_empty()) {
            match self.files.make_dir(dir) {
                Ok(()) | Err(Errno::EXIST) => parents.push(parent(dir)),
                Err(errno) => return Err(errno),
            }
        }
        Ok(parents)
    }

    fn remember(&self, dir: &str) {
        let mut known = self.known();
        if known.len() >= KNOWN_DIRS {
            known.clear();
        }
        if !known.contains(dir) {
            known.insert(dir.into());
        }
    }

    fn known(&self) -> MutexGuard<'_, HashSet<Box<str>>> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn link_body(&self, dir: &str, path: &str, body: &[u8]) -> Result<()> {
        if !self.staged.load(Ordering::Relaxed) {
            match self.link_unnamed(dir, path, body) {
                Err(Errno::OPNOTSUPP) => self.staged.store(true, Ordering::Relaxed),
                done => return done,
            }
        }
        self.link_staged(path, body)
    }

    fn link_unnamed(&self, dir: &str, path: &str, body: &[u8]) -> Result<()> {
        let file = self.files.create_unnamed(dir)?;
        self.files.write(&file, body)?;
        self.files.sync_file(&file)?;
        self.files.link_unnamed(&file, path)
    }

    fn link_staged(&self, path: &str, body: &[u8]) -> Result<()> {
        let (staged, file) = self.stage()?;
        let linked =
            self.files.write(&file, body).and_then(|()| self.files.sync_file(&file)).and_then(
                |()| match self.files.link(&staged, path) {
                    // On a network file system the call may have been done twice, as the answer to
                    // the first was lost.
                    Err(Errno::EXIST) if self.files.state(&file)?.names > 1 => Ok(()),
                    linked => linked,
                },
            );
        if let Err(errno) = self.files.remove(&staged) {
            // The object is as it should be, and the next open sweeps.
            tracing::warn!(%errno, staged, "could not remove a staging file");
        }
        linked
    }

    fn stage(&self) -> Result<(String, F::File)> {
        match self.files.make_dir(STAGING) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        loop {
            let path = format!("{STAGING}/{:016x}{:016x}", OsRandom.u64(), OsRandom.u64());
            if let Some(file) = self.files.stage(&path)? {
                return Ok((path, file));
            }
        }
    }

    pub(super) fn delete(&self, key: &Key) -> std::result::Result<(), Error> {
        let path = key.as_str();
        let absent = |errno| matches!(errno, Errno::NOENT | Errno::NOTDIR | Errno::ISDIR);
        let removed = match self.files.remove(path) {
            Err(errno) if !absent(errno) => Err(errno),
            Ok(()) | Err(_) => {
                // An open descriptor would keep the blocks of the removed file.
                self.open.remove(key);
                // Also when nothing was there: the removal by a process that died may not last.
                match self.files.sync_dir(parent(path)) {
                    Err(errno) if !absent(errno) => Err(errno),
                    Ok(()) | Err(_) => Ok(()),
                }
            }
        };
        removed.map_err(|errno| Error::from_errno(errno, "delete object", key))
    }

    /// Syncs the directories that make these objects last. Their contents were synced before they
    /// got their names.
    pub(super) fn settle(&self, keys: &[Key]) -> std::result::Result<(), Error> {
        let holding: BTreeSet<&str> = keys.iter().map(|key| parent(key.as_str())).collect();
        let mut all = holding.clone();
        for dir in &holding {
            let mut dir = *dir;
            while !dir.is_empty() && !self.known().contains(dir) {
                dir = parent(dir);
                all.insert(dir);
            }
        }
        // Those below first: a directory that was there then is in the one above it.
        for dir in all.iter().rev() {
            match self.files.sync_dir(dir) {
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(errno) => return Err(Error::from_errno(errno, "settle objects below", dir)),
            }
        }
        Ok(())
    }

    /// Removes the empty directories below `dir`, and `dir` itself. None of them is durable for sure any
    /// more: what is created there after all makes them anew.
    pub(super) fn prune(&self, dir: &str) -> std::result::Result<(), Error> {
        let pruned = self.remove_empty(dir);
        self.known().retain(|known| !is_within(known, dir));
        pruned.map_err(|errno| Error::from_errno(errno, "remove empty folders below", dir))
    }

    fn remove_empty(&self, dir: &str) -> Result<()> {
        let entries = match self.files.entries(dir) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            entries => entries?,
        };
        for Entry { name, .. } in entries.iter().filter(|entry| entry.node == Node::Dir) {
            let below = if dir.is_empty() { name.clone() } else { format!("{dir}/{name}") };
            // Others are none of this store's.
            if Key::new(below.as_str()).is_ok() {
                self.remove_empty(&below)?;
            }
        }
        if dir.is_empty() {
            return Ok(());
        }
        match self.files.remove_dir(dir) {
            // Somebody is faster, or creates something.
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Lists one directory: objects into `objects`, directories below it into `dirs`.
    pub(super) fn list(
        &self,
        dir: &str,
        objects: &mut Vec<ObjectInfo>,
        dirs: &mut Vec<String>,
    ) -> std::result::Result<(), Error> {
        let entries = match self.files.entries(dir) {
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(()),
            Err(errno) => return Err(Error::from_errno(errno, "list objects below", dir)),
            Ok(entries) => entries,
        };
        for entry in entries {
            let mut path = dir.to_owned();
            let slash = if dir.is_empty() { "" } else { "/" };
            path.push_str(slash);
            path.push_str(&entry.name);
            match (Key::new(path.as_str()), entry.node) {
                (Ok(_), Node::Dir) => dirs.push(path),
                (Ok(key), Node::File(size)) => objects.push(ObjectInfo { key, size }),
                // Staging, or put there by somebody else.
                (Err(_), _) => {}
            }
        }
        Ok(())
    }
}

fn is_within(path: &str, dir: &str) -> bool {
    dir.is_empty()
        || path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}
