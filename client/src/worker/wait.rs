//! Waiting for a chunk that is absent: the agent is asked, and pins the chunk for this reader before
//! it answers.
//!
//! Must hold: a wait ends by its deadline; a pin that comes too late for its reader is given back.

use std::io;
use std::time::Duration;

use dl_runtime::since_boot;

use super::attach::{Attached, Line};
use super::layout::{Gauge, Pinned};
use super::message::{FromAgent, HINTS_MAX, ToAgent, Want, milliseconds};

/// An agent that gave no sign of life for so long is not asked.
const SILENCE_MAX: Duration = Duration::from_secs(3);

impl Attached {
    /// Waits for a chunk, or for one file of it; none when the agent can't give it in time. `hints`
    /// are chunks that are read next.
    pub(super) fn want(&self, chunk: u32, file: u32, hints: &[u32]) -> Option<Pinned<'_>> {
        let since = milliseconds(since_boot());
        let silence = since.saturating_sub(self.maps.table.last_beat());
        if silence > milliseconds(SILENCE_MAX) {
            return None;
        }
        let mut line = self.line()?;
        // It may have come while another thread asked.
        if let Some(pinned) = self.maps.pin(chunk) {
            return Some(pinned);
        }
        let pins = &self.maps.pins;
        pins.set(Gauge::AwaitedSince, since);
        pins.set(Gauge::Awaited, u64::from(chunk) + 1);
        let answer = self.ask(&mut line, chunk, file, hints);
        pins.set(Gauge::Awaited, 0);
        answer.unwrap_or_else(|why| {
            tracing::debug!(chunk, %why, "the agent does not answer");
            None
        })
    }

    fn ask(
        &self,
        line: &mut Line,
        chunk: u32,
        file: u32,
        hints: &[u32],
    ) -> io::Result<Option<Pinned<'_>>> {
        let id = line.next_id;
        line.next_id += 1;
        let hints = hints.get(..HINTS_MAX).unwrap_or(hints).to_vec();
        let until = since_boot().saturating_add(self.patience);
        let patience = milliseconds(self.patience);
        let want = ToAgent::Want(Want { id, chunk, file, patience, hints });
        line.socket.send(&want, &[], self.patience)?;
        loop {
            let left = until.saturating_sub(since_boot());
            match line.socket.receive::<FromAgent>(left)? {
                Some((FromAgent::Here { id: of, slot }, _)) => {
                    let pinned = self.maps.take_over(slot);
                    if of == id {
                        return Ok(Some(pinned));
                    }
                }
                Some((FromAgent::NotHere { id: of, reason }, _)) => {
                    if of == id {
                        tracing::debug!(chunk, reason, "the agent can't give a chunk");
                        return Ok(None);
                    }
                }
                Some(_) => {}
                None => return Err(io::ErrorKind::ConnectionReset.into()),
            }
        }
    }
}
