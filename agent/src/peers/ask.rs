//! Requests to one other agent.
//!
//! Must hold: each request ends by its deadline; a cancelled request writes nothing any more.

use std::sync::atomic::Ordering;
use std::time::Duration;

use dl_runtime::{Clock, SystemClock, since_boot};
use tokio::sync::mpsc;

use super::frame::Request;
use super::incoming::{Incoming, IncomingFiles};
use super::line::{Event, Pending, What};
use super::link::Link;

/// Time limit for waiting for earlier requests.
const TURN: Duration = Duration::from_secs(5);

/// Time limit of the other agent for a whole request. Afterwards, only chunks it keeps are
/// requested for `AVOIDED`.
const WAIT_MAX: Duration = Duration::from_secs(6);
const AVOIDED: Duration = Duration::from_secs(15);

/// Time limit for files without their chunks.
const FILES: Duration = Duration::from_millis(250);

/// Time limit for a sign of life from an agent fetching a chunk for this agent.
const SIGN: Duration = Duration::from_secs(2);

/// The result of a request for a chunk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Got {
    /// The chunk is in its slot, and correct.
    Whole,
    /// The other agent neither has the chunk nor fetches it.
    Elsewhere,
    /// There is no connection.
    Away,
    /// The answer took too long or broke off: the first `right` files are correct, and nothing more
    /// is written.
    Broken { right: usize, why: &'static str },
}

impl Link {
    /// Requests a chunk into its slot. `is_right` is called with the growing number of correct
    /// files.
    pub(crate) async fn chunk(
        &self,
        chunk: u32,
        incoming: Incoming,
        is_right: impl Fn(usize),
    ) -> Got {
        let clock = SystemClock::new();
        let permit = tokio::select! {
            permit = self.transfers.acquire() => permit.ok(),
            () = clock.sleep(TURN) => None,
        };
        let (began, most) = (since_boot(), self.line().most());
        if permit.is_none() {
            self.counts.slow.fetch_add(1, Ordering::Relaxed);
            return Got::Broken { right: 0, why: "too many chunks come at the same time" };
        }
        let mut permit = permit;
        let Ok(_open) = self.open.try_acquire() else { return Got::Away };
        let request = |number| Request::Chunk { number, chunk }.to_bytes().to_vec();
        let asked = self.ask(request, What::Coming(incoming));
        let Some((number, mut events)) = asked else { return Got::Away };
        let giving_up = GivingUp { link: self, number };
        let (mut deadline, mut right, mut has_waited) = (began.saturating_add(most), 0, false);
        loop {
            let left = deadline.saturating_sub(since_boot());
            let event = tokio::select! {
                event = events.recv() => event,
                () = clock.sleep(left) => {
                    self.counts.slow.fetch_add(1, Ordering::Relaxed);
                    let soon = since_boot().saturating_add(most);
                    let right = giving_up.now(soon).unwrap_or(right);
                    if has_waited {
                        self.line().avoided_until = since_boot().saturating_add(AVOIDED);
                    }
                    return Got::Broken { right, why: "it takes too long" };
                }
            };
            match event {
                Some(Event::Wait) => {
                    // The chunk is delayed: other transfers may go first.
                    permit = None;
                    has_waited = true;
                    let last = began.saturating_add(WAIT_MAX);
                    deadline = since_boot().saturating_add(SIGN.max(most)).min(last);
                }
                Some(Event::Files(_)) => {}
                Some(Event::Right(files)) => {
                    right = files;
                    is_right(right);
                }
                Some(Event::Whole) => {
                    drop(permit);
                    if !has_waited {
                        self.line().took(since_boot().saturating_sub(began));
                    }
                    return Got::Whole;
                }
                Some(Event::Elsewhere) => {
                    self.line().kept.forget(chunk);
                    return Got::Elsewhere;
                }
                Some(Event::Damaged) => {
                    self.counts.damaged.fetch_add(1, Ordering::Relaxed);
                    return Got::Broken { right, why: "its bytes are damaged" };
                }
                None => return Got::Broken { right, why: "the connection ended" },
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
        let (number, mut events) = self.ask(request, What::Files(incoming.clone()))?;
        let _giving_up = GivingUp { link: self, number };
        let mut places = None;
        let whole = async {
            loop {
                match events.recv().await {
                    Some(Event::Files(told)) => places = Some(told),
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
            () = SystemClock::new().sleep(FILES) => {
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
        what: What,
    ) -> Option<(u32, mpsc::UnboundedReceiver<Event>)> {
        let mut line = self.line();
        let number = line.next;
        line.asks.as_ref()?.try_send(request(number).into()).ok()?;
        line.next = number.wrapping_add(1);
        let (events, told) = mpsc::unbounded_channel();
        line.pending.insert(number, Pending { what, events });
        Some((number, told))
    }
}

/// Cancels a request when dropped.
struct GivingUp<'a> {
    link: &'a Link,
    number: u32,
}

impl GivingUp<'_> {
    /// Cancels an open request and returns the number of correct files. Cancelling was too early if
    /// the answer continues before `soon`.
    fn now(self, soon: Duration) -> Option<usize> {
        let mut line = self.link.line();
        let mut pending = line.pending.remove(&self.number)?;
        line.given_up = Some((self.number, soon));
        Some(pending.coming()?.right())
    }
}

impl Drop for GivingUp<'_> {
    fn drop(&mut self) {
        self.link.line().pending.remove(&self.number);
    }
}
