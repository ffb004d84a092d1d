//! The files of an epoch of a task: from the cache of the node, and in whole chunks from the servers
//! while the agent gives no absent chunk.
//!
//! Must hold: an epoch is as fast as without a task in any state of the agent. Beside the cache,
//! memory holds at most two groups. The cache serves again once the agent can.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dl_runtime::{locked, since_boot};

use crate::epoch::{FileRead, FileSource};
use crate::error::Error;
use crate::order::Cursor;
use crate::remote::{EpochReader, RemoteDataset, read_separately};
use crate::snapshot::Snapshot;
use crate::worker::{AgentOrder, AgentReader, Obstacle};

/// Time between two checks of the agent during reads from the servers.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The files of an order for the current process.
#[derive(Debug)]
pub(super) struct TaskSource {
    remote: Arc<RemoteDataset>,
    snapshot: Arc<Snapshot>,
    order: AgentOrder,
    /// At the first position.
    cursor: Cursor,
    direct: Mutex<Direct>,
}

/// The reads from the servers.
#[derive(Debug, Default)]
struct Direct {
    reader: Option<Arc<EpochReader>>,
    /// The position from which on the agent serves again.
    until: Option<u64>,
    /// The time of the next check of the agent, since boot.
    next_look: Duration,
    /// The highest position of the caller. Files before this position may come from the agent.
    position: u64,
}

impl TaskSource {
    pub(super) fn new(
        remote: Arc<RemoteDataset>,
        snapshot: Arc<Snapshot>,
        worker: Arc<AgentReader>,
        cursor: Cursor,
    ) -> Self {
        let order = AgentOrder::new(worker, &cursor);
        let direct = Direct { position: cursor.position(), ..Direct::default() };
        Self { remote, snapshot, order, cursor, direct: Mutex::new(direct) }
    }

    /// The reads from the servers at a position, unless the agent serves.
    fn direct_at(&self, position: u64) -> Option<Arc<EpochReader>> {
        let mut direct = locked(&self.direct);
        direct.position = direct.position.max(position);
        let reader = Arc::clone(direct.reader.as_ref()?);
        if let Some(until) = direct.until {
            if position >= until {
                (direct.reader, direct.until) = (None, None);
                return None;
            }
            return Some(reader);
        }
        let now = since_boot();
        let is_due = now >= direct.next_look;
        if is_due {
            direct.next_look = now.saturating_add(POLL_INTERVAL);
        }
        drop(direct);
        if is_due && self.order.obstacle().is_none() {
            // The agent fetches from the end of the planned groups on.
            let until = reader.end_ahead().unwrap_or(position);
            locked(&self.direct).until = Some(until);
            self.order.pass(until);
        } else {
            self.order.pass(position);
        }
        Some(reader)
    }

    /// Begins reads from the servers at the highest position; none if the agent can serve.
    fn begin_direct(&self) -> Result<Option<Arc<EpochReader>>, Error> {
        let Some(obstacle) = self.order.obstacle() else { return Ok(None) };
        let mut direct = locked(&self.direct);
        if let Some(reader) = &direct.reader {
            return Ok(Some(Arc::clone(reader)));
        }
        self.note(obstacle);
        let mut cursor = self.cursor.clone();
        cursor.seek(direct.position);
        let worker = Arc::clone(self.order.worker());
        let is_elsewhere = Box::new(move |chunk| worker.has(chunk));
        let snapshot = Arc::clone(&self.snapshot);
        let reader = Arc::new(EpochReader::new(&self.remote, snapshot, cursor, is_elsewhere)?);
        direct.next_look = since_boot().saturating_add(POLL_INTERVAL);
        direct.reader = Some(Arc::clone(&reader));
        Ok(Some(reader))
    }

    /// Notes a group that does not fit, once for a dataset.
    fn note(&self, obstacle: Obstacle) {
        tracing::debug!(?obstacle, "reading an epoch from the servers");
        let Obstacle::LargeGroup { most } = obstacle else { return };
        if self.order.worker().is_first_note() {
            let address = self.remote.address();
            let group = self.cursor.order().settings().group.min(self.snapshot.chunks());
            self.remote.note(&format!(
                "read {address}: a group of {group} chunks does not fit into the memory of the node's \
                 agent, which has room for {most}: the other chunks come from the servers; give the \
                 agent more memory, or choose smaller groups"
            ));
        }
    }

    fn read_separately(&self, number: u32) -> FileRead {
        let read = || read_separately(&self.remote, &self.snapshot, number);
        self.order.worker().uncached(number, read)
    }
}

impl FileSource for TaskSource {
    fn read(&self, position: u64, number: u32) -> Option<FileRead> {
        let worker = self.order.worker();
        let reader = match self.direct_at(position) {
            Some(reader) => reader,
            None => {
                if let Some(bytes) = self.order.read(position, number) {
                    return Some(Ok(Ok(bytes)));
                }
                match self.begin_direct() {
                    Ok(Some(reader)) => reader,
                    Ok(None) => return Some(self.read_separately(number)),
                    Err(error) => return Some(Err(error)),
                }
            }
        };
        let taken = worker.uncached(number, || reader.take_at(position, number))?;
        if let Some(read) = taken.read() {
            if let Ok(Ok(bytes)) = &read {
                worker.count_fallback(bytes.len());
            }
            return Some(read);
        }
        Some(match worker.read(number) {
            Some(bytes) => Ok(Ok(bytes)),
            None => self.read_separately(number),
        })
    }

    fn pass(&self, position: u64) {
        if let Some(reader) = self.direct_at(position) {
            if reader.is_behind(position) {
                // The caller found the files of the groups elsewhere.
                let mut direct = locked(&self.direct);
                (direct.reader, direct.until) = (None, None);
            }
        } else {
            self.order.pass(position);
        }
    }

    fn skip(&self, position: u64) {
        let reader = locked(&self.direct).reader.clone();
        if let Some(reader) = reader {
            reader.skip(position);
        }
    }

    fn read_out_of_order(&self, number: u32) -> Option<FileRead> {
        let reader = locked(&self.direct).reader.clone();
        let reader = match reader {
            Some(reader) => reader,
            None => match self.begin_direct() {
                Ok(reader) => reader?,
                Err(error) => return Some(Err(error)),
            },
        };
        let read = reader.read_out_of_order(number)?;
        if let Ok(Ok(bytes)) = &read {
            self.order.worker().count_fallback(bytes.len());
        }
        Some(read)
    }
}
