//! Waits for absent chunks: the agent gets a request, and pins the chunk for the reader before its
//! answer.
//!
//! Must hold: a wait ends by its deadline, and no pin is set for its reader afterwards.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dl_node::{
    FromAgent, Gauge, HINTS_MAX, PinPage, Pinned, ToAgent, Want, WantFiles, milliseconds,
};
use dl_runtime::since_boot;

use super::attach::{Attached, Channel, Refusals};

/// The pause in waits after a failed wait, and in the requests of orders after refusals.
const RETRY_DELAY: Duration = Duration::from_secs(2);

/// Refused chunks in a row before the pause: a single chunk may be damaged or gone.
const REFUSALS_MAX: u32 = 3;

/// The longest silence of an agent that still gets requests.
const SILENCE_MAX: Duration = Duration::from_secs(3);

impl Attached {
    /// Waits for a chunk, or for a file of the chunk; none without an answer in time. `hints` are
    /// the chunks needed next.
    pub(super) fn want(&self, chunk: u32, file: u32, hints: &[u32]) -> Option<Pinned<'_>> {
        let began = since_boot();
        let since = milliseconds(began);
        if self.is_silent(since) {
            return None;
        }
        // The waits of other threads count: more than the connections follow one another.
        let until = since_boot().saturating_add(self.patience);
        let (mut channel, beside) = self.for_wait()?;
        // The chunk may have arrived through another thread.
        if let Some(pinned) = self.maps.pin(chunk) {
            return Some(pinned);
        }
        if since_boot() >= until {
            return None;
        }
        let pins = beside.unwrap_or(&self.maps.pins);
        pins.set(Gauge::AwaitedSince, since);
        pins.set(Gauge::Awaited, u64::from(chunk) + 1);
        let id = channel.begin(pins);
        let hints = hints.get(..HINTS_MAX).unwrap_or(hints).to_vec();
        let patience = milliseconds(until.saturating_sub(since_boot()));
        let want = ToAgent::Want(Want { id, chunk, file, patience, hints });
        let asked = channel.ask(&want, until, |answer| match answer {
            FromAgent::Here { id: of } if of == id => Some(true),
            FromAgent::NotHere { id: of, reason } if of == id => {
                tracing::debug!(chunk, reason, "the agent refused a chunk");
                Some(false)
            }
            _ => None,
        });
        match asked {
            Ok(is_here) => self.note_answer(&mut channel.refusals, chunk, is_here),
            Err(why) => self.pause_waits(&why),
        }
        let slot = pins.end_wait();
        pins.set(Gauge::Awaited, 0);
        count_wait(pins, began);
        Some(self.maps.take_over(pins, slot?))
    }

    /// Waits for files, which may come without their chunks. Gives their slot, and the offset of
    /// each file in the slot; none if no file came.
    pub(super) fn want_files(&self, files: Vec<u32>) -> Option<(Pinned<'_>, Vec<u32>)> {
        let now = since_boot();
        let until = now.saturating_add(self.patience);
        let mut channel = self.channel()?;
        if files.is_empty() || self.is_silent(milliseconds(now)) {
            return None;
        }
        let pins = &self.maps.pins;
        let id = channel.begin(pins);
        let want = ToAgent::WantFiles(WantFiles { id, files });
        let asked = channel.ask(&want, until, |answer| match answer {
            FromAgent::HereFiles { id: of, offsets } if of == id => Some(offsets),
            _ => None,
        });
        let offsets = asked.unwrap_or_else(|why| {
            self.pause_waits(&why);
            Vec::new()
        });
        count_wait(pins, now);
        let pinned = self.maps.take_over(pins, pins.end_wait()?);
        Some((pinned, offsets))
    }

    /// Whether the agent is silent, or a wait has just failed.
    pub(super) fn is_silent(&self, now: u64) -> bool {
        let silence = now.saturating_sub(self.maps.table.last_beat());
        silence > milliseconds(SILENCE_MAX) || now < self.paused_until.load(Ordering::Relaxed)
    }

    /// Counts the refused chunks in a row.
    fn note_answer(&self, refusals: &mut Refusals, chunk: u32, is_here: bool) {
        if is_here {
            *refusals = Refusals::default();
        } else if refusals.last.replace(chunk) != Some(chunk) {
            refusals.chunks += 1;
        }
        if refusals.chunks >= REFUSALS_MAX {
            self.refused_until.store(soon(), Ordering::Relaxed);
        }
    }

    /// Whether the agent has just refused chunk after chunk.
    pub(super) fn is_refusing(&self, now: u64) -> bool {
        now < self.refused_until.load(Ordering::Relaxed)
    }

    /// Starts a pause after a failed wait.
    fn pause_waits(&self, why: &io::Error) {
        tracing::debug!(%why, "the agent does not answer");
        self.paused_until.store(soon(), Ordering::Relaxed);
    }
}

/// The end of a pause that begins now.
fn soon() -> u64 {
    milliseconds(since_boot().saturating_add(RETRY_DELAY))
}

fn count_wait(pins: &PinPage, began: Duration) {
    let waited = since_boot().saturating_sub(began);
    pins.add(Gauge::WaitedMicros, waited.as_micros() as u64);
}

impl Channel {
    fn begin(&mut self, pins: &PinPage) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        pins.begin_wait(id);
        id
    }

    /// Sends a request, and waits for its answer. `answer_of` gives none for the answers to earlier
    /// waits.
    pub(super) fn ask<T>(
        &self,
        want: &ToAgent,
        until: Duration,
        answer_of: impl Fn(FromAgent) -> Option<T>,
    ) -> io::Result<T> {
        self.socket.send(want, &[], until.saturating_sub(since_boot()))?;
        loop {
            let left = until.saturating_sub(since_boot());
            let Some((came, _)) = self.socket.receive::<FromAgent>(left)? else {
                return Err(io::ErrorKind::ConnectionReset.into());
            };
            if let Some(answer) = answer_of(came) {
                return Ok(answer);
            }
        }
    }
}
