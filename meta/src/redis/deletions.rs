//! Which versions of files are deleted: the bitmaps of chunks, read while a call needs them.
//!
//! Must hold: each bitmap is read after the call began, and once for many questions; that nothing is
//! deleted is said only of shards that have lost nothing.

use std::collections::{BTreeSet, HashMap};

use dl_format::{ChunkId, EntrySet, EntryVersion};
use redis::Value;

use super::Shared;
use super::command::{Ask, bytes};
use super::dataset_root::{DatasetRoot, ask_epoch};
use super::failure::Failure;
use super::keys::Keys;
use super::slots::Shard;

/// Bitmaps kept at once; with more, all are let go.
const SEEN_MAX: usize = 4_096;

/// Which versions are deleted, each bitmap read once for many.
#[derive(Debug)]
pub(super) struct Deletions {
    keys: Keys,
    none: bool,
    /// Whether what is not deleted has to be known for sure.
    assured: bool,
    /// Whether the dataset was dropped meanwhile, so that nothing is known.
    is_stale: bool,
    seen: HashMap<ChunkId, EntrySet>,
}

impl Deletions {
    pub(super) fn of(root: &DatasetRoot) -> Self {
        let (none, seen) = (root.tombstones == 0, HashMap::new());
        Self { keys: root.keys, none, assured: true, is_stale: false, seen }
    }

    /// As far as they are there: for who may ask while some of them may be gone.
    pub(super) fn as_they_are(root: &DatasetRoot) -> Self {
        Self { assured: false, ..Self::of(root) }
    }

    /// Whether who asks has to begin anew.
    pub(super) fn is_stale(&self) -> bool {
        self.is_stale
    }

    pub(super) fn are_none(&self) -> bool {
        self.none
    }

    /// Reads what the questions about `chunks` need. Fails when a shard in which some of it lies lost
    /// its mark: that nothing is deleted would be said of what may be gone.
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
            asks.extend(shared.ask_stamps(shards.into_iter()));
            asks.push(ask_epoch(self.keys));
        }
        let mut answers = shared.router.ask(asks).await?;
        if self.assured {
            let epoch = answers.pop().unwrap_or(Value::Nil);
            self.is_stale |= !shared.is_still(self.keys, epoch)?;
            let stamps = answers.split_off(new.len());
            self.is_stale |= !shared.are_whole(stamps).await?;
        }
        for (chunk, answer) in new.into_iter().zip(answers) {
            let bits = bytes(answer)?.unwrap_or_default();
            let entries = EntrySet::from_bits(&bits)
                .map_err(|_| Failure::corrupt("deleted entries can't be read"))?;
            self.seen.insert(chunk, entries);
        }
        Ok(())
    }

    /// Whether a version of a chunk that was loaded last is deleted.
    pub(super) fn contain(&self, version: &EntryVersion) -> bool {
        let entries = self.seen.get(&version.chunk);
        entries.is_some_and(|entries| entries.contains(version.entry))
    }

    /// The deleted entries of a chunk that was loaded last.
    pub(super) fn entries(&self, chunk: ChunkId) -> Option<&EntrySet> {
        self.seen.get(&chunk)
    }
}
