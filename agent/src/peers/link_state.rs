//! The state of a link, and of the requests on it.
//!
//! Must hold: bytes are accepted in the order of their chunk, and only for open requests.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::frame::{Request, invalid_message};
use super::incoming::{Incoming, IncomingFiles};
use crate::place::ChunkBits;

/// Number of stored answer times, and the number needed for an estimate.
const TIMES: usize = 32;
const TIMES_MIN: usize = 8;

/// Time limit for a chunk: a multiple of the usual time with a lower bound, or a fixed time while
/// the usual time is unknown.
const HEDGE_FACTOR: u32 = 3;
const HEDGE_MIN: Duration = Duration::from_millis(100);
const HEDGE_UNKNOWN: Duration = Duration::from_secs(1);

/// The state of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    Connecting,
    Up,
    Down(String),
    /// The other agent announced its end.
    Gone,
}

#[derive(Debug)]
pub(super) struct LinkState {
    pub(super) phase: Phase,
    /// On the agent's clock, as all times here.
    pub(super) since: Duration,
    pub(super) asks: Option<mpsc::Sender<Bytes>>,
    pub(super) pending: HashMap<u32, Pending>,
    pub(super) next: u32,
    /// Durations of the last chunks, from the request to the last byte.
    pub(super) times: VecDeque<Duration>,
    /// Lower bound of the time limit: doubled each time a cancelled chunk arrives soon after.
    pub(super) least: Duration,
    /// The number of the last cancelled request, and the time until which an answer counts as soon,
    /// since boot.
    pub(super) cancelled: Option<(u32, Duration)>,
    /// Until then only kept chunks are requested, because the agent's fetches are slow.
    pub(super) avoided_until: Duration,
    /// Time of the last message from the other agent.
    pub(super) heard: Duration,
    /// Begin of the connection.
    pub(super) connected: Duration,
    pub(super) kept: Kept,
}

/// The last list of chunks kept by the other agent.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) generation: u32,
    pub(super) can_keep: bool,
    pub(super) bits: ChunkBits,
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) destination: Destination,
    pub(super) events: mpsc::UnboundedSender<Event>,
}

/// The destination of an answer.
#[derive(Debug)]
pub(super) enum Destination {
    /// A chunk, or files after their bitmap has arrived.
    Coming(Incoming),
    Files(IncomingFiles),
}

impl Pending {
    pub(super) fn coming(&mut self) -> Option<&mut Incoming> {
        match &mut self.destination {
            Destination::Coming(incoming) => Some(incoming),
            Destination::Files(_) => None,
        }
    }
}

#[derive(Debug)]
pub(super) enum Event {
    /// The other agent fetches the chunk.
    Wait,
    /// The number of correct files.
    Right(usize),
    /// The offsets of the files.
    Files(Vec<u32>),
    Whole,
    Elsewhere,
    Damaged,
}

impl LinkState {
    /// Of a link before its first connection.
    pub(super) fn new(now: Duration) -> Self {
        Self {
            phase: Phase::Connecting,
            since: now,
            asks: None,
            pending: HashMap::new(),
            next: 0,
            times: VecDeque::new(),
            least: HEDGE_MIN,
            cancelled: None,
            avoided_until: Duration::ZERO,
            heard: now,
            connected: now,
            kept: Kept::default(),
        }
    }

    pub(super) fn turn(&mut self, phase: Phase, now: Duration) {
        (self.phase, self.since) = (phase, now);
    }

    /// The usual time of a chunk, if known.
    pub(super) fn usual(&self) -> Option<Duration> {
        if self.times.len() < TIMES_MIN {
            return None;
        }
        let mut times: Vec<Duration> = self.times.iter().copied().collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    }

    /// The time limit for a chunk.
    pub(super) fn most(&self) -> Duration {
        let of = |usual: Duration| usual.saturating_mul(HEDGE_FACTOR).max(self.least);
        self.usual().map_or(HEDGE_UNKNOWN, of)
    }

    pub(super) fn took(&mut self, time: Duration) {
        self.times.truncate(TIMES - 1);
        self.times.push_front(time);
    }

    /// Checks the head of a piece: the piece continues its chunk, or belongs to a cancelled
    /// request.
    pub(super) fn expect(
        &mut self,
        number: u32,
        offset: u32,
        length: u32,
        now: Duration,
    ) -> io::Result<()> {
        match self.pending.get_mut(&number).map(Pending::coming) {
            None => {
                self.learn(number, now);
                Ok(())
            }
            Some(Some(incoming)) if incoming.expects(offset, length) => Ok(()),
            Some(_) => Err(invalid_message()),
        }
    }

    /// Adapts to the answer of a cancelled request: if it comes soon, the time limit was too short, for
    /// example on a busy machine.
    pub(super) fn learn(&mut self, number: u32, now: Duration) {
        if let Some((_, soon)) = self.cancelled.take_if(|(of, _)| *of == number)
            && now < soon
        {
            self.least = self.least.saturating_mul(2).min(HEDGE_UNKNOWN);
        }
    }

    /// Handles the answer that a chunk is absent, which is valid only before the first byte; after a
    /// cancellation, the answer that the chunk would have come.
    pub(super) fn elsewhere(&mut self, number: u32, now: Duration) -> io::Result<()> {
        let coming = self.pending.get_mut(&number).and_then(Pending::coming);
        if coming.is_some_and(|incoming| incoming.has_begun()) {
            return Err(invalid_message());
        }
        self.learn(number, now);
        self.close(number, Event::Elsewhere);
        Ok(())
    }

    /// Handles the bitmap of files: the announced length must match, unless the request was
    /// cancelled.
    pub(super) fn begin_files(&mut self, number: u32, length: u32, comes: &[u8]) -> io::Result<()> {
        let Some(pending) = self.pending.get_mut(&number) else { return Ok(()) };
        let Destination::Files(files) = &pending.destination else { return Err(invalid_message()) };
        let (incoming, places) = files.begin(comes);
        if incoming.left() != length {
            return Err(invalid_message());
        }
        let _ = pending.events.send(Event::Files(places));
        pending.destination = Destination::Coming(incoming);
        if length == 0 {
            self.close(number, Event::Whole);
        }
        Ok(())
    }

    /// Cancels an open request.
    pub(super) fn forget(&mut self, number: u32) -> Option<Pending> {
        let pending = self.pending.remove(&number)?;
        if let Some(asks) = &self.asks {
            let forget = Request::Forget { number }.to_bytes();
            // A full queue costs only the rest of the answer.
            let _ = asks.try_send(Bytes::copy_from_slice(&forget));
        }
        Some(pending)
    }

    pub(super) fn notify(&self, number: u32, event: Event) {
        if let Some(pending) = self.pending.get(&number) {
            let _ = pending.events.send(event);
        }
    }

    pub(super) fn close(&mut self, number: u32, event: Event) {
        if let Some(pending) = self.pending.remove(&number) {
            let _ = pending.events.send(event);
        }
    }

    /// Checks newly complete files of a chunk.
    pub(super) fn check(&mut self, number: u32) {
        let Some(pending) = self.pending.get_mut(&number) else { return };
        let Some(incoming) = pending.coming() else { return };
        let before = incoming.right();
        let is_right = incoming.check();
        let (right, is_whole) = (incoming.right(), incoming.is_whole());
        if right > before {
            let _ = pending.events.send(Event::Right(right));
        }
        match (is_right, is_whole) {
            (false, _) => {
                if let Some(pending) = self.forget(number) {
                    let _ = pending.events.send(Event::Damaged);
                }
            }
            (true, true) => self.close(number, Event::Whole),
            (true, false) => {}
        }
    }
}
