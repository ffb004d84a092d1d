//! Appends: the header, the log, then the rows of the index.
//!
//! Must hold: the step of the log is the commit point, and the header is there before it, so that
//! any server can bring the rows after it. Each part may be done again, by anybody, in any order.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use dl_format::{ChunkId, Committed, DatasetId, FileRecord, Header, ObjectKind, Stamp, StoreId};

use super::Shared;
use super::command::{Ask, bytes, number, pairs};
use super::failure::Failure;
use super::home::STAMP_MAX;
use super::keys::{Key, Keys, LARGE_ROWS, bucket_of};
use super::records::encode_object;
use super::rows::{self, file, folder, range_of};
use super::scripts::{APPEND, APPLY, IS_LARGE, LARGE, MISSING, ROOM, STALE};
use crate::{Appended, Brought, Kind, Mending, ObjectRecord};

/// Rows that whoever appended them should have brought by now are brought by others.
const OVERDUE: Duration = Duration::from_secs(2);
/// After that an object is too old to be looked for after every loss.
const RECENT: Duration = Duration::from_secs(10 * 60);
/// How often a dataset is looked over for those.
const LOOK: Duration = Duration::from_secs(1);
/// Objects that one call brings after.
const ROLLED_AT_ONCE: usize = 64;
/// Large folders that are remembered.
const LARGE_MAX: usize = 10_000;

/// What an object puts into one folder.
#[derive(Debug, Default)]
struct Batch {
    /// Folders in it, by name.
    folders: BTreeSet<Vec<u8>>,
    /// Rows of files, in their order, one of each name.
    files: Vec<Vec<u8>>,
}

impl Shared {
    pub(super) async fn append(&self, object: &Committed) -> Result<Appended, Failure> {
        let (header, record) = (object.header(), ObjectRecord::of(object));
        if record.stamp.get() > STAMP_MAX {
            return Err(Failure::corrupt("its stamp is later than Redis can count"));
        }
        let member = encode_object(&record)?;
        let now = self.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let who = format!("{:016x} {now}", self.random.u64());
        let mut rounds = self.router.rounds();
        loop {
            self.router.again(&mut rounds)?;
            let keys = self.keys_of(header.dataset()).await?;
            let key = keys.header(record.id);
            let stored = match record.kind {
                ObjectKind::Tombstone => Ask::script(&ROOM, &key, &[]).arg("SET"),
                ObjectKind::Chunk | ObjectKind::Part => Ask::to(&key, "SET"),
            };
            let stored = stored.arg(&header.raw()[..]);
            self.router.ask_one(stored).await?;
            let ask = Ask::script(&APPEND, &keys.home(), &[&keys.log(), &keys.todo()])
                .arg(keys.epoch.to_string())
                .arg(record.id.as_bytes())
                .arg(&member)
                .arg(&who)
                .arg(record.stamp.get())
                .arg(u8::from(record.kind == ObjectKind::Tombstone));
            let appended = match number(&self.router.ask_one(ask).await?)? {
                1 => Appended::New,
                0 => Appended::Known,
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

    /// Brings the rows of an object into the index.
    async fn apply(&self, keys: Keys, object: &Committed) -> Result<(), Failure> {
        let mut asks = Vec::new();
        for (chunk, entries) in object.header().deletions().iter() {
            let ask = Ask::script(&ROOM, &keys.deletions(chunk), &[]).arg("SADD");
            asks.push(ask.arg(entries.bits()));
        }
        let (mut small, mut large) = (Vec::new(), Vec::new());
        {
            let known = self.large();
            for (path, batch) in batches(object) {
                if known.contains(&(keys.dataset, path.clone())) {
                    large.push((path, batch));
                } else {
                    small.push((path, batch));
                }
            }
        }
        let first = asks.len();
        for (path, batch) in &small {
            asks.push(batch.ask(&keys.rows(0, path), true));
        }
        let answers = self.router.ask(asks).await?;
        let mut full = Vec::new();
        for ((path, batch), answer) in small.into_iter().zip(answers.iter().skip(first)) {
            match number(answer)? {
                IS_LARGE => large.push((path, batch)),
                rows if u64::try_from(rows).is_ok_and(|rows| rows > LARGE_ROWS) => full.push(path),
                _ => {}
            }
        }
        self.enlarge(keys, large, full).await
    }

    /// Goes on in hashed buckets, and says so first where it is looked for.
    async fn enlarge(
        &self,
        keys: Keys,
        large: Vec<(Vec<u8>, Batch)>,
        full: Vec<Vec<u8>>,
    ) -> Result<(), Failure> {
        if large.is_empty() && full.is_empty() {
            return Ok(());
        }
        let told = Ask::script(&LARGE, &keys.home(), &[]).arg(keys.epoch.to_string());
        self.router.ask_one(told).await?;
        let mut asks = Vec::new();
        for path in large.iter().map(|(path, _)| path).chain(&full) {
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
        known.extend(full.into_iter().map(|path| (keys.dataset, path)));
        known.extend(large.into_iter().map(|(path, _)| (keys.dataset, path)));
        Ok(())
    }

    /// Brings the rows of objects whose maker did not, when it is time to look; true when it did.
    pub(super) async fn roll_forward(&self, keys: Keys) -> Result<bool, Failure> {
        if !self.may_look(keys.dataset, LOOK) {
            return Ok(false);
        }
        let todo = pairs(self.router.ask_one(Ask::to(&keys.todo(), "HGETALL")).await?)?;
        let now = self.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let is_overdue = |who: &[u8]| {
            let since = str::from_utf8(who).ok().and_then(|who| who.split(' ').nth(1));
            let since = since.and_then(|since| since.parse::<u128>().ok());
            // Another server's clock may be ahead: what is done twice is done as well.
            since.is_none_or(|since| now.abs_diff(since) > OVERDUE.as_millis())
        };
        let overdue = todo.into_iter().filter(|(_, who)| is_overdue(who)).map(|(id, _)| id);
        let overdue = overdue.filter_map(|id| id.try_into().ok().map(ChunkId::from_bytes));
        let overdue: Vec<ChunkId> = overdue.take(ROLLED_AT_ONCE).collect();
        let late = match self.begin_late(&overdue).await {
            // As in `roll`: who reads is answered without them.
            Err(full) if full.kind == Kind::Full => {
                tracing::debug!(dataset = %keys.dataset, why = %full, "late rows have to wait");
                return Ok(false);
            }
            begun => begun?,
        };
        let rolled = self.roll(keys, &overdue).await?;
        if let Some((mending, store)) = late {
            // What another one binds or brings back meanwhile doesn't matter here.
            let _ = self.mended(&mending, Brought::Some, store).await?;
        }
        Ok(rolled)
    }

    /// Says in the marks that rows come which are older than what a loss is looked for.
    async fn begin_late(&self, objects: &[ChunkId]) -> Result<Option<(Mending, StoreId)>, Failure> {
        let recent = self.clock.now().checked_sub(RECENT).map_or(0, |at| Stamp::at(at).get());
        let oldest = objects.iter().map(|id| u64::from(id.seconds()) * 1_000_000).min();
        let Some(oldest) = oldest.filter(|oldest| *oldest < recent) else { return Ok(None) };
        let Some(store) = self.identity().await? else { return Ok(None) };
        if let Some(why) = self.router.full().await? {
            return Err(Failure::because(Kind::Full, why));
        }
        Ok(Some((self.mending(Some(Stamp::new(oldest))).await?, store)))
    }

    async fn roll(&self, keys: Keys, objects: &[ChunkId]) -> Result<bool, Failure> {
        let mut rolled = false;
        for &id in objects {
            let raw = bytes(self.router.ask_one(Ask::to(&keys.header(id), "GET")).await?)?;
            let Some(raw) = raw else {
                // Lost with its shard. A recovery appends the object again.
                tracing::warn!(object = %id, dataset = %keys.dataset, "its header is gone");
                continue;
            };
            let object = Header::decode(&Bytes::from(raw)).and_then(Header::committed);
            let object = object.map_err(|error| {
                Failure::because(Kind::Corrupt, format!("the header of {id}: {error}"))
            })?;
            match self.apply(keys, &object).await {
                Ok(()) => {}
                // Its append is not acknowledged before that: nobody has to find it yet.
                Err(full) if full.kind == Kind::Full => {
                    tracing::debug!(object = %id, why = %full, "its rows have to wait");
                    continue;
                }
                Err(failure) => return Err(failure),
            }
            let done = Ask::to(&keys.todo(), "HDEL").arg(id.as_bytes());
            self.router.ask_one(done).await?;
            rolled = true;
        }
        Ok(rolled)
    }
}

/// What an object puts into which folder: its files, and the folders on the way to them.
fn batches(object: &Committed) -> BTreeMap<Vec<u8>, Batch> {
    let mut batches: BTreeMap<Vec<u8>, Batch> = BTreeMap::new();
    for entry in object.header().entries() {
        let (path, name) = (entry.path.as_bytes(), entry.path.name());
        let end = path.len().saturating_sub(name.len() + 1);
        let parent = path.get(..end).unwrap_or_default();
        let row = file(name, &FileRecord::of(object, &entry));
        if let Some(batch) = batches.get_mut(parent) {
            batch.files.push(row);
        } else {
            batches.entry(parent.to_vec()).or_default().files.push(row);
        }
    }
    for path in batches.keys().cloned().collect::<Vec<_>>() {
        let mut rest = path.as_slice();
        while !rest.is_empty() {
            let (parent, name) = split(rest);
            batches.entry(parent.to_vec()).or_default().folders.insert(name.to_vec());
            rest = parent;
        }
    }
    for batch in batches.values_mut() {
        batch.files.sort_unstable();
        // The winner of each name came first.
        batch.files.dedup_by(|later, first| name_of(later) == name_of(first));
    }
    batches
}

/// The folder that something lies in, and its name there.
fn split(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

fn name_of(row: &[u8]) -> &[u8] {
    row.split(|byte| *byte == 0).next().unwrap_or_default()
}

impl Batch {
    fn ask(&self, key: &Key, is_first: bool) -> Ask {
        let [low, high] = match (self.files.first(), self.files.last()) {
            (Some(first), Some(last)) => {
                let ([low, _], [_, high]) = (range_of(name_of(first)), range_of(name_of(last)));
                [low, high]
            }
            _ => [Vec::new(), Vec::new()],
        };
        let first_file = 5 + 2 * self.folders.len();
        let mut ask = Ask::script(&APPLY, key, &[]).arg(u8::from(is_first)).arg(first_file);
        ask = ask.arg(low).arg(high);
        for row in self.folders.iter().flat_map(|name| folder(name)) {
            ask = ask.arg(row);
        }
        for row in &self.files {
            ask = ask.arg(row);
        }
        ask
    }

    /// By hashed bucket.
    fn parts(&self) -> BTreeMap<u8, Self> {
        let mut parts: BTreeMap<u8, Self> = BTreeMap::new();
        for name in &self.folders {
            parts.entry(bucket_of(name)).or_default().folders.insert(name.clone());
        }
        for row in &self.files {
            parts.entry(bucket_of(name_of(row))).or_default().files.push(row.clone());
        }
        parts
    }
}

/// Large folders that this process has met.
pub(super) type LargeFolders = HashSet<(DatasetId, Vec<u8>)>;
