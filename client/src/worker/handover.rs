//! Snapshots handed from one process to another by a descriptor.
//!
//! Must hold: the receiver maps a file that no process changes: a file of the snapshot cache, or
//! sealed memory.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;

use dl_node::{Access, Advice, SharedMemory, advise};

use crate::snapshot::{Snapshot, SnapshotCache};

/// A descriptor for another process to map a snapshot: of its file in the cache, else of a copy in
/// memory.
///
/// # Errors
/// Errors of the memory for the copy.
pub fn snapshot_file(snapshot: &Snapshot, cache: Option<&SnapshotCache>) -> io::Result<OwnedFd> {
    if let Some(file) = cache.and_then(|cache| cache.file_of(snapshot)) {
        let bytes = snapshot.bytes();
        advise(bytes.as_ptr(), bytes.len(), Advice::Collapse);
        return Ok(File::into(file));
    }
    let bytes = snapshot.bytes();
    let (memory, file) = SharedMemory::create("diesel-snapshot", bytes.len(), Access::Maker)?;
    memory.populate(0, bytes.len());
    memory.write(0, bytes);
    (0..memory.huge_pages()).for_each(|page| _ = memory.collapse(page));
    Ok(file)
}
