//! Objects as files below a directory: the steps of each operation.
//!
//! Must hold: a name appears only when its file is complete and synced. An operation returns only when
//! the directories with its changes are synced. After a crash at any step no object is torn, no
//! acknowledged object is lost, and all remaining files are objects.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use dl_runtime::{Buffers, OsRandom, Random, locked};

use super::descriptors::Descriptors;
use super::files::{Entry, Errno, Files, Node, OpenFile, Result};
use crate::{Error, Key, Kind, ObjectInfo};

/// Unfinished files, where the file system has no unnamed files. No key begins with a dot.
const STAGING: &str = ".staging";

/// Half of the usual limit of 1,024 descriptors.
const OPEN_FILES: usize = 512;

/// Most directories remembered as durable; beyond, all are forgotten and synced again.
const KNOWN_DIRS: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Directory<F: Files> {
    pub(super) files: F,
    pub(super) open: Descriptors<OpenFile<F::File>>,
    /// Directories whose own names are known to be durable, up to the root.
    durable: Mutex<HashSet<Box<str>>>,
    staged: AtomicBool,
    /// Whether the file system can't tell cached bytes from bytes on disk.
    pub(super) waits_always: AtomicBool,
    /// Memory for reads.
    pub(super) buffers: Arc<Buffers>,
}

impl<F: Files> Directory<F> {
    /// Opens a directory, and removes unfinished files of crashed processes.
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

    /// Behaves like on a file system without unnamed files.
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
                // Another process removed an empty directory that this process had made.
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
        // Also when the key was taken: the creator may have died before the sync.
        self.files.sync_dir(dir)?;
        for parent in parents.iter().rev() {
            self.files.sync_dir(parent)?;
        }
        self.remember(dir);
        linked
    }

    /// Makes `dir` and the directories above. Gives the directories to sync before any counts as durable:
    /// an existing directory may come from a process that died before the sync.
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
        locked(&self.durable)
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
                    // A network file system may have repeated the call after a lost answer.
                    Err(Errno::EXIST) if self.files.state(&file)?.names > 1 => Ok(()),
                    linked => linked,
                },
            );
        if let Err(errno) = self.files.remove(&staged) {
            // The object is complete, and the next open removes the file.
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
                // Also without a file: a process that died may have removed the file without the sync.
                match self.files.sync_dir(parent(path)) {
                    Err(errno) if !absent(errno) => Err(errno),
                    Ok(()) | Err(_) => Ok(()),
                }
            }
        };
        removed.map_err(|errno| Error::from_errno(errno, "delete object", key))
    }

    /// Syncs the directories of objects. Contents are synced before a file gets its name.
    pub(super) fn make_durable(&self, keys: &[Key]) -> std::result::Result<(), Error> {
        let holding: BTreeSet<&str> = keys.iter().map(|key| parent(key.as_str())).collect();
        let mut all = holding.clone();
        for dir in &holding {
            let mut dir = *dir;
            while !dir.is_empty() && !self.known().contains(dir) {
                dir = parent(dir);
                all.insert(dir);
            }
        }
        // Lower directories first: each is an entry of the directory above.
        for dir in all.iter().rev() {
            match self.files.sync_dir(dir) {
                Ok(()) | Err(Errno::NOENT | Errno::NOTDIR) => {}
                Err(errno) => return Err(Error::from_errno(errno, "settle objects below", dir)),
            }
        }
        Ok(())
    }

    /// Removes the empty directories below `dir`, and `dir`, and forgets that they were durable.
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
            // Names that are no keys belong to other programs.
            if Key::new(below.as_str()).is_ok() {
                self.remove_empty(&below)?;
            }
        }
        if dir.is_empty() {
            return Ok(());
        }
        match self.files.remove_dir(dir) {
            // Another process removed the directory, or created an entry.
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Lists a directory: objects into `objects`, directories below into `dirs`.
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
                // Staging, or files of other programs.
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
