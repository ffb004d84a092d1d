//! Takes objects off the log: first the log entry, then the rows of the index, then the header.
//!
//! Must hold: without the log entry, rows left behind by a crash are no files. The header goes last: a
//! repetition finds the rest. Bitmaps of deletions and rows of folders stay: a concurrent append may need
//! them.

use std::collections::HashSet;

use dl_format::{ChunkId, Committed, DatasetId, FilePath, FileRecord};

use super::Shared;
use super::command::{Ask, bytes, number};
use super::dataset_root::ask_root;
use super::dataset_root::read_root;
use super::failure::Failure;
use super::keys::{Keys, bucket_of};
use super::records::decode_header;
use super::rows::file;
use super::scripts::{MISSING, RETIRE, STALE};
use crate::Found;

/// Objects whose headers are in memory at a time.
const AT_ONCE: usize = 16;
/// Paths looked up, or rows removed, at a time.
const ROWS_AT_ONCE: usize = 4_096;

impl Shared {
    /// Whether a live file lies in one of the objects; if so, all objects stay in the log.
    pub(super) async fn retire(
        &self,
        dataset: DatasetId,
        ids: &[ChunkId],
    ) -> Result<bool, Failure> {
        for ids in ids.chunks(AT_ONCE) {
            let keys = self.keys_of(dataset).await?.ok_or_else(Failure::missing)?;
            if self.hold_files(dataset, &self.headers(keys, ids).await?).await? {
                return Ok(true);
            }
        }
        for ids in ids.chunks(AT_ONCE) {
            self.take_off(dataset, ids).await?;
        }
        Ok(false)
    }

    async fn take_off(&self, dataset: DatasetId, ids: &[ChunkId]) -> Result<(), Failure> {
        let mut rounds = self.router.rounds();
        loop {
            self.router.again(&mut rounds)?;
            let root = read_root(dataset, self.router.ask_one(ask_root(dataset)).await?)?;
            let root = root.ok_or_else(Failure::missing)?;
            let keys = root.keys;
            self.learn(keys);
            let objects = self.headers(keys, ids).await?;
            // A missing header was removed by an earlier try, or lost with its shard: its rows in other
            // shards would then stay for ever.
            let there: HashSet<ChunkId> =
                objects.iter().map(|object| object.header().id()).collect();
            let lacking = ids.iter().filter(|id| !there.contains(id));
            let lacking = lacking.map(|id| keys.header(*id).shard).collect();
            if !self.confirm(keys, &lacking).await? {
                continue;
            }
            let asks = ids.iter().map(|id| {
                let ask = Ask::script(&RETIRE, &keys.root(), &[&keys.log(), &keys.todo()]);
                ask.arg(keys.epoch.to_string()).arg(id.as_bytes())
            });
            let answers = self.router.ask(asks.collect()).await?;
            let answers = answers.iter().map(number).collect::<Result<Vec<_>, _>>()?;
            if answers.contains(&MISSING) {
                self.forget(dataset);
                return Err(Failure::missing());
            }
            if answers.contains(&STALE) {
                self.forget(dataset);
                continue;
            }
            for object in &objects {
                self.remove_rows(keys, object, root.is_large).await?;
            }
            let headers = ids.iter().map(|id| Ask::to(&keys.header(*id), "UNLINK"));
            self.router.ask(headers.collect()).await?;
            return Ok(());
        }
    }

    /// The existing headers.
    async fn headers(&self, keys: Keys, ids: &[ChunkId]) -> Result<Vec<Committed>, Failure> {
        let asks = ids.iter().map(|id| Ask::to(&keys.header(*id), "GET"));
        let mut headers = Vec::new();
        for (id, answer) in ids.iter().zip(self.router.ask(asks.collect()).await?) {
            let Some(raw) = bytes(answer)? else { continue };
            headers.push(decode_header(*id, raw)?);
        }
        Ok(headers)
    }

    /// Whether a file without a folder of the same path lies in one of the objects.
    async fn hold_files(&self, dataset: DatasetId, objects: &[Committed]) -> Result<bool, Failure> {
        let chunks: HashSet<ChunkId> = objects.iter().map(|object| object.header().id()).collect();
        let paths: Vec<FilePath> = objects
            .iter()
            .flat_map(|object| object.header().entries())
            .map(|entry| entry.path)
            .collect();
        for paths in paths.chunks(ROWS_AT_ONCE) {
            let found = self.lookup(dataset, paths).await?;
            let lies_there = |found: &Found| match found {
                Found::File(record) => chunks.contains(&record.holder.chunk),
                Found::Folder | Found::Missing => false,
            };
            if found.iter().any(lies_there) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn remove_rows(
        &self,
        keys: Keys,
        object: &Committed,
        is_large: bool,
    ) -> Result<(), Failure> {
        let mut asks = Vec::new();
        for entry in object.header().entries() {
            let (path, name) = (entry.path.as_bytes(), entry.path.name());
            let end = path.len().saturating_sub(name.len() + 1);
            let parent = path.get(..end).unwrap_or_default();
            let row = file(name, &FileRecord::of(object, &entry));
            if is_large {
                asks.push(Ask::to(&keys.rows(bucket_of(name), parent), "ZREM").arg(&row));
            }
            asks.push(Ask::to(&keys.rows(0, parent), "ZREM").arg(&row));
            if asks.len() >= ROWS_AT_ONCE {
                self.router.ask(std::mem::take(&mut asks)).await?;
            }
        }
        self.router.ask(asks).await?;
        Ok(())
    }
}
