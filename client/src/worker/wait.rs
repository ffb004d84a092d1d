//! Waiting for a chunk that is absent: the agent is asked, and pins the chunk for this reader before
//! it answers.
//!
//! Must hold: a wait ends by its deadline, and no pin is set for its reader afterwards.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use dl_runtime::since_boot;

use super::attach::{Attached, Line};
use super::layout::{Gauge, PinPage, Pinned};
use super::message::{FromAgent, HINTS_MAX, ToAgent, Want, WantFiles, milliseconds};

/// How long nobody waits after a wait that was in vain.
const AGAIN: Duration = Duration::from_secs(2);

/// An agent that gave no sign of life for so long is not asked.
const SILENCE_MAX: Duration = Duration::from_secs(3);

impl Attached {
    /// Waits for a chunk, or for one file of it; none when the agent can't give it in time. `hints`
    /// are chunks that are read next.
    pub(super) fn want(&self, chunk: u32, file: u32, hints: &[u32]) -> Option<Pinned<'_>> {
        let since = milliseconds(since_boot());
        if self.is_silent(since) {
            return None;
        }
        // Waits of other threads count: one follows the other.
        let until = since_boot().saturating_add(self.patience);
        let mut line = self.line()?;
        // It may have come while another thread asked.
        if let Some(pinned) = self.maps.pin(chunk) {
            return Some(pinned);
        }
        if since_boot() >= until {
            return None;
        }
        let pins = &self.maps.pins;
        pins.set(Gauge::AwaitedSince, since);
        pins.set(Gauge::Awaited, u64::from(chunk) + 1);
        let id = line.begin(pins);
        let asked = self.ask(&line, until, id, (chunk, file), hints);
        asked.unwrap_or_else(|why| self.is_in_vain(&why));
        let slot = pins.end_wait();
        pins.set(Gauge::Awaited, 0);
        Some(self.maps.take_over(slot?))
    }

    /// Waits for files that may come without their chunks: the slot that they came into, and where in it
    /// each of them lies; none when none came.
    pub(super) fn want_files(&self, files: Vec<u32>) -> Option<(Pinned<'_>, Vec<u32>)> {
        let now = since_boot();
        let until = now.saturating_add(self.patience);
        let mut line = self.line()?;
        if files.is_empty() || self.is_silent(milliseconds(now)) {
            return None;
        }
        let pins = &self.maps.pins;
        let id = line.begin(pins);
        let asked = ask_for_files(&line, until, id, files);
        let offsets = asked.unwrap_or_else(|why| {
            self.is_in_vain(&why);
            Vec::new()
        });
        let pinned = self.maps.take_over(pins.end_wait()?);
        Some((pinned, offsets))
    }

    /// Whether the agent gave no sign of life, or a wait was in vain, a moment ago.
    fn is_silent(&self, now: u64) -> bool {
        let silence = now.saturating_sub(self.maps.table.last_beat());
        silence > milliseconds(SILENCE_MAX) || now < self.vain_until.load(Ordering::Relaxed)
    }

    /// A wait was in vain: nobody waits for a while.
    fn is_in_vain(&self, why: &io::Error) {
        tracing::debug!(%why, "the agent does not answer");
        let again = since_boot().saturating_add(AGAIN);
        self.vain_until.store(milliseconds(again), Ordering::Relaxed);
    }

    /// Asks for a file of a chunk, and waits until the chunk was handed over or can't be.
    fn ask(
        &self,
        line: &Line,
        until: Duration,
        id: u64,
        (chunk, file): (u32, u32),
        hints: &[u32],
    ) -> io::Result<()> {
        let hints = hints.get(..HINTS_MAX).unwrap_or(hints).to_vec();
        let left = until.saturating_sub(since_boot());
        let patience = milliseconds(left);
        let want = ToAgent::Want(Want { id, chunk, file, patience, hints });
        line.socket.send(&want, &[], left)?;
        loop {
            let left = until.saturating_sub(since_boot());
            match line.socket.receive::<FromAgent>(left)? {
                Some((FromAgent::Here { id: of }, _)) if of == id => return Ok(()),
                Some((FromAgent::NotHere { id: of, reason }, _)) if of == id => {
                    tracing::debug!(chunk, reason, "the agent can't give a chunk");
                    return Ok(());
                }
                // Of an earlier wait.
                Some(_) => {}
                None => return Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
    }
}

/// Asks for files, and waits for the answer: where each of them lies.
fn ask_for_files(line: &Line, until: Duration, id: u64, files: Vec<u32>) -> io::Result<Vec<u32>> {
    let want = ToAgent::WantFiles(WantFiles { id, files });
    line.socket.send(&want, &[], until.saturating_sub(since_boot()))?;
    loop {
        let left = until.saturating_sub(since_boot());
        match line.socket.receive::<FromAgent>(left)? {
            Some((FromAgent::HereFiles { id: of, offsets }, _)) if of == id => return Ok(offsets),
            // Of an earlier wait.
            Some(_) => {}
            None => return Err(io::ErrorKind::ConnectionReset.into()),
        }
    }
}

impl Line {
    /// The number of a wait that begins.
    fn begin(&mut self, pins: &PinPage) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        pins.begin_wait(id);
        id
    }
}
