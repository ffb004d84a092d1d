//! Datasets: their roots, their names, their counts and their ends.
//!
//! Must hold: a dataset exists while its root has a record; the root is one key, so a dataset begins and
//! ends in one step. A name that points to a missing root stands for nothing.
//!
//! # Counting
//!
//! Files are counted by a walk over the rows, once for all calls at the same time. The root keeps the result
//! until an object joins or leaves the log. A counter would not work: whether a row adds a file depends on
//! other rows of its name, on bitmaps, on hashed buckets and on the log, in four shards that no step changes
//! together. Each step may run twice, so an increment elsewhere may count twice. And a delete would have to
//! visit every row of its bitmaps.

use std::sync::Arc;
use std::time::Duration;

use dl_format::{DatasetId, DatasetName, Stamp, Version};
use dl_runtime::Deadline;
use futures::future::join_all;
use redis::Value;

use super::Shared;
use super::command::{Ask, bytes, decimal, number, pairs};
use super::dataset_root::{Counted, DatasetRoot, Doubts, STAMP_MAX};
use super::failure::Failure;
use super::gather::Gathering;
use super::keys::{self, Epoch, Keys};
use super::live_objects::LiveObjects;
use super::read::LOG_PAGE;
use super::records::{NameTarget, encode_dataset};
use super::scripts::{COUNTED, KILL, PUT, REPLACE, STAMP};
use super::sweep::Left;
use super::tree::Walk;
use crate::{DatasetInfo, DatasetRecord, DatasetState, Error, Kind, Outline};

/// The largest distance of two servers' clocks: each may be 15 minutes off a client's clock.
const AHEAD_MICROS: u64 = 30 * 60 * 1_000_000;

/// How long to try to keep a count.
const KEEPS: Duration = Duration::from_millis(500);

impl Shared {
    /// The record of a dataset, read once for all calls at the same time.
    pub(super) async fn record_together(
        self: &Arc<Self>,
        id: DatasetId,
    ) -> Result<Option<DatasetRecord>, Failure> {
        let read = move |shared: Arc<Self>| async move {
            Ok(shared.root(id).await?.map(|root| root.record))
        };
        self.together(|shared| &shared.records, id, read).await
    }

    /// The answer to a question about a dataset, asked once for all calls at the same time.
    async fn together<T, R>(
        self: &Arc<Self>,
        gathering: fn(&Self) -> &Gathering<DatasetId, (), T>,
        id: DatasetId,
        read: impl Fn(Arc<Self>) -> R + Send + Sync + 'static,
    ) -> Result<T, Failure>
    where
        T: Clone + Send + 'static,
        R: Future<Output = Result<T, Failure>> + Send,
    {
        let (waiting, is_runner) = gathering(self).join(id, ());
        if is_runner {
            let shared = Arc::clone(self);
            dl_runtime::spawn_for_all(async move {
                let read = |calls: Vec<()>| {
                    let answer = read(Arc::clone(&shared));
                    async move { Ok(vec![answer.await?; calls.len()]) }
                };
                gathering(&shared).run(id, read).await;
            });
        }
        waiting.answer().await
    }

    pub(super) async fn named(&self, name: &DatasetName) -> Result<Option<NameTarget>, Failure> {
        let answer =
            self.router.ask_one(Ask::to(&keys::names(), "HGET").arg(name.as_str())).await?;
        bytes(answer)?.as_deref().map(NameTarget::decode).transpose()
    }

    pub(super) async fn root_named(
        &self,
        name: &DatasetName,
    ) -> Result<Option<DatasetRoot>, Failure> {
        let Some(named) = self.named(name).await? else { return Ok(None) };
        let root = self.root(named.id).await?;
        Ok(root.filter(|root| root.record.name == *name))
    }

    /// The records of all datasets, by name.
    pub(super) async fn all_records(&self) -> Result<Vec<DatasetRecord>, Failure> {
        let mut rounds = self.router.rounds();
        loop {
            self.router.again(&mut rounds)?;
            let changes = self.assure().await?;
            let records = self.records_there().await?;
            if self.is_as(changes) {
                return records.into_iter().collect();
            }
        }
    }

    /// The records that are there, whatever is missing; a damaged record costs no other.
    pub(super) async fn remnants(&self) -> Result<Vec<DatasetRecord>, Failure> {
        let mut records = Vec::new();
        for record in self.records_there().await? {
            match record {
                Ok(record) => records.push(record),
                Err(failure) if failure.kind.is_retryable() => return Err(failure),
                Err(failure) => tracing::error!(%failure, "the record of a dataset can't be read"),
            }
        }
        Ok(records)
    }

    /// The records that the names point to, in the order of names.
    async fn records_there(&self) -> Result<Vec<Result<DatasetRecord, Failure>>, Failure> {
        let mut names = pairs(self.router.ask_one(Ask::to(&keys::names(), "HGETALL")).await?)?;
        names.sort_unstable();
        let records = names.into_iter().map(|(name, named)| async move {
            let root = self.root(NameTarget::decode(&named)?.id).await?;
            let record = root.map(|root| root.record);
            Ok(record.filter(|record| record.name.as_str().as_bytes() == name))
        });
        let records = join_all(records).await;
        Ok(records.into_iter().filter_map(Result::transpose).collect())
    }

    /// The objects of a log, read once for all calls at the same time; none when the dataset was dropped.
    pub(super) async fn outline_together(
        self: &Arc<Self>,
        id: DatasetId,
    ) -> Result<Option<Outline>, Failure> {
        let read = move |shared: Arc<Self>| async move { if_there(shared.outline(id).await) };
        self.together(|shared| &shared.outlines, id, read).await
    }

    async fn outline(&self, id: DatasetId) -> Result<Outline, Failure> {
        let (mut rounds, mut doubts) = (self.router.rounds(), Doubts::default());
        loop {
            let (root, changes) = self.begin(&mut rounds, id).await?;
            if let Some(counted) = root.counted
                && counted.objects == root.objects
                && counted.objects == self.length(root.keys).await?
                && self.is_as(changes)
            {
                let Counted { objects, version, .. } = counted;
                return Ok(Outline { record: root.record, objects, version });
            }
            let (objects, version) = self.version(root.keys).await?;
            let again = self.root(id).await?;
            // The log that was read must be complete, and of the current epoch.
            if let Some(again) =
                again.filter(|again| again.keys == root.keys && self.is_as(changes))
            {
                if let Err(short) = root.check_log(&again, objects) {
                    doubts.meet(short)?;
                    continue;
                }
                return Ok(Outline { record: again.record, objects, version });
            }
        }
    }

    /// The number of objects in a log.
    async fn length(&self, keys: Keys) -> Result<u64, Failure> {
        let length = number(&self.router.ask_one(Ask::to(&keys.log(), "ZCARD")).await?)?;
        Ok(u64::try_from(length).unwrap_or_default())
    }

    /// The sums over a dataset, counted once for all calls at the same time; none when it was dropped.
    pub(super) async fn info_together(
        self: &Arc<Self>,
        id: DatasetId,
    ) -> Result<Option<DatasetInfo>, Failure> {
        let count =
            move |shared: Arc<Self>| async move { if_there(Box::pin(shared.info(id)).await) };
        self.together(|shared| &shared.infos, id, count).await
    }

    async fn info(&self, id: DatasetId) -> Result<DatasetInfo, Failure> {
        let (mut rounds, mut doubts) = (self.router.rounds(), Doubts::default());
        let mut known = None;
        let (record, counted, is_settled) = loop {
            let (root, changes) = self.begin(&mut rounds, id).await?;
            if let Some(counted) = root.counted
                && counted.objects == root.objects
                && self.is_as(changes)
            {
                break (root.record, counted, true);
            }
            self.write_overdue_rows(root.keys).await;
            let (counted, is_settled) =
                match Box::pin(self.count(&root, changes, known.take())).await? {
                    Ok(counted) => counted,
                    Err(stale) => {
                        known = Some(stale);
                        continue;
                    }
                };
            let Some(again) = self.root(id).await? else { continue };
            // The count must include deletions, and be of the current epoch.
            let has_deletions = again.tombstones == 0 || root.tombstones > 0;
            if again.keys == root.keys && has_deletions && self.is_as(changes) {
                if let Err(short) = root.check_log(&again, counted.objects) {
                    doubts.meet(short)?;
                    continue;
                }
                break (again.record, counted, is_settled);
            }
        };
        let Counted { objects, version, files, bytes } = counted;
        Ok(DatasetInfo { record, files, bytes, objects, version, is_settled })
    }

    /// Whether all objects of the log have their rows.
    async fn is_settled(&self, keys: Keys) -> Result<bool, Failure> {
        Ok(number(&self.router.ask_one(Ask::to(&keys.todo(), "EXISTS")).await?)? == 0)
    }

    /// Walks over all files, and keeps the result unless an object was appended meanwhile. Gives as well
    /// whether all earlier appends are settled. A walk that has to begin anew gives its live objects.
    async fn count(
        &self,
        root: &DatasetRoot,
        changes: u64,
        known: Option<LiveObjects>,
    ) -> Result<Result<(Counted, bool), LiveObjects>, Failure> {
        let was_settled = self.is_settled(root.keys).await?;
        let (mut files, mut size) = (0u64, 0u64);
        let mut walk = Walk::of_everything(self, root);
        walk.go_by(known);
        while let Some((_, record)) = walk.next_file().await? {
            files = files.saturating_add(1);
            size = size.saturating_add(record.length);
        }
        if walk.is_stale() {
            return Ok(Err(walk.into_live_objects()));
        }
        // Otherwise no result is kept, and the caller looks at the root again.
        let is_whole = self.confirm(root.keys, walk.shards()).await? && self.is_as(changes);
        let (objects, version) = self.version(root.keys).await?;
        if was_settled && is_whole && objects == root.objects {
            let ask = Ask::script(&COUNTED, &root.keys.root(), &[&root.keys.todo()])
                .arg(root.keys.epoch.to_string())
                .arg(objects)
                .arg(version.to_bytes().as_slice())
                .arg(files)
                .arg(size)
                .arg(root.changes);
            // The caller gets its count also where Redis takes no writes.
            let clock = &*self.clock;
            let kept = Deadline::after(clock, KEEPS).bound(clock, self.router.ask_one(ask)).await;
            if let Ok(Err(failure)) = kept {
                tracing::debug!(dataset = %root.keys.dataset, why = %failure, "a count is not kept");
            }
        }
        let is_settled = self.is_settled(root.keys).await?;
        Ok(Ok((Counted { objects, version, files, bytes: size }, is_settled)))
    }

    /// The number of objects in the log, and the version that they make.
    async fn version(&self, keys: Keys) -> Result<(u64, Version), Failure> {
        let (mut objects, mut version, mut after) = (0, Version::default(), None);
        loop {
            let page = self.log_page(keys, after, LOG_PAGE).await?;
            page.iter().for_each(|object| version.add(object.id, object.stamp));
            objects += page.len() as u64;
            after = page.last().map(|object| object.id);
            if page.len() < LOG_PAGE {
                return Ok((objects, version));
            }
        }
    }

    pub(super) async fn stamp(&self, dataset: DatasetId, now: Stamp) -> Result<Stamp, Failure> {
        if now.get() > STAMP_MAX {
            let why = "the time is later than Redis can count; set the clock of the server";
            return Err(Failure::because(Kind::Unsupported, why));
        }
        let mut rounds = self.router.rounds();
        loop {
            self.router.again(&mut rounds)?;
            let changes = self.router.changes();
            let is_whole = match self.assure().await {
                Ok(_) => true,
                Err(_) if self.health().damage().is_some() => false,
                Err(failure) => return Err(failure),
            };
            // Also above stamps that a damaged Redis forgot: stamps of this server, and of servers with
            // clocks ahead.
            let ahead = if is_whole { 0 } else { AHEAD_MICROS };
            let now = Stamp::new(now.get().saturating_add(ahead).min(STAMP_MAX));
            let now = now.max(self.stamps().floor(dataset));
            let ask = Ask::script(&STAMP, &keys::root(dataset), &[]).arg(now.get());
            let answer = self.router.ask_one(ask).await?;
            if !self.is_as(changes) {
                continue;
            }
            if let Value::Int(_) = answer {
                return Err(Failure::missing());
            }
            let stamp = Stamp::new(decimal(bytes(answer)?.as_ref())?);
            self.stamps().raise(dataset, stamp, Stamp::at(self.clock.now()));
            return Ok(stamp);
        }
    }

    pub(super) async fn put(&self, record: &DatasetRecord) -> Result<Result<(), Error>, Failure> {
        let stored = encode_dataset(record)?;
        let new = NameTarget { generation: record.generation, id: record.id };
        let mut rounds = self.router.rounds();
        loop {
            self.router.again(&mut rounds)?;
            let named = self.named(&record.name).await?;
            let known = self.root(record.id).await?;
            let holder = match named {
                Some(named) => self.holder(record, named).await?,
                None => None,
            };
            let known_record = known.as_ref().map(|known| &known.record);
            let replaced = match record.check_put(holder.as_ref(), known_record) {
                Ok(replaced) => replaced,
                Err(conflict) => return Ok(Err(conflict)),
            };
            if let Some(replaced) = replaced
                && let Some(root) = self.root(replaced).await?
            {
                self.kill(&root).await?;
            }
            let before = known.as_ref().map(|known| known.stored.as_slice()).unwrap_or_default();
            if known.is_none() && record.state == DatasetState::Recovering {
                // Its root may have been lost with one shard, and other shards have keys of its epoch.
                self.to_sweep(Left::Others(record.id)).await?;
            }
            let epoch = Epoch::new(self.random.u64()).to_string();
            let ask = Ask::script(&PUT, &keys::root(record.id), &[]);
            let put = self.router.ask_one(ask.arg(before).arg(&stored).arg(epoch)).await?;
            if number(&put)? == 0 {
                continue;
            }
            let before = named.map(NameTarget::encode).unwrap_or_default();
            let ask = Ask::script(&REPLACE, &keys::names(), &[]).arg(record.name.as_str());
            let replaced = self.router.ask_one(ask.arg(before).arg(new.encode())).await?;
            if number(&replaced)? != 0 {
                return Ok(Ok(()));
            }
            // Another call was faster with the name. The root of this call must not stay.
            let winner = self.named(&record.name).await?;
            if known.is_none()
                && winner.is_some_and(|winner| winner.id != record.id)
                && let Some(root) = self.root(record.id).await?
                && root.stored == stored
            {
                self.kill(&root).await?;
            }
        }
    }

    /// The record that a name stands for; where its root is gone, a record from the name itself. A lost
    /// dataset does not hold its name against another one: the chunk store decides between them.
    async fn holder(
        &self,
        record: &DatasetRecord,
        named: NameTarget,
    ) -> Result<Option<DatasetRecord>, Failure> {
        let root = self.root(named.id).await?;
        if root.is_none() && named.generation == record.generation && named.id != record.id {
            return Ok(None);
        }
        let root = root.filter(|root| root.record.name == record.name);
        Ok(Some(root.map_or_else(
            || DatasetRecord { generation: named.generation, id: named.id, ..record.clone() },
            |root| root.record,
        )))
    }

    /// Ends a dataset, and notes that its keys have to be removed.
    async fn kill(&self, root: &DatasetRoot) -> Result<(), Failure> {
        let keys = root.keys;
        self.to_sweep(Left::Epoch(keys)).await?;
        let ask = Ask::script(&KILL, &keys.root(), &[&keys.log(), &keys.todo()]);
        self.router.ask_one(ask.arg(keys.epoch.to_string())).await?;
        self.forget(keys.dataset);
        self.sweep_now.notify_one();
        Ok(())
    }

    pub(super) async fn drop_dataset(
        &self,
        name: &DatasetName,
        id: DatasetId,
    ) -> Result<(), Failure> {
        let root = self.root(id).await?;
        if let Some(root) = &root {
            self.kill(root).await?;
        } else if self.health().damage().is_some() {
            // There may have been a root, and the note of its end may be lost.
            self.to_sweep(Left::All(id)).await?;
        }
        let name = root.as_ref().map_or(name, |root| &root.record.name);
        if let Some(named) = self.named(name).await?.filter(|named| named.id == id) {
            let ask = Ask::script(&REPLACE, &keys::names(), &[]);
            self.router.ask_one(ask.arg(name.as_str()).arg(named.encode()).arg("")).await?;
        }
        Ok(())
    }
}

/// The answer about a dataset; none for a missing dataset.
fn if_there<T>(answer: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match answer {
        Err(failure) if failure.kind == Kind::Missing => Ok(None),
        answer => answer.map(Some),
    }
}
