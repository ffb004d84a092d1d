//! The files of an epoch from shared memory, filled by the agent along the order.
//!
//! Must hold: the servers give a file if the agent can't in time, and the next read asks the agent
//! again.

use std::sync::{Arc, Once};

use super::message::Begin;
use super::read::AgentReader;
use crate::epoch::{FileRead, FileSource};
use crate::error::Error;
use crate::order::Cursor;

/// Reads a file from the servers, by number.
type ReadUncached = Box<dyn Fn(u32) -> FileRead + Send + Sync>;

/// The reads of a process along an order.
struct SharedSource {
    worker: Arc<AgentReader>,
    /// The message that announces the order; none if too long.
    begin: Option<Begin>,
    begun: Once,
    /// The rank's worker in the process.
    of: crate::order::Worker,
    uncached: ReadUncached,
}

impl std::fmt::Debug for SharedSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedSource").field("of", &self.of).finish_non_exhaustive()
    }
}

/// The shared memory as the source of a cursor's files.
pub(crate) fn open(
    worker: Arc<AgentReader>,
    cursor: &Cursor,
    uncached: ReadUncached,
) -> Result<Box<dyn FileSource>, Error> {
    let of = cursor.worker();
    let begin = Begin::of(cursor.order(), cursor.rank(), of.of_rank(cursor.position()));
    Ok(Box::new(SharedSource { worker, begin, begun: Once::new(), of, uncached }))
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
            None => self.worker.uncached(number, || (self.uncached)(number)),
        })
    }

    fn pass(&self, position: u64) {
        let position = self.of.of_rank(position);
        // Only at the first read: a process whose children read would stay at the begin, and delay
        // the order.
        self.begun.call_once(|| {
            if let Some(begin) = self.begin.clone() {
                self.worker.begin(Begin { position, ..begin });
            }
        });
        self.worker.reached(position);
    }

    fn read_out_of_order(&self, _: u32) -> Option<FileRead> {
        // Reads by path go through the worker as well.
        None
    }
}
