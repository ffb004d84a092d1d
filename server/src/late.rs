//! Appends of objects that were sealed long ago: by a recovery, by a purge that finds one which the
//! log lacks, by a retry that comes late, by a put over a slow line.
//!
//! Must hold: a metadata store that tells its losses by time is told of them before the first one,
//! or what it loses right after them would be looked for among newer objects only.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dl_format::{ChunkId, Stamp};
use dl_meta::{Brought, Mending};
use tokio::sync::Semaphore;

use crate::error::Error;
use crate::parts::Parts;

/// What is told of one late object holds for those that are older by no more than this.
const TOGETHER: Duration = Duration::from_secs(24 * 60 * 60);

/// After a loss ids are looked for from half an hour before it; this leaves some of it for a put that is
/// under way.
const LOOKED_FOR: Duration = Duration::from_secs(25 * 60);

/// Some appends, of which some may be late.
#[derive(Debug)]
pub(crate) struct Late<'a> {
    parts: &'a Parts,
    told: Mutex<Told>,
    /// The turn of the one that tells for all that wait.
    turn: Semaphore,
}

#[derive(Debug)]
struct Told {
    /// Seconds of the first id of which nothing has to be told any more.
    from: u64,
    begun: Vec<Mending>,
}

impl<'a> Late<'a> {
    /// Appends while all is as usual: what was sealed a while ago is late, by this clock or by that of the
    /// metadata store, whichever is ahead: a server whose own is far behind puts what is not looked for.
    pub(crate) fn usual(parts: &'a Parts) -> Self {
        let recent = parts.clock.now().checked_sub(parts.limits.clock_skew);
        let looked_for = parts.meta.newest().and_then(|newest| newest.checked_sub(LOOKED_FOR));
        let recent = recent.max(looked_for);
        Self::before_seconds(parts, recent.map_or(0, |recent| seconds(Stamp::at(recent))))
    }

    /// Appends of which those are late whose ids are from before `from`, in seconds.
    pub(crate) fn before_seconds(parts: &'a Parts, from: u64) -> Self {
        let told = Mutex::new(Told { from, begun: Vec::new() });
        Self { parts, told, turn: Semaphore::new(1) }
    }

    /// To be called before an object is appended.
    pub(crate) async fn append(&self, id: ChunkId) -> Result<(), Error> {
        let is_told = || u64::from(id.seconds()) >= self.told().from;
        if is_told() {
            return Ok(());
        }
        let _turn = self.turn.acquire().await.expect("the semaphore is never closed");
        if is_told() {
            return Ok(());
        }
        let since = u64::from(id.seconds()).saturating_sub(TOGETHER.as_secs());
        let mending = self.parts.meta.mending(Some(Stamp::new(since * 1_000_000))).await;
        let mending =
            mending.map_err(|error| Error::meta("append late to", &self.parts.meta, error))?;
        let mut told = self.told();
        told.begun.push(mending);
        told.from = since;
        Ok(())
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called when all were appended. Where that is not, as after an error, the word stays.
    pub(crate) async fn end(self) -> Result<(), Error> {
        let failed = |error| Error::meta("append late to", &self.parts.meta, error);
        let begun = self.told.into_inner().unwrap_or_else(PoisonError::into_inner).begun;
        if begun.is_empty() {
            return Ok(());
        }
        let Some(store) = self.parts.meta.identity().await.map_err(failed)? else { return Ok(()) };
        for mending in begun {
            self.parts.meta.mended(&mending, Brought::Some, store).await.map_err(failed)?;
        }
        Ok(())
    }
}

fn seconds(stamp: Stamp) -> u64 {
    stamp.get() / 1_000_000
}
