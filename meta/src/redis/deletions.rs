//! Deleted versions of files: the bitmaps of chunks, read while a call needs them.
//!
//! Must hold: each bitmap is read after the call began, and once for many questions. A version counts as not
//! deleted only where its shard lost nothing.

use std::collections::{BTreeSet, HashMap};

use dl_format::{ChunkId, EntrySet, EntryVersion};
use redis::Value;

use super::Shared;
use super::command::{Ask, bytes};
use super::dataset_root::{DatasetRoot, ask_epoch};
use super::failure::Failure;
use super::keys::Keys;
use super::slots::Shard;

/// Most bitmaps in memory; beyond the number, all are dropped.
const SEEN_MAX: usize = 4_096;

/// The bitmaps read by a call.
#[derive(Debug)]
pub(super) struct Deletions {
    keys: Keys,
    none: bool,
    /// Whether a missing bitmap must be certain.
    assured: bool,
    /// Whether the dataset was dropped meanwhile.
    is_stale: bool,
    seen: HashMap<ChunkId, EntrySet>,
}

impl Deletions {
    pub(super) fn of(root: &DatasetRoot) -> Self {
        let (none, seen) = (root.tombstones == 0, HashMap::new());
        Self { keys: root.keys, none, assured: true, is_stale: false, seen }
    }

    /// The existing bitmaps, for calls while some bitmaps may be lost.
    pub(super) fn as_they_are(root: &DatasetRoot) -> Self {
        Self { assured: false, ..Self::of(root) }
    }

    /// Whether the call has to begin again.
    pub(super) fn is_stale(&self) -> bool {
        self.is_stale
    }

    pub(super) fn are_none(&self) -> bool {
        self.none
    }

    /// Reads the bitmaps of `chunks`. Fails when a shard lost its mark, as the bitmap may be lost.
    pub(super) async fn load(
        &mut self,
        shared: &Shared,
        chunks: impl IntoIterator<Item = ChunkId>,
    ) -> Result<(), Failure> {
        if self.none {
            return Ok(());
        }
        if self.seen.len() > SEEN_MAX {
            self.seen.clear();
        }
        let new: BTreeSet<ChunkId> =
            chunks.into_iter().filter(|chunk| !self.seen.contains_key(chunk)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let asks = new.iter().map(|chunk| Ask::to(&self.keys.deletions(*chunk), "GET"));
        let mut asks: Vec<Ask> = asks.collect();
        let shards: BTreeSet<Shard> = asks.iter().map(|ask| ask.shard).collect();
        if self.assured {
            // Behind the bitmaps, on the same connections.
            asks.extend(shared.ask_marks(shards.into_iter()));
            asks.push(ask_epoch(self.keys));
        }
        let mut answers = shared.router.ask(asks).await?;
        if self.assured {
            let epoch = answers.pop().unwrap_or(Value::Nil);
            self.is_stale |= !shared.is_still(self.keys, epoch)?;
            let marks = answers.split_off(new.len());
            self.is_stale |= !shared.are_whole(marks).await?;
        }
        for (chunk, answer) in new.into_iter().zip(answers) {
            let bits = bytes(answer)?.unwrap_or_default();
            let entries = EntrySet::from_bits(&bits)
                .map_err(|_| Failure::corrupt("deleted entries can't be read"))?;
            self.seen.insert(chunk, entries);
        }
        Ok(())
    }

    /// Whether a version of a loaded chunk is deleted.
    pub(super) fn contain(&self, version: &EntryVersion) -> bool {
        let entries = self.seen.get(&version.chunk);
        entries.is_some_and(|entries| entries.contains(version.entry))
    }

    /// The deleted entries of a loaded chunk.
    pub(super) fn entries(&self, chunk: ChunkId) -> Option<&EntrySet> {
        self.seen.get(&chunk)
    }
}
