//! The task that writes the file: applies the tail of the logs in batches, and other changes between them.
//!
//! Must hold: no other task writes. A batch is applied when a question waits for the batch, when the tail is
//! large, or when its oldest object is old. Batches become durable together, by size or age of the tail, not
//! singly (rule 10 of the design).

use std::sync::Arc;
use std::time::Duration;

use dl_format::{ChunkId, DatasetId};
use dl_runtime::blocking;
use redb::{ReadableTable, WriteTransaction};

use super::apply::apply;
use super::database::{failed, kind_of};
use super::retire::{Retired, retire};
use super::tables::{DATASETS, DatasetRow, FACTS, IDENTITY_KEY, OPEN_KEY, Tables};
use super::tail::{Command, Failure, Known, Reply};
use super::{Progress, Shared};
use crate::types::{bound_elsewhere, still_in_use};
use crate::{DatasetRecord, Error, Kind};

/// The next step of the writer.
enum Work {
    End,
    Reopen,
    Command(Command, Reply),
    Batch { durable: bool },
    Wait(Option<Duration>),
}

/// Runs until the store is closed or its handle is gone.
pub(super) async fn run(shared: Arc<Shared>) {
    let farewell = loop {
        let woken = shared.wake.notified();
        match shared.next_work() {
            Work::End => break None,
            Work::Reopen => shared.reopen().await,
            Work::Batch { durable } => shared.apply(durable).await,
            Work::Command(command, reply) => {
                let is_close = matches!(command, Command::Close);
                let answer = shared.command(command).await;
                if is_close {
                    break Some((reply, answer));
                }
                // A call that waits for objects of a dropped dataset must look again.
                shared.progress.send_modify(Progress::step);
                // The caller may be gone; the change is made all the same.
                let _ = reply.send(answer);
            }
            Work::Wait(None) => woken.await,
            Work::Wait(Some(time)) => {
                tokio::select! {
                    () = woken => {}
                    () = shared.clock.sleep(time) => {}
                }
            }
        }
    };
    let file = Arc::clone(&shared);
    if blocking::run(move || file.file.close()).await.is_err() {
        tracing::debug!("the runtime ended before the metadata file was let go");
    }
    if let Some((reply, answer)) = farewell {
        // Only now: the caller may open the next store after the answer.
        let _ = reply.send(answer);
    }
}

impl Shared {
    fn next_work(&self) -> Work {
        let mut state = self.state();
        if state.abandoned {
            return Work::End;
        }
        let now = self.clock.monotonic();
        let interval = self.options.sync_interval;
        let age = state.dirty_since.map(|since| now.saturating_sub(since));
        let is_old = age.is_some_and(|age| age >= interval);
        // At once, as reads may go on while writes can't; after a failed try, from time to time.
        if self.file.is_broken() && (is_old || !state.shut || state.is_asked()) {
            return Work::Reopen;
        }
        if let Some((command, reply)) = state.commands.pop_front() {
            return Work::Command(command, reply);
        }
        let is_full = state.bytes() >= self.options.tail_bytes / 2;
        let is_large = state.pending_bytes() >= self.options.tail_bytes / 8;
        // After a failure, only time or a question leads to another try.
        let may_try = state.failure.is_none() || state.is_asked();
        if is_old && (state.has_pending() || state.has_unsynced()) {
            return Work::Batch { durable: true };
        }
        if may_try && (is_full || state.has_pending() && (is_large || state.is_asked())) {
            return Work::Batch { durable: is_full };
        }
        Work::Wait(age.map(|age| interval.saturating_sub(age)))
    }

    async fn reopen(self: &Arc<Self>) {
        // Before the file loses its last commits: no answer may lack them.
        self.state().fall_back();
        let shared = Arc::clone(self);
        match blocking::run(move || shared.file.reopen()).await {
            Ok(Ok(())) => {
                tracing::info!(store = %self.name, "opened the metadata file again");
                self.state().mended();
            }
            Ok(Err(error)) => {
                self.state().shut = true;
                self.failed(&error);
            }
            Err(_) => self.state().abandoned = true,
        }
    }

    /// Applies a batch. An empty batch makes all earlier batches durable.
    async fn apply(self: &Arc<Self>, durable: bool) {
        let (batch, hints) = {
            let state = self.state();
            let batch = state.batch();
            let hints = state.hints(&batch);
            (batch, hints)
        };
        let (shared, count) = (Arc::clone(self), batch.len());
        let applied = blocking::run(move || {
            let _change = shared.rows.change(hints.keys().copied());
            shared.file.write(durable, |transaction| apply(transaction, &batch, &hints))
        });
        match applied.await {
            Ok(Ok(())) => {
                self.state().done(count, durable, self.clock.monotonic());
                self.progress.send_modify(Progress::step);
            }
            Ok(Err(error)) => self.failed(&error),
            Err(_) => self.state().abandoned = true,
        }
    }

    /// Logs the failure, and reports it to waiting calls. The write is tried again later.
    fn failed(&self, error: &redb::Error) {
        let kind = kind_of(error);
        tracing::error!(store = %self.name, error = %error, "can't write metadata; will try again");
        let failure = Failure { kind, why: error.to_string() };
        self.state().fail(failure, self.clock.monotonic());
        self.progress.send_modify(Progress::step);
    }

    async fn command(self: &Arc<Self>, command: Command) -> Result<(), Error> {
        if let Command::Close = command {
            self.drain("close", u64::MAX).await?;
        } else if self.file.is_broken() {
            // The caller gets the reason of the failed write, not the news of a shut file.
            self.reopen().await;
            self.check("write metadata of")?;
        }
        // After a reopening, retired objects may be pending again, and would join the log later.
        if let Command::Retire(..) = command {
            let appended = self.state().appended();
            self.drain("write metadata of", appended).await?;
        }
        let shared = Arc::clone(self);
        blocking::run(move || match command {
            Command::Bind(store) => {
                if let Some(bound) = shared.state().identity {
                    let same = bound == store;
                    return if same { Ok(()) } else { Err(bound_elsewhere(store, bound)) };
                }
                let write = |transaction: &WriteTransaction| {
                    transaction
                        .open_table(FACTS)?
                        .insert(IDENTITY_KEY, store.as_bytes().as_slice())?;
                    Ok(())
                };
                shared.file.write(true, write).map_err(failed("bind metadata to", store))?;
                shared.state().identity = Some(store);
                Ok(())
            }
            Command::Put(record) => shared.put(record),
            Command::Drop(id) => {
                let _change = shared.rows.change([id]);
                let write = |transaction: &WriteTransaction| remove(transaction, id);
                shared.file.write(true, write).map_err(failed("drop dataset", id))?;
                shared.state().purge(id);
                Ok(())
            }
            Command::Retire(id, objects) => shared.retire(id, &objects),
            Command::Close => shared.finish(),
        })
        .await
        .unwrap_or_else(|stopped| {
            Err(Error::because(Kind::Unavailable, "write metadata of", &self.name, stopped))
        })
    }

    fn put(&self, record: DatasetRecord) -> Result<(), Error> {
        let replaced = {
            let mut state = self.state();
            let named = state.named(&record.name).map(|known| &known.record);
            let known = state.datasets.get(&record.id).map(|known| &known.record);
            let replaced = record.check_put(named, known)?;
            if let Some(replaced) = replaced {
                state.forget(replaced);
            }
            replaced
        };
        let _change = self.rows.change(replaced);
        let row = self
            .file
            .write(true, |transaction| put(transaction, &record))
            .map_err(failed("put dataset", &record.name))?;
        let mut state = self.state();
        if let Some(replaced) = replaced {
            state.purge(replaced);
        }
        match state.datasets.get_mut(&record.id) {
            Some(known) => known.record = record,
            None => state.insert(Known::new(record, row.last().max(row.given))),
        }
        Ok(())
    }

    /// Durable at once: the retired objects are removed from the chunk store next.
    fn retire(&self, id: DatasetId, objects: &[ChunkId]) -> Result<(), Error> {
        let action = "retire objects of dataset";
        let given = self.state().known(id, action)?.last;
        let write = |transaction: &WriteTransaction| retire(transaction, id, objects, given);
        let retired = self.file.write(true, write).map_err(failed(action, id))?;
        // All batches applied before are durable with the same commit.
        self.state().done(0, true, self.clock.monotonic());
        match retired {
            Retired::Done => Ok(()),
            Retired::InUse => Err(still_in_use(id)),
            Retired::NoDataset => Err(Error::new(Kind::Missing, action, id)),
        }
    }

    /// Applies all pending objects, at least up to `last`.
    async fn drain(self: &Arc<Self>, action: &'static str, last: u64) -> Result<(), Error> {
        self.state().failure = None;
        loop {
            if self.file.is_broken() {
                self.reopen().await;
            } else if self.state().is_pending(last) {
                self.apply(true).await;
            } else {
                return Ok(());
            }
            self.check(action)?;
        }
    }

    /// Fails as the last write of the file did.
    fn check(&self, action: &'static str) -> Result<(), Error> {
        let state = self.state();
        match &state.failure {
            Some(Failure { kind, why }) => {
                Err(Error::because(*kind, action, &self.name, why.clone()))
            }
            None if state.abandoned => Err(Error::new(Kind::Unavailable, action, &self.name)),
            None => Ok(()),
        }
    }

    /// Stores the given stamps and the note of a clean stop.
    fn finish(&self) -> Result<(), Error> {
        let given: Vec<_> =
            self.state().datasets.iter().map(|(id, known)| (*id, known.last)).collect();
        let write = |transaction: &WriteTransaction| {
            let mut datasets = transaction.open_table(DATASETS)?;
            for (id, last) in &given {
                let key = id.as_bytes().as_slice();
                let row = datasets.get(key)?.map(|row| DatasetRow::decode(key, row.value()));
                let Some(mut row) = row.transpose()? else { continue };
                if row.given < *last {
                    row.given = *last;
                    datasets.insert(key, row.encode()?.as_slice())?;
                }
            }
            transaction.open_table(FACTS)?.remove(OPEN_KEY)?;
            Ok(())
        };
        self.file.write(true, write).map_err(failed("close", &self.name))
    }
}

/// Writes the record of a dataset; removes another dataset of the same name.
fn put(transaction: &WriteTransaction, record: &DatasetRecord) -> Result<DatasetRow, redb::Error> {
    let key = record.id.as_bytes().as_slice();
    let before = {
        let datasets = transaction.open_table(DATASETS)?;
        let row = datasets.get(key)?.map(|row| DatasetRow::decode(key, row.value()));
        row.transpose()?
    };
    // A dataset under its own name has the name alone: no look at other rows, which may be many.
    if before.as_ref().is_none_or(|row| row.record.name != record.name) {
        let mut others = Vec::new();
        for row in transaction.open_table(DATASETS)?.iter()? {
            let (key, row) = row?;
            let row = DatasetRow::decode(key.value(), row.value())?;
            if row.record.id != record.id && row.record.name == record.name {
                others.push(row.record.id);
            }
        }
        for other in others {
            remove(transaction, other)?;
        }
    }
    let mut row = before.unwrap_or_else(|| DatasetRow::new(record.clone()));
    row.record = record.clone();
    let tables = Tables::of(record.id);
    transaction.open_table(tables.objects())?;
    transaction.open_table(tables.deleted())?;
    transaction.open_table(tables.paths())?;
    transaction.open_table(DATASETS)?.insert(key, row.encode()?.as_slice())?;
    Ok(row)
}

fn remove(transaction: &WriteTransaction, id: DatasetId) -> Result<(), redb::Error> {
    transaction.open_table(DATASETS)?.remove(id.as_bytes().as_slice())?;
    let tables = Tables::of(id);
    for table in [tables.objects(), tables.deleted(), tables.paths()] {
        transaction.delete_table(table)?;
    }
    Ok(())
}
