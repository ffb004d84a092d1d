//! Requests to one other agent.
//!
//! Must hold: each request ends by its deadline; a cancelled request writes nothing any more.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::mpsc;

use super::frame::Request;
use super::incoming::{Incoming, IncomingFiles};
use super::link::Link;
use super::link_state::{Destination, Event, Pending};

/// Time limit for waiting for earlier requests.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// Time limit of the other agent for a whole request. Afterwards, only chunks it keeps are
/// requested for `AVOIDED`.
const WAIT_MAX: Duration = Duration::from_secs(6);
const AVOIDED: Duration = Duration::from_secs(15);

/// Time limit for files without their chunks.
const FILES_TIMEOUT: Duration = Duration::from_millis(250);

/// Time limit for a sign of life from an agent fetching a chunk for this agent.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(2);

/// The result of a request for a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ChunkOutcome {
    /// The chunk is in its slot, and correct.
    Complete,
    /// The other agent neither has the chunk nor fetches it.
    Absent,
    /// There is no connection.
    Disconnected,
    /// The answer took too long or broke off: the first `right` files are correct, and nothing more
    /// is written.
    Failed { right: usize, why: &'static str },
}

impl Link {
    /// Requests a chunk into its slot. `is_right` is called with the growing number of correct
    /// files.
    pub(crate) async fn chunk(
        &self,
        chunk: u32,
        incoming: Incoming,
        is_right: impl Fn(usize),
    ) -> ChunkOutcome {
        let clock = &self.clock;
        let mut permit = tokio::select! {
            permit = self.transfers.acquire() => permit.ok(),
            () = clock.sleep(TURN_TIMEOUT) => None,
        };
        let (began, most) = (self.now(), self.state().most());
        if permit.is_none() {
            self.counts.slow.fetch_add(1, Ordering::Relaxed);
            return ChunkOutcome::Failed { right: 0, why: "too many concurrent transfers" };
        }
        let Ok(_open) = self.open.try_acquire() else { return ChunkOutcome::Disconnected };
        let request = |number| Request::Chunk { number, chunk }.to_bytes().to_vec();
        let sent = self.ask(request, Destination::Coming(incoming));
        let Some((number, mut events)) = sent else { return ChunkOutcome::Disconnected };
        let cancellation = Cancellation { link: self, number };
        let (mut deadline, mut right, mut has_waited) = (began.saturating_add(most), 0, false);
        loop {
            let left = deadline.saturating_sub(self.now());
            let event = tokio::select! {
                event = events.recv() => event,
                () = clock.sleep(left) => {
                    self.counts.slow.fetch_add(1, Ordering::Relaxed);
                    let soon = self.now().saturating_add(most);
                    let right = cancellation.now(soon).unwrap_or(right);
                    if has_waited {
                        self.state().avoided_until = self.now().saturating_add(AVOIDED);
                    }
                    return ChunkOutcome::Failed { right, why: "it timed out" };
                }
            };
            match event {
                Some(Event::Wait) => {
                    // The chunk is delayed: other transfers may go first.
                    drop(permit.take());
                    has_waited = true;
                    let last = began.saturating_add(WAIT_MAX);
                    deadline = self.now().saturating_add(HEARTBEAT_TIMEOUT.max(most)).min(last);
                }
                Some(Event::Files(_)) => {}
                Some(Event::Right(files)) => {
                    right = files;
                    is_right(right);
                }
                Some(Event::Whole) if !has_waited => {
                    self.state().took(self.now().saturating_sub(began));
                    return ChunkOutcome::Complete;
                }
                ended => return self.outcome(ended, chunk, right),
            }
        }
    }

    /// The outcome of a request whose last event has come; none when the connection ended.
    fn outcome(&self, last: Option<Event>, chunk: u32, right: usize) -> ChunkOutcome {
        match last {
            Some(Event::Whole) => ChunkOutcome::Complete,
            Some(Event::Elsewhere) => {
                self.state().kept.bits.remove(chunk);
                ChunkOutcome::Absent
            }
            Some(Event::Damaged) => {
                self.counts.damaged.fetch_add(1, Ordering::Relaxed);
                ChunkOutcome::Failed { right, why: "its bytes are damaged" }
            }
            Some(Event::Wait | Event::Right(_) | Event::Files(_)) | None => {
                ChunkOutcome::Failed { right, why: "the connection ended" }
            }
        }
    }

    /// Requests files without their chunks. Returns the offset of each file in its slot, `u32::MAX`
    /// for an absent file.
    pub(crate) async fn files(&self, incoming: IncomingFiles) -> Option<Vec<u32>> {
        let request = |number| {
            let count = incoming.files.len() as u32;
            let mut request = Request::Files { number, count }.to_bytes().to_vec();
            let numbers = incoming.files.iter().flat_map(|(file, _)| file.to_le_bytes());
            request.extend(numbers);
            request
        };
        let _open = self.open.try_acquire().ok()?;
        let request = &request;
        let (number, mut events) = self.ask(request, Destination::Files(incoming.clone()))?;
        let _cancellation = Cancellation { link: self, number };
        let mut places = None;
        let whole = async {
            loop {
                match events.recv().await {
                    Some(Event::Files(offsets)) => places = Some(offsets),
                    Some(Event::Whole) => return true,
                    Some(Event::Right(_) | Event::Wait) => {}
                    Some(Event::Damaged) => {
                        self.counts.damaged.fetch_add(1, Ordering::Relaxed);
                        return false;
                    }
                    Some(Event::Elsewhere) | None => return false,
                }
            }
        };
        let is_whole = tokio::select! {
            is_whole = whole => is_whole,
            () = self.clock.sleep(FILES_TIMEOUT) => {
                self.counts.slow.fetch_add(1, Ordering::Relaxed);
                false
            }
        };
        places.filter(|_| is_whole)
    }

    /// Sends a request under a new number; none without a connection.
    fn ask(
        &self,
        request: impl Fn(u32) -> Vec<u8>,
        destination: Destination,
    ) -> Option<(u32, mpsc::UnboundedReceiver<Event>)> {
        let mut state = self.state();
        let number = state.next;
        state.asks.as_ref()?.try_send(request(number).into()).ok()?;
        state.next = number.wrapping_add(1);
        let (events, receiver) = mpsc::unbounded_channel();
        state.pending.insert(number, Pending { destination, events });
        Some((number, receiver))
    }
}

/// Cancels a request when dropped: the other agent is told to send no more of its answer.
struct Cancellation<'a> {
    link: &'a Link,
    number: u32,
}

impl Cancellation<'_> {
    /// Cancels an open request and returns the number of correct files. Cancelling was too early if
    /// the answer continues before `soon`.
    fn now(self, soon: Duration) -> Option<usize> {
        let mut state = self.link.state();
        let mut pending = state.forget(self.number)?;
        state.cancelled = Some((self.number, soon));
        Some(pending.coming()?.right())
    }
}

impl Drop for Cancellation<'_> {
    fn drop(&mut self) {
        self.link.state().forget(self.number);
    }
}
