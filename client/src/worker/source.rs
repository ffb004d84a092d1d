//! The files of an epoch out of shared memory, which the agent fills along the order.
//!
//! Must hold: a file that the agent can't give in time is read by the other source, and the next one
//! is asked of the agent again.

use std::sync::Arc;

use super::read::Worker;
use crate::epoch::{FileRead, FileSource};
use crate::error::Error;
use crate::order::Cursor;

/// Reads one file from the servers, by its number.
type ReadElsewhere = Box<dyn Fn(u32) -> FileRead + Send + Sync>;

/// Reads of one process along an order.
struct SharedSource {
    worker: Arc<Worker>,
    /// The rank's worker that the process is.
    of: crate::order::Worker,
    elsewhere: ReadElsewhere,
}

impl std::fmt::Debug for SharedSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedSource").field("of", &self.of).finish_non_exhaustive()
    }
}

/// The shared memory of a worker, for the files that a cursor gives.
pub(crate) fn open(
    worker: Arc<Worker>,
    cursor: &Cursor,
    elsewhere: ReadElsewhere,
) -> Result<Box<dyn FileSource>, Error> {
    let of = cursor.worker();
    worker.begin(cursor.order(), cursor.rank(), of.of_rank(cursor.position()));
    Ok(Box::new(SharedSource { worker, of, elsewhere }))
}

impl FileSource for SharedSource {
    fn read(&self, position: u64, number: u32) -> Option<FileRead> {
        self.worker.reached(self.of.of_rank(position));
        Some(match self.worker.read(number) {
            Some(bytes) => Ok(Ok(bytes)),
            None => self.worker.elsewhere(number, || (self.elsewhere)(number)),
        })
    }

    fn read_ahead(&self, _: u32) -> Option<FileRead> {
        // Reads by path go through the worker as well.
        None
    }
}
