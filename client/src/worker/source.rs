//! The files of an epoch out of shared memory, which the agent fills along the order.
//!
//! Must hold: a file that the agent can't give in time is read by the other source, and the next one
//! is asked of the agent again.

use std::sync::{Arc, Once};

use super::message::Begin;
use super::read::Worker;
use crate::epoch::{FileRead, FileSource};
use crate::error::Error;
use crate::order::Cursor;

/// Reads one file from the servers, by its number.
type ReadElsewhere = Box<dyn Fn(u32) -> FileRead + Send + Sync>;

/// Reads of one process along an order.
struct SharedSource {
    worker: Arc<Worker>,
    /// None for an order that can't be told.
    begin: Option<Begin>,
    begun: Once,
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
    let begin = Begin::of(cursor.order(), cursor.rank(), of.of_rank(cursor.position()));
    Ok(Box::new(SharedSource { worker, begin, begun: Once::new(), of, elsewhere }))
}

impl Drop for SharedSource {
    fn drop(&mut self) {
        if self.begun.is_completed() {
            self.worker.end();
        }
    }
}

impl FileSource for SharedSource {
    fn read(&self, position: u64, number: u32) -> Option<FileRead> {
        self.pass(position);
        Some(match self.worker.read(number) {
            Some(bytes) => Ok(Ok(bytes)),
            None => self.worker.elsewhere(number, || (self.elsewhere)(number)),
        })
    }

    fn pass(&self, position: u64) {
        let position = self.of.of_rank(position);
        // Not before: a process whose children read does not move, and would hold the order up.
        self.begun.call_once(|| {
            if let Some(begin) = self.begin.clone() {
                self.worker.begin(Begin { position, ..begin });
            }
        });
        self.worker.reached(position);
    }

    fn read_ahead(&self, _: u32) -> Option<FileRead> {
        // Reads by path go through the worker as well.
        None
    }
}
