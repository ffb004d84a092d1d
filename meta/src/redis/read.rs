//! Lookups, listings and pages of the log.
//!
//! Must hold: a path is reported missing only where its shards lost nothing; otherwise the call fails with a
//! remedy. All other parts of an answer are read after the question.

use std::collections::BTreeSet;
use std::sync::Arc;

use dl_format::{ChunkId, DatasetId, EntrySet, FilePath, FileRecord};
use redis::Value;

use super::Shared;
use super::command::{Ask, number, parts, string, strings};
use super::dataset_root::{DatasetRoot, Doubts, ask_root, read_root};
use super::deletions::Deletions;
use super::failure::Failure;
use super::folders::Reader;
use super::gather::Gathering;
use super::keys::{AllRows, Key, Keys, bucket_of};
use super::live::hold_live;
use super::live_objects::{Count, LiveObjects};
use super::records::decode_object;
use super::router::Rounds;
use super::rows::{Member, spell_range};
use super::slots::Shard;
use super::tree::Walk;
use crate::types::deleted_entries;
use crate::{Found, ListEntry, ListQuery, ObjectRecord};

/// Objects of a page of the log.
pub(super) const LOG_PAGE: usize = 1_000;

/// Most paths of a lookup that shares its round with others; a larger lookup goes alone.
const TOGETHER_MAX: usize = 32;

/// Lookups that wait for each other, by dataset.
pub(super) type Lookups = Gathering<DatasetId, Vec<FilePath>, Rows>;

/// The rows of one name.
#[derive(Debug, Clone, Copy)]
struct Named {
    is_folder: bool,
    /// The first row of the file, its winner.
    winner: Option<FileRecord>,
    /// The shards that were asked for rows.
    shards: [Option<Shard>; 2],
    /// The shard in which a newer row would be.
    newer: Option<Shard>,
    /// The shard of the log that lacks the object of the first row; the row does not count then.
    log: Option<Shard>,
}

/// Rows of some names, each from one bucket, read with this root.
struct Buckets {
    root: DatasetRoot,
    todo: i64,
    rows: Vec<(Shard, Value)>,
}

/// The findings about some names, read with this root.
#[derive(Debug)]
pub(super) struct Rows {
    root: Arc<DatasetRoot>,
    named: Vec<Named>,
    /// The count of changes for [`Shared::is_as`].
    changes: u64,
}

impl Shared {
    /// Looks paths up, together with other lookups at the same time.
    pub(super) async fn lookup_together(
        self: &Arc<Self>,
        dataset: DatasetId,
        paths: &[FilePath],
    ) -> Result<Vec<Found>, Failure> {
        if paths.len() > TOGETHER_MAX {
            return self.lookup(dataset, paths).await;
        }
        let mut rounds = self.router.rounds();
        loop {
            self.router.again(&mut rounds)?;
            let (waiting, is_runner) = self.lookups.join(dataset, paths.to_vec());
            if is_runner {
                let shared = Arc::clone(self);
                dl_runtime::spawn_for_all(async move {
                    shared.lookups.run(dataset, |calls| shared.rows_of_all(dataset, calls)).await;
                });
            }
            if let Some(found) = self.found(&waiting.answer().await?, paths).await? {
                return Ok(found);
            }
        }
    }

    pub(super) async fn lookup(
        &self,
        dataset: DatasetId,
        paths: &[FilePath],
    ) -> Result<Vec<Found>, Failure> {
        let paths_of: Vec<&FilePath> = paths.iter().collect();
        let mut rounds = self.router.rounds();
        loop {
            self.router.again(&mut rounds)?;
            let rows = self.rows(dataset, &paths_of).await?;
            if let Some(found) = self.found(&rows, paths).await? {
                return Ok(found);
            }
        }
    }

    /// The rows of the names of several calls, for each call.
    async fn rows_of_all(
        &self,
        dataset: DatasetId,
        calls: Vec<Vec<FilePath>>,
    ) -> Result<Vec<Rows>, Failure> {
        let paths: Vec<&FilePath> = calls.iter().flatten().collect();
        let Rows { root, named, changes } = self.rows(dataset, &paths).await?;
        let mut named = named.into_iter();
        let rows = calls.iter().map(|paths| {
            let named = named.by_ref().take(paths.len()).collect();
            Rows { root: Arc::clone(&root), named, changes }
        });
        Ok(rows.collect())
    }

    /// Reads the rows of each path: in the first bucket of its folder and then, with large folders, in the
    /// hashed one. A purge moves rows from the first bucket to a hashed one on another node: in this order,
    /// one of the two has them.
    async fn rows(&self, dataset: DatasetId, paths: &[&FilePath]) -> Result<Rows, Failure> {
        let mut rounds = self.router.rounds();
        let mut heard: Option<LiveObjects> = None;
        loop {
            self.router.again(&mut rounds)?;
            let changes = self.assure().await?;
            let Some(keys) = self.keys_of(dataset).await? else {
                self.gone(dataset, changes).await?;
                continue;
            };
            // Knowledge of another epoch, or of before a change of places, is void.
            heard = heard.filter(|heard| heard.are_of(keys, changes));
            let live_objects = heard.get_or_insert_with(|| LiveObjects::heard(self, keys, changes));
            let Some(first) = self.buckets(dataset, keys, paths, |_| 0).await? else {
                self.gone(dataset, changes).await?;
                continue;
            };
            // Rows count only where the root, read with them, shows that they are complete.
            let has_moved = |root: &DatasetRoot| root.keys != keys || !self.is_as(changes);
            if has_moved(&first.root) || first.todo > 0 && self.write_overdue_rows(keys).await {
                continue;
            }
            let (mut root, mut buckets) = (first.root, vec![first.rows]);
            if root.is_large {
                let Some(hashed) = self.buckets(dataset, keys, paths, bucket_of).await? else {
                    self.gone(dataset, changes).await?;
                    continue;
                };
                if has_moved(&hashed.root) {
                    continue;
                }
                root = hashed.root;
                buckets.push(hashed.rows);
            }
            let of = |number| Named::of(buckets.iter().filter_map(|rows| rows.get(number)));
            let mut named = (0..paths.len()).map(of).collect::<Result<Vec<_>, _>>()?;
            let winners = named.iter().filter_map(|named| named.winner.as_ref());
            let beside = Count { retired: root.retired, places: changes };
            live_objects
                .load(self, &root, beside, winners.map(|winner| winner.holder.chunk))
                .await?;
            if live_objects.are_uncertain() || live_objects.are_stale() {
                continue;
            }
            if let Some(log) = live_objects.doubted(&root) {
                named.iter_mut().for_each(|named| named.judge(live_objects, log));
            }
            return Ok(Rows { root: Arc::new(root), named, changes });
        }
    }

    /// Asks for the rows of each path in one bucket of its folder, by its name; none without a root.
    async fn buckets(
        &self,
        dataset: DatasetId,
        keys: Keys,
        paths: &[&FilePath],
        bucket: impl Fn(&[u8]) -> u8,
    ) -> Result<Option<Buckets>, Failure> {
        let mut asks = Vec::with_capacity(2 + paths.len());
        asks.extend([ask_root(dataset), Ask::to(&keys.todo(), "HLEN")]);
        let mut spelling = Spelling::of(keys);
        asks.extend(paths.iter().map(|path| spelling.ask(bucket(path.name()), path)));
        let shards: Vec<Shard> = asks.iter().skip(2).map(|ask| ask.shard).collect();
        let mut answers = self.router.ask(asks).await?.into_iter();
        let root = read_root(dataset, answers.next().unwrap_or(Value::Nil))?;
        let Some(root) = root else { return Ok(None) };
        let todo = number(&answers.next().unwrap_or(Value::Nil))?;
        self.learn(root.keys);
        Ok(Some(Buckets { root, todo, rows: shards.into_iter().zip(answers).collect() }))
    }

    /// Takes deletions into account. None when a process or shard changed its place since the rows were read,
    /// or the dataset was dropped: the rows may lack earlier writes.
    async fn found(
        &self,
        Rows { root, named, changes }: &Rows,
        paths: &[FilePath],
    ) -> Result<Option<Vec<Found>>, Failure> {
        let mut reader = Reader::new(self, root);
        let winners = named.iter().filter_map(|named| named.winner.as_ref());
        reader.deletions.load(self, winners.map(|record| record.version.chunk)).await?;
        // Before other bitmaps are read: these are not kept.
        let is_there = |record: &FileRecord| !reader.deletions.contain(&record.version);
        let files: Vec<_> = named.iter().map(|named| named.winner.filter(is_there)).collect();
        let folders = paths.iter().zip(named).filter(|(_, named)| named.is_folder);
        let folders: Vec<_> = folders.map(|(path, _)| path.as_bytes().to_vec()).collect();
        let mut are_live = hold_live(&mut reader, &folders).await?.into_iter();
        if reader.is_stale() {
            return Ok(None);
        }
        let (mut found, mut doubted) = (Vec::with_capacity(paths.len()), reader.shards);
        for (named, file) in named.iter().zip(files) {
            let is_folder = named.is_folder && are_live.next().unwrap_or_default();
            doubted.extend(named.log);
            found.push(match file {
                _ if is_folder => Found::Folder,
                Some(record) => {
                    doubted.extend(named.newer);
                    Found::File(record)
                }
                None => {
                    doubted.extend(named.shards.iter().flatten());
                    Found::Missing
                }
            });
        }
        let is_still = self.confirm(root.keys, &doubted).await?;
        Ok((is_still && self.is_as(*changes)).then_some(found))
    }

    pub(super) async fn list(
        &self,
        dataset: DatasetId,
        query: &ListQuery,
    ) -> Result<Vec<ListEntry>, Failure> {
        let (mut rounds, mut known) = (self.router.rounds(), None);
        loop {
            let (root, changes) = self.begin(&mut rounds, dataset).await?;
            self.write_overdue_rows(root.keys).await;
            let (mut entries, mut bytes) = (Vec::new(), 0);
            let Some(mut walk) = Walk::of_list(self, &root, query) else { return Ok(entries) };
            walk.go_by(known.take());
            while !query.is_full(entries.len(), bytes) {
                let Some(entry) = walk.next().await? else { break };
                bytes += entry.path().as_bytes().len();
                entries.push(entry);
            }
            let is_whole = !walk.is_stale() && self.confirm(root.keys, walk.shards()).await?;
            if is_whole && self.is_as(changes) {
                return Ok(entries);
            }
            known = Some(walk.into_live_objects());
        }
    }

    pub(super) async fn objects(
        &self,
        dataset: DatasetId,
        after: Option<ChunkId>,
        limit: usize,
    ) -> Result<Vec<ObjectRecord>, Failure> {
        let root = self.root(dataset).await?.ok_or_else(Failure::missing)?;
        // A recovery reads the log, too.
        let mut deletions = Deletions::as_they_are(&root);
        let mut objects: Vec<ObjectRecord> = Vec::new();
        let mut after = after;
        while objects.len() < limit {
            let page = (limit - objects.len()).min(LOG_PAGE);
            let records = self.log_page(root.keys, after, page).await?;
            deletions.load(self, records.iter().map(|record| record.id)).await?;
            let Some(last) = records.last() else { break };
            after = Some(last.id);
            let is_last = records.len() < page;
            objects.extend(records.into_iter().map(|record| ObjectRecord {
                deleted_entries: deleted_entries(deletions.entries(record.id), record.entry_count),
                ..record
            }));
            if is_last {
                break;
            }
        }
        if objects.is_empty() && self.root(dataset).await?.is_none() {
            return Err(Failure::missing());
        }
        Ok(objects)
    }

    /// The deleted entries of chunks.
    pub(super) async fn deleted(
        &self,
        dataset: DatasetId,
        chunks: &[ChunkId],
    ) -> Result<Vec<EntrySet>, Failure> {
        let mut rounds = self.router.rounds();
        loop {
            let (root, changes) = self.begin(&mut rounds, dataset).await?;
            self.write_overdue_rows(root.keys).await;
            let mut deletions = Deletions::of(&root);
            deletions.load(self, chunks.iter().copied()).await?;
            if !deletions.is_stale() && self.is_as(changes) {
                let entries = chunks.iter().map(|chunk| deletions.entries(*chunk).cloned());
                return Ok(entries.map(Option::unwrap_or_default).collect());
            }
        }
    }

    /// All of a log, read with one command, and so at one moment.
    pub(super) async fn log(&self, dataset: DatasetId) -> Result<Vec<ObjectRecord>, Failure> {
        let (mut rounds, mut doubts) = (self.router.rounds(), Doubts::default());
        loop {
            let (before, changes) = self.begin(&mut rounds, dataset).await?;
            let keys = before.keys;
            let all = Ask::to(&keys.log(), "ZRANGEBYLEX").arg("-").arg("+");
            let answers = self.router.ask(vec![all, ask_root(dataset)]).await?;
            let [members, root] = answers.try_into().map_err(|_| Failure::unexpected())?;
            // Read after the log: the dataset must still be the same.
            let root = read_root(dataset, root)?.filter(|root| root.keys == keys);
            let Some(root) = root else {
                self.forget(dataset);
                continue;
            };
            let is_still = self.confirm(keys, &BTreeSet::from([keys.log().shard])).await?;
            if !is_still || !self.is_as(changes) {
                continue;
            }
            let members = strings(members)?;
            if let Err(short) = before.check_log(&root, members.len() as u64) {
                doubts.meet(short)?;
                continue;
            }
            return members.iter().map(|member| decode_object(member)).collect();
        }
    }

    /// Begins a round of a call: Redis lacks nothing, and the dataset exists. Gives the count of changes for
    /// [`Shared::is_as`] as well. Fails when the dataset is missing, or the call had its rounds.
    pub(super) async fn begin(
        &self,
        rounds: &mut Rounds,
        dataset: DatasetId,
    ) -> Result<(DatasetRoot, u64), Failure> {
        loop {
            self.router.again(rounds)?;
            let changes = self.assure().await?;
            if let Some(root) = self.root(dataset).await? {
                return Ok((root, changes));
            }
            self.gone(dataset, changes).await?;
        }
    }

    /// Fails unless the call is to begin anew.
    async fn gone(&self, dataset: DatasetId, changes: u64) -> Result<(), Failure> {
        let is_gone = self.is_gone(dataset, changes).await?;
        if is_gone { Err(Failure::missing()) } else { Ok(()) }
    }

    /// At most `limit` objects of a log, by id, from the first one after `after`; no entry counts as deleted.
    pub(super) async fn log_page(
        &self,
        keys: Keys,
        after: Option<ChunkId>,
        limit: usize,
    ) -> Result<Vec<ObjectRecord>, Failure> {
        // Members go on behind the id: what sorts after all of its own.
        let behind = |id: ChunkId| [b"(", id.as_bytes().as_slice(), &[0xFF]].concat();
        let from = after.map_or_else(|| b"-".to_vec(), behind);
        let ask = Ask::to(&keys.log(), "ZRANGEBYLEX").arg(&from).arg("+");
        let members = self.router.ask_one(ask.arg("LIMIT").arg(0).arg(limit)).await?;
        strings(members)?.iter().map(|member| decode_object(member)).collect()
    }
}

impl Named {
    /// The finding from the rows of one name in one or two buckets, with their shards.
    fn of<'a>(buckets: impl Iterator<Item = &'a (Shard, Value)>) -> Result<Self, Failure> {
        let (mut is_folder, mut winner, mut newer) = (false, None, None);
        let mut shards = [None; 2];
        let mut buckets = buckets.zip(&mut shards).peekable();
        while let Some(((shard, rows), place)) = buckets.next() {
            *place = Some(*shard);
            for row in parts(rows)? {
                let row = string(row)?;
                if row.ends_with(&[0, 0]) && !row[..row.len() - 2].contains(&0) {
                    is_folder = true;
                } else if winner.is_none_or(|winner| row < winner) {
                    // New rows of a folder that became large are not in the first bucket.
                    let next = buckets.peek().map(|((shard, _), _)| *shard);
                    (winner, newer) = (Some(row), next);
                }
            }
        }
        let winner = match winner.map(Member::decode).transpose()? {
            Some(Member::File(_, record)) => Some(record),
            _ => None,
        };
        Ok(Self { is_folder, winner, shards, newer, log: None })
    }

    /// Drops the winner where the log lacks its object.
    fn judge(&mut self, live_objects: &LiveObjects, log: Shard) {
        if self.winner.take_if(|winner| live_objects.lack(winner.holder.chunk)).is_some() {
            self.log = Some(log);
        }
    }
}

/// Makes the questions for paths, in shared buffers.
struct Spelling {
    all_rows: AllRows,
    key: Key,
    range: Vec<u8>,
}

impl Spelling {
    fn of(keys: Keys) -> Self {
        let key = Key { shard: Shard::FIRST, bytes: Vec::new() };
        Self { all_rows: keys.all_rows(), key, range: Vec::new() }
    }

    /// Asks for the rows of the name of `path` in one of the buckets of its folder.
    fn ask(&mut self, bucket: u8, path: &FilePath) -> Ask {
        let name = path.name();
        let end = path.as_bytes().len().saturating_sub(name.len() + 1);
        self.all_rows.spell(bucket, &path.as_bytes()[..end], &mut self.key);
        let [low, high] = spell_range(name, &mut self.range);
        // Few: writers leave one version of a file.
        Ask::to(&self.key, "ZRANGEBYLEX").arg(low).arg(high)
    }
}
