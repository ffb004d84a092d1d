//! Prefetches of chunks, and their progress.
//!
//! Must hold: each wait ends. A prefetch requests no chunk twice.

use std::io;

use dl_node::{FromAgent, RUNS_MAX, ToAgent};
use dl_runtime::since_boot;

use super::attach::Attached;
use super::read::AgentReader;
use crate::error::Error;
use crate::order::Selection;

/// The chunks of a selection in the cache of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Presence {
    /// Chunks with files of the selection.
    pub chunks: u64,
    /// Chunks of these in memory now.
    pub present: u64,
}

impl AgentReader {
    /// Asks the agent to load the chunks of a selection, in the order of their numbers.
    pub(crate) fn prefetch(&self, selection: &Selection) -> Result<io::Result<()>, Error> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        self.chunks_of(selection, |chunk| match runs.last_mut() {
            Some((_, end)) if *end == chunk => *end += 1,
            _ => runs.push((chunk, chunk + 1)),
        })?;
        let attached = self.attached();
        let Some(attached) = attached.as_ref() else {
            let why = "no agent runs on this machine";
            return Ok(Err(io::Error::new(io::ErrorKind::NotConnected, why)));
        };
        Ok(runs.chunks(RUNS_MAX).try_for_each(|runs| attached.prefetch(runs)))
    }

    /// The part of a selection in memory; none without an agent.
    pub(crate) fn presence(&self, selection: &Selection) -> Result<Option<Presence>, Error> {
        let attached = self.attached();
        let Some(attached) = attached.as_ref() else { return Ok(None) };
        let mut presence = Presence { chunks: 0, present: 0 };
        self.chunks_of(selection, |chunk| {
            presence.chunks += 1;
            presence.present += u64::from(attached.maps.table.load(chunk).slot().is_some());
        })?;
        Ok(Some(presence))
    }

    /// The chunks and parts with files of a selection, by number.
    fn chunks_of(&self, selection: &Selection, mut take: impl FnMut(u32)) -> Result<(), Error> {
        let snapshot = self.snapshot();
        for chunk in 0..snapshot.chunks() {
            let (_, _, files) = snapshot.chunk(chunk)?;
            if selection.count(files) > 0 {
                take(chunk);
            }
        }
        for holder in snapshot.chunks()..snapshot.holders() {
            let (_, file, _) = snapshot.part(holder)?;
            if selection.count(file..file.saturating_add(1)) > 0 {
                take(holder);
            }
        }
        Ok(())
    }
}

impl Attached {
    fn prefetch(&self, runs: &[(u32, u32)]) -> io::Result<()> {
        let channel = self.channel().ok_or(io::ErrorKind::NotConnected)?;
        let until = since_boot().saturating_add(self.patience);
        let request = ToAgent::Prefetch(runs.to_vec());
        let is_taken = channel.ask(&request, until, |answer| match answer {
            FromAgent::Prefetching { is_taken } => Some(is_taken),
            _ => None,
        });
        match is_taken? {
            true => Ok(()),
            false => Err(io::Error::other("the agent has too many prefetches; try again later")),
        }
    }
}
