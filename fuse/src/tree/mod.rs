//! The tree of the mount over a snapshot: names, attributes and listings. No kernel here.
//!
//! Must hold: each answer follows from the snapshot alone, so any server of the version gives the
//! same answers. The number of an inode is the same at each mount of a version. Memory does not grow
//! with the number of files.

mod node;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use libdiesel::{Child, Error, Snapshot};

use crate::abi::{Attr, FILE_MODE, FILE_TYPE, FOLDER_MODE, FOLDER_TYPE, StatfsOut};
pub(crate) use node::{GENERATIONS, Node, Numbers, TOP, generation_of};

/// The unit of `st_blocks`.
const BLOCK: u64 = 512;

/// The unit of transfers, and of the counts of statfs.
const UNIT: u32 = 4_096;

/// Longest name in a listing, for statfs.
const NAME_MAX: u32 = 255;

const NANOSECONDS: i64 = 1_000_000_000;

/// The first offsets of a listing: `.` and `..`.
const DOTS: u64 = 2;

/// The owner and the permissions of all entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The user.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// Bits taken from all modes.
    pub umask: u32,
}

/// A folder of a dataset at one version.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    snapshot: Arc<Snapshot>,
    numbers: Numbers,
    owner: Owner,
    /// The time of folders: the last change of the version.
    changed: SystemTime,
}

/// An entry of a listing.
#[derive(Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) node: Node,
    pub(crate) name: &'a [u8],
    /// The offset of the next entry.
    pub(crate) next: u64,
}

impl Entry<'_> {
    pub(crate) fn kind(&self) -> u32 {
        match self.node {
            Node::Folder(_) => FOLDER_TYPE,
            Node::File(_) => FILE_TYPE,
        }
    }
}

impl Tree {
    /// The tree of a folder, by its number in the snapshot, in a generation of the mount.
    pub(crate) fn new(snapshot: Arc<Snapshot>, top: u32, owner: Owner, generation: u32) -> Self {
        let (folders, files) = (snapshot.folders(), snapshot.files());
        let numbers = Numbers { generation, top, folders, files };
        let changed = snapshot.version().last_stamp();
        let changed = changed.map_or(UNIX_EPOCH, |stamp| stamp.time());
        Self { snapshot, numbers, owner, changed }
    }

    pub(crate) fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    pub(crate) fn numbers(&self) -> &Numbers {
        &self.numbers
    }

    /// The entry of a folder with the given name; none without an entry.
    pub(crate) fn child(&self, folder: u32, name: &[u8]) -> Result<Option<Node>, Error> {
        Ok(self.snapshot.child(folder, name)?.map(|child| match child {
            Child::Folder(number) => Node::Folder(number),
            Child::File(number) => Node::File(number),
        }))
    }

    /// The attributes of an entry.
    pub(crate) fn attributes(&self, node: Node) -> Result<Attr, Error> {
        let Owner { uid, gid, umask } = self.owner;
        let (mode, size, (seconds, nanoseconds)) = match node {
            Node::Folder(_) => (FOLDER_MODE | 0o755 & !umask, u64::from(UNIT), parts(self.changed)),
            Node::File(number) => {
                let (length, attributes) = self.snapshot.attributes(number)?;
                let mtime = attributes.mtime;
                let time = (mtime.div_euclid(NANOSECONDS), mtime.rem_euclid(NANOSECONDS) as u32);
                let mode = u32::from(attributes.mode) & 0o777 & !umask;
                (FILE_MODE | mode, length, time)
            }
        };
        let time = seconds as u64;
        Ok(Attr {
            ino: self.numbers.inode(node),
            size,
            blocks: size.div_ceil(BLOCK),
            atime: time,
            mtime: time,
            ctime: time,
            atime_ns: nanoseconds,
            mtime_ns: nanoseconds,
            ctime_ns: nanoseconds,
            mode,
            nlink: 1,
            uid,
            gid,
            blksize: UNIT,
            ..Attr::default()
        })
    }

    /// Passes the entries of a folder from an offset on to `take`, until `take` gives false. The
    /// order is fixed: the two dots, the subfolders by name, the files run by run.
    pub(crate) fn list(
        &self,
        folder: u32,
        offset: u64,
        take: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<(), Error> {
        let above = match folder == self.numbers.top {
            true => folder,
            false => self.snapshot.parent(folder)?.unwrap_or(folder),
        };
        for (position, (name, node)) in
            [(&b"."[..], folder), (b"..", above)].into_iter().enumerate()
        {
            let next = position as u64 + 1;
            if next > offset && !take(Entry { node: Node::Folder(node), name, next }) {
                return Ok(());
            }
        }
        let mut skipped = offset.saturating_sub(DOTS);
        let mut next = offset.max(DOTS);
        let folders = self.snapshot.folders_in(folder)?;
        let skip = skipped.min(folders.len() as u64);
        skipped -= skip;
        for number in folders.start.saturating_add(skip as u32)..folders.end {
            next += 1;
            let name = self.snapshot.folder_name(number)?;
            if !take(Entry { node: Node::Folder(number), name, next }) {
                return Ok(());
            }
        }
        let own = self.snapshot.folder_path(folder)?;
        let own = if own.is_empty() { 0 } else { own.len() + 1 };
        for run in self.snapshot.runs_in(folder)? {
            let run = run?;
            let skip = skipped.min(run.len() as u64);
            skipped -= skip;
            let files = run.start.saturating_add(skip as u32)..run.end;
            let mut goes_on = true;
            self.snapshot.paths(files, |number, path| {
                next += 1;
                let name = path.get(own..).unwrap_or_default();
                goes_on = take(Entry { node: Node::File(number), name, next });
                goes_on
            })?;
            if !goes_on {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The size of the version; nothing is free.
    pub(crate) fn sizes(&self) -> StatfsOut {
        let (files, folders) = (self.snapshot.files(), self.snapshot.folders());
        StatfsOut {
            blocks: self.snapshot.file_bytes().div_ceil(UNIT.into()),
            files: u64::from(files) + u64::from(folders),
            bsize: UNIT,
            frsize: UNIT,
            name_max: NAME_MAX,
            ..StatfsOut::default()
        }
    }
}

/// A time in seconds and nanoseconds since 1970.
fn parts(time: SystemTime) -> (i64, u32) {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
}
