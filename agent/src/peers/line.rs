//! How a link stands, and what comes for the requests on it.
//!
//! Must hold: bytes are taken in the order of their chunk, and for requests that were not given up.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::time::Duration;

use bytes::Bytes;
use dl_runtime::since_boot;
use tokio::sync::mpsc;

use super::frame::no_sense;
use super::incoming::{Incoming, IncomingFiles};

/// How often the time of an answer is looked back at, and from how many on it is known.
const TIMES: usize = 32;
const TIMES_MIN: usize = 8;

/// How long a chunk may take to come: so many times the usual time, but at least so long; and as long while
/// the usual time is not known.
const HEDGE_FACTOR: u32 = 3;
const HEDGE_MIN: Duration = Duration::from_millis(100);
const HEDGE_UNKNOWN: Duration = Duration::from_secs(1);

/// How a link stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Phase {
    Connecting,
    Up,
    Down(String),
    /// The other agent said that it ends.
    Gone,
}

#[derive(Debug)]
pub(super) struct Line {
    pub(super) phase: Phase,
    /// Since boot.
    pub(super) since: Duration,
    pub(super) asks: Option<mpsc::Sender<Bytes>>,
    pub(super) pending: HashMap<u32, Pending>,
    pub(super) next: u32,
    /// How long the last chunks took, from the request to the last byte.
    pub(super) times: VecDeque<Duration>,
    /// The least time for a chunk: doubled each time that one came soon after it was given up.
    pub(super) least: Duration,
    /// The chunk that was given up last: its request, and until when it would have come soon, since boot.
    pub(super) given_up: Option<(u32, Duration)>,
    /// Until then it is not asked to fetch anything, as its way to the servers is slow; since boot.
    pub(super) avoided_until: Duration,
    /// When the other agent said something, since boot.
    pub(super) heard: Duration,
    pub(super) kept: Kept,
}

/// The chunks that the other agent keeps, as it said last.
#[derive(Debug, Default)]
pub(super) struct Kept {
    pub(super) generation: u32,
    pub(super) can_keep: bool,
    /// A bit for each chunk.
    pub(super) bits: Vec<u8>,
}

impl Kept {
    pub(super) fn holds(&self, chunk: u32) -> bool {
        let byte = self.bits.get(chunk as usize / 8);
        byte.is_some_and(|byte| byte & (1 << (chunk % 8)) != 0)
    }

    pub(super) fn forget(&mut self, chunk: u32) {
        if let Some(byte) = self.bits.get_mut(chunk as usize / 8) {
            *byte &= !(1 << (chunk % 8));
        }
    }
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) what: What,
    pub(super) events: mpsc::UnboundedSender<Event>,
}

/// What comes for a request.
#[derive(Debug)]
pub(super) enum What {
    /// A chunk, or files of which it is known which come.
    Coming(Incoming),
    Files(IncomingFiles),
}

impl Pending {
    pub(super) fn coming(&mut self) -> Option<&mut Incoming> {
        match &mut self.what {
            What::Coming(incoming) => Some(incoming),
            What::Files(_) => None,
        }
    }
}

#[derive(Debug)]
pub(super) enum Event {
    /// The other agent fetches it.
    Wait,
    /// So many files are right.
    Right(usize),
    /// Where the files come to.
    Files(Vec<u32>),
    Whole,
    Elsewhere,
    Damaged,
}

impl Line {
    /// Of a link that is not tried yet.
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Connecting,
            since: since_boot(),
            asks: None,
            pending: HashMap::new(),
            next: 0,
            times: VecDeque::new(),
            least: HEDGE_MIN,
            given_up: None,
            avoided_until: Duration::ZERO,
            heard: since_boot(),
            kept: Kept::default(),
        }
    }

    pub(super) fn turn(&mut self, phase: Phase) {
        (self.phase, self.since) = (phase, since_boot());
    }

    /// The usual time of a chunk, where it is known.
    pub(super) fn usual(&self) -> Option<Duration> {
        if self.times.len() < TIMES_MIN {
            return None;
        }
        let mut times: Vec<Duration> = self.times.iter().copied().collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied()
    }

    /// How long a chunk may take to come.
    pub(super) fn most(&self) -> Duration {
        let of = |usual: Duration| usual.saturating_mul(HEDGE_FACTOR).max(self.least);
        self.usual().map_or(HEDGE_UNKNOWN, of)
    }

    pub(super) fn took(&mut self, time: Duration) {
        self.times.truncate(TIMES - 1);
        self.times.push_front(time);
    }

    /// A piece comes: of a request that was given up, or the next one of its chunk.
    pub(super) fn expect(&mut self, number: u32, offset: u32, length: u32) -> io::Result<()> {
        match self.pending.get_mut(&number).map(Pending::coming) {
            None => {
                self.learn(number);
                Ok(())
            }
            Some(Some(incoming)) if incoming.expects(offset, length) => Ok(()),
            Some(_) => Err(no_sense()),
        }
    }

    /// Bytes come of a request that was given up: if they come soon, its time was too short, as on a busy
    /// machine.
    pub(super) fn learn(&mut self, number: u32) {
        if let Some((_, soon)) = self.given_up.take_if(|(of, _)| *of == number)
            && since_boot() < soon
        {
            self.least = self.least.saturating_mul(2).min(HEDGE_UNKNOWN);
        }
    }

    /// The chunk is not there: what is said before its first byte.
    pub(super) fn elsewhere(&mut self, number: u32) -> io::Result<()> {
        let coming = self.pending.get_mut(&number).and_then(Pending::coming);
        if coming.is_some_and(|incoming| incoming.has_begun()) {
            return Err(no_sense());
        }
        self.close(number, Event::Elsewhere);
        Ok(())
    }

    /// Files come, those whose bits are set: for a request that was given up, or as many bytes as they have.
    pub(super) fn begin_files(&mut self, number: u32, length: u32, comes: &[u8]) -> io::Result<()> {
        let Some(pending) = self.pending.get_mut(&number) else { return Ok(()) };
        let What::Files(files) = &pending.what else { return Err(no_sense()) };
        let (incoming, places) = files.begin(comes);
        if incoming.left() != length {
            return Err(no_sense());
        }
        let _ = pending.events.send(Event::Files(places));
        pending.what = What::Coming(incoming);
        if length == 0 {
            self.close(number, Event::Whole);
        }
        Ok(())
    }

    pub(super) fn tell(&self, number: u32, event: Event) {
        if let Some(pending) = self.pending.get(&number) {
            let _ = pending.events.send(event);
        }
    }

    pub(super) fn close(&mut self, number: u32, event: Event) {
        if let Some(pending) = self.pending.remove(&number) {
            let _ = pending.events.send(event);
        }
    }

    /// Checks the files of a chunk that are complete now.
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
            (false, _) => self.close(number, Event::Damaged),
            (true, true) => self.close(number, Event::Whole),
            (true, false) => {}
        }
    }
}
