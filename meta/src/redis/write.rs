//! Appends: the header, the log, then the rows of the index.
//!
//! Must hold: the log is the commit point. The header is in Redis before the log entry, so any server can
//! write the rows later. Each part may be repeated by any server, in any order; an object stays in `todo`
//! until all parts are done. The rows of folders come before the rows of the files below them. A header
//! without a log entry is no object: the next try with the same id overwrites it, and it goes with its epoch.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use dl_format::{ChunkId, Committed, DatasetId, ObjectKind};
use dl_runtime::Deadline;
use tokio::sync::oneshot;

use super::Shared;
use super::batches::{Batch, Batches};
use super::command::{Ask, bytes, number, pairs};
use super::dataset_root::STAMP_MAX;
use super::failure::Failure;
use super::keys::Keys;
use super::records::{decode_header, encode_header, encode_object};
use super::rows;
use super::scripts::{APPEND, DELETE, IS_LARGE, LARGE, MISSING, ROOM, STALE};
use crate::{Appended, Kind, ObjectRecord};

/// The age at which other servers write the rows of an object.
const OVERDUE: Duration = Duration::from_secs(2);
/// How often to look for objects without rows in a dataset.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Objects whose rows a call writes.
const ROLLED_AT_ONCE: usize = 64;
/// How long a reader waits for overdue rows.
const ROLLS: Duration = Duration::from_secs(2);
/// The pause after a look that wrote no rows.
const REST: Duration = Duration::from_secs(10);
/// Large folders that are remembered.
const LARGE_MAX: usize = 10_000;
/// Chunks whose deleted entries are marked at once.
const MARKED_AT_ONCE: usize = 4_096;

impl Shared {
    pub(super) async fn append(&self, object: &Committed) -> Result<Appended, Failure> {
        let (header, record) = (object.header(), ObjectRecord::of(object));
        if record.stamp.get() > STAMP_MAX {
            let why = "its stamp is later than Redis can count";
            return Err(Failure::because(Kind::Conflict, why));
        }
        let member = encode_object(&record)?;
        let now = self.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let who = format!("{:016x} {now}", self.random.u64());
        let mut rounds = self.router.rounds();
        loop {
            self.router.again(&mut rounds)?;
            let keys = self.keys_of(header.dataset()).await?.ok_or_else(Failure::missing)?;
            let key = keys.header(record.id);
            let stored = match record.kind {
                ObjectKind::Tombstone => Ask::script(&ROOM, &key, &[]).arg("SET"),
                ObjectKind::Chunk | ObjectKind::Part => Ask::to(&key, "SET"),
            };
            let stored = stored.arg(encode_header(header));
            self.router.ask_one(stored).await?;
            let ask = Ask::script(&APPEND, &keys.root(), &[&keys.log(), &keys.todo()])
                .arg(keys.epoch.to_string())
                .arg(record.id.as_bytes())
                .arg(&member)
                .arg(&who)
                .arg(record.stamp.get())
                .arg(u8::from(record.kind == ObjectKind::Tombstone));
            let appended = match number(&self.router.ask_one(ask).await?)? {
                1 => Appended::New,
                0 => Appended::Known,
                2 => Appended::Restamped,
                answer => {
                    self.forget(header.dataset());
                    let leftover = Ask::to(&keys.header(record.id), "UNLINK");
                    self.router.ask_one(leftover).await?;
                    match answer {
                        STALE => continue,
                        MISSING => return Err(Failure::missing()),
                        _ => return Err(Failure::unexpected()),
                    }
                }
            };
            self.apply(keys, object).await?;
            let done = Ask::to(&keys.todo(), "HDEL").arg(record.id.as_bytes());
            self.router.ask_one(done).await?;
            return Ok(appended);
        }
    }

    /// Writes the rows of an object into the index, piece by piece.
    async fn apply(&self, keys: Keys, object: &Committed) -> Result<(), Failure> {
        let deletions: Vec<_> = object.header().deletions().iter().collect();
        for deletions in deletions.chunks(MARKED_AT_ONCE) {
            let asks = deletions.iter().map(|(chunk, entries)| {
                Ask::script(&DELETE, &keys.deletions(*chunk), &[]).arg(entries.bits())
            });
            self.router.ask(asks.collect()).await?;
        }
        let mut batches = Batches::of(object);
        let unknown = self.known_parents.unknown(keys, batches.entries(), self.clock.monotonic());
        let mut piece = batches.piece();
        if !unknown.is_empty() {
            self.lead(keys, &piece, batches.clone()).await?;
            self.known_parents.learn(unknown);
        }
        while !piece.is_empty() {
            self.apply_piece(keys, piece).await?;
            piece = batches.piece();
        }
        Ok(())
    }

    /// Writes the rows of all parents before the rows of the files. Files found by path are not put again:
    /// listings must show them too, even while other rows wait for memory.
    async fn lead(
        &self,
        keys: Keys,
        first: &[(Vec<u8>, Batch)],
        mut rest: Batches<'_>,
    ) -> Result<(), Failure> {
        let folders = |piece: &[(Vec<u8>, Batch)]| {
            let folders = piece.iter().filter_map(|(path, batch)| Some((path, batch.folders()?)));
            folders.map(|(path, batch)| (path.clone(), batch)).collect()
        };
        self.apply_piece(keys, folders(first)).await?;
        loop {
            let piece = rest.piece();
            if piece.is_empty() {
                return Ok(());
            }
            self.apply_piece(keys, folders(&piece)).await?;
        }
    }

    async fn apply_piece(&self, keys: Keys, piece: Vec<(Vec<u8>, Batch)>) -> Result<(), Failure> {
        let (mut small, mut large) = (Vec::new(), Vec::new());
        {
            let known = self.large();
            for (path, batch) in piece {
                if batch.is_large() || known.contains(&(keys.dataset, path.clone())) {
                    large.push((path, batch));
                } else {
                    small.push((path, batch));
                }
            }
        }
        let all_rows = keys.all_rows();
        let asks = small.iter().map(|(path, batch)| batch.ask(&all_rows.of(0, path), true));
        let answers = self.router.ask(asks.collect()).await?;
        for (folder, answer) in small.into_iter().zip(&answers) {
            if number(answer)? == IS_LARGE {
                large.push(folder);
            }
        }
        self.apply_hashed(keys, large).await
    }

    /// Writes rows into hashed buckets, after a note in the root about large folders.
    async fn apply_hashed(&self, keys: Keys, large: Vec<(Vec<u8>, Batch)>) -> Result<(), Failure> {
        if large.is_empty() {
            return Ok(());
        }
        let large_one = Ask::script(&LARGE, &keys.root(), &[]).arg(keys.epoch.to_string());
        self.router.ask_one(large_one).await?;
        let mut asks = Vec::new();
        for (path, _) in &large {
            asks.push(Ask::to(&keys.rows(0, path), "ZADD").arg(0).arg(rows::LARGE));
        }
        for (path, batch) in &large {
            for (bucket, part) in batch.parts() {
                asks.push(part.ask(&keys.rows(bucket, path), false));
            }
        }
        self.router.ask(asks).await?;
        let mut known = self.large();
        if known.len() > LARGE_MAX {
            known.clear();
        }
        known.extend(large.into_iter().map(|(path, _)| (keys.dataset, path)));
        Ok(())
    }

    /// Writes the overdue rows of other servers' objects; true when rows were written. The objects are not
    /// acknowledged yet: a reader is answered without rows that have to wait or take longer.
    pub(super) async fn write_overdue_rows(&self, keys: Keys) -> bool {
        let Some(shared) = self.me.upgrade().filter(|_| self.may_look(keys.dataset)) else {
            return false;
        };
        let (sender, done) = oneshot::channel();
        let mut look = Look { shared, dataset: keys.dataset, rest: REST };
        dl_runtime::spawn_for_all(async move {
            let rolled = look.shared.roll_overdue(keys).await;
            match &rolled {
                Ok(Rolled { count: 0, left: 1.. }) => {}
                Ok(_) => look.rest = POLL_INTERVAL,
                Err(failure) if matches!(failure.kind, Kind::Full | Kind::Unavailable) => {
                    tracing::debug!(dataset = %keys.dataset, why = %failure, "late rows have to wait");
                }
                Err(failure) => {
                    tracing::warn!(dataset = %keys.dataset, why = %failure, "late rows don't come");
                }
            }
            drop(look);
            let _ = sender.send(rolled.is_ok_and(|rolled| rolled.count > 0));
        });
        let in_time = Deadline::after(&*self.clock, ROLLS).bound(&*self.clock, done).await;
        matches!(in_time, Ok(Ok(true)))
    }

    async fn roll_overdue(&self, keys: Keys) -> Result<Rolled, Failure> {
        let todo = pairs(self.router.ask_one(Ask::to(&keys.todo(), "HGETALL")).await?)?;
        let now = self.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let is_overdue = |who: &[u8]| {
            let since = str::from_utf8(who).ok().and_then(|who| who.split(' ').nth(1));
            let since = since.and_then(|since| since.parse::<u128>().ok());
            // Another server's clock may be ahead: writing rows twice is harmless.
            since.is_none_or(|since| now.abs_diff(since) > OVERDUE.as_millis())
        };
        let overdue = todo.into_iter().filter(|(_, who)| is_overdue(who)).map(|(id, _)| id);
        let overdue = overdue.filter_map(|id| id.try_into().ok().map(ChunkId::from_bytes));
        let overdue: Vec<ChunkId> = overdue.collect();
        // A failing object must not block other objects.
        let first = usize::try_from(self.random.u64() >> 1).unwrap_or_default();
        let (before, from) = overdue.split_at(first.checked_rem(overdue.len()).unwrap_or_default());
        let overdue: Vec<ChunkId> =
            from.iter().chain(before).copied().take(ROLLED_AT_ONCE).collect();
        self.roll(keys, &overdue).await
    }

    /// Writes rows. Skips objects whose header is lost or damaged, or whose rows find no memory.
    async fn roll(&self, keys: Keys, objects: &[ChunkId]) -> Result<Rolled, Failure> {
        let mut rolled = Rolled::default();
        for &id in objects {
            let Err(failure) = self.roll_one(keys, id).await else {
                rolled.count += 1;
                continue;
            };
            rolled.left += 1;
            match failure.kind {
                Kind::Missing | Kind::Corrupt => {
                    tracing::warn!(object = %id, dataset = %keys.dataset, why = %failure, "no rows");
                }
                Kind::Full => {
                    tracing::debug!(object = %id, why = %failure, "its rows have to wait");
                }
                _ => return Err(failure),
            }
        }
        Ok(rolled)
    }

    async fn roll_one(&self, keys: Keys, id: ChunkId) -> Result<(), Failure> {
        let raw = bytes(self.router.ask_one(Ask::to(&keys.header(id), "GET")).await?)?;
        // A rebuild appends an object again whose header was lost with its shard.
        let raw = raw.ok_or_else(|| Failure::because(Kind::Missing, "its header is gone"))?;
        self.apply(keys, &decode_header(id, raw)?).await?;
        let done = Ask::to(&keys.todo(), "HDEL").arg(id.as_bytes());
        self.router.ask_one(done).await?;
        Ok(())
    }
}

/// A look for objects without rows in a dataset. Ends when the value is dropped.
struct Look {
    shared: Arc<Shared>,
    dataset: DatasetId,
    /// The pause before the next look.
    rest: Duration,
}

impl Drop for Look {
    fn drop(&mut self) {
        self.shared.looked(self.dataset, self.rest);
    }
}

/// The results of a look.
#[derive(Debug, Default)]
struct Rolled {
    /// Objects with new rows.
    count: usize,
    /// Skipped objects.
    left: usize,
}

/// Large folders seen by the process.
pub(super) type LargeFolders = HashSet<(DatasetId, Vec<u8>)>;
