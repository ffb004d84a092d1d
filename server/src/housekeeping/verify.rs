//! Verify: compares a dataset's metadata with the chunk store, by the rules of the fold.
//!
//! Must hold: a verification changes nothing and holds a share of the paths at a time; each finding names the
//! problem and the remedy; a change during the verification is no finding.

mod damaged;
mod lost;
mod objects;

use std::collections::HashSet;

use bytes::Bytes;
use dl_format::{ChunkId, DatasetId, DatasetName, FilePath, FileRecord, NameState, ObjectKind};
use dl_meta::{DatasetInfo, DatasetState, Found, ListEntry, ListQuery, ObjectRecord};
use dl_proto::{Finding, Kind, VerifyProgress, VerifyRequest};
use dl_store::{Key, StoreExt};
use futures::stream::{self, StreamExt};
use tokio::sync::mpsc;

use self::damaged::Damaged;
use crate::answers::answer::{Reply, TOLD_TOGETHER, hand_over, told_together};
use crate::auth::Caller;
use crate::datasets::catalog::{self, Detail};
use crate::datasets::names;
use crate::datasets::survey::{Away, Rows, Survey};
use crate::error::{Doing, Error};
use crate::housekeeping::turns::Turns;
use crate::shared::context::{Budget, ServerContext};

/// Paths looked up together.
const PATHS_AT_ONCE: usize = 4_096;
/// Entries of a page of a listing.
const PAGE_ENTRIES: usize = 4_096;
/// Bytes of the paths of a page.
const PAGE_BYTES: usize = 1 << 20;
/// Whole objects read in parallel.
const OBJECTS_AT_ONCE: usize = 4;
/// The most findings kept until the end, when a change of the dataset is known.
const DOUBTED_MAX: usize = 10_000;

type Progress = mpsc::Sender<Reply<VerifyProgress>>;

/// Verifies the dataset of a request; reports findings through `progress`.
pub(crate) async fn verify(
    context: &ServerContext,
    (memory, turns): (&Budget, &Turns),
    request: VerifyRequest,
    caller: &Caller,
    progress: &Progress,
) -> Result<(), Error> {
    let id = catalog::by_name(context, &request.dataset, caller, Detail::Record).await?.id;
    match compare(context, (memory, turns), request, id, progress).await {
        Err(error) => Err(catalog::explained(context, id, error).await),
        done => done,
    }
}

async fn compare(
    context: &ServerContext,
    (memory, turns): (&Budget, &Turns),
    request: VerifyRequest,
    id: DatasetId,
    progress: &Progress,
) -> Result<(), Error> {
    let shape = catalog::by_id(context, id).await?.shape;
    let state = VerifyProgress { dataset: request.dataset.to_string(), ..Default::default() };
    let _turn = turns
        .survey(context, || match progress.try_send(Reply::More(state.clone())) {
            Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        })
        .await?;
    let (doubted, lost) = (Vec::new(), HashSet::new());
    let mut verify = Verify {
        context,
        id,
        progress,
        state,
        doubted,
        uncompared: 0,
        hidden: (0, 0),
        missing: 0,
        lost,
    };
    let before = verify.info().await?;
    let mut survey = Survey::read(context, id).await?;
    verify.state.objects = survey.objects.len() as u64;
    let (mut files, mut bytes) = (0u64, 0u64);
    let heard = |checked| verify.mention(checked);
    let mut shares = survey.shares(context, shape, heard).await?;
    verify.state.checked = verify.state.objects;
    while let Some(rows) = shares.next().await? {
        let (more, more_bytes) = verify.compare(&survey, &rows).await?;
        files += more;
        bytes = bytes.saturating_add(more_bytes);
        verify.state.files = files;
        verify.tell().await?;
    }
    verify.named(&request.dataset).await?;
    verify.objects(&survey).await?;
    verify.part_headers(&survey).await?;
    if request.checksums {
        verify.checksums(&survey, memory).await?;
    }
    let listed = if survey.is_whole() { Some(verify.shown().await?) } else { None };
    let after = verify.info().await?;
    // Files of objects that were not settled before may have been found in their earlier versions.
    let is_same = before.is_settled && before.version == after.version;
    if is_same {
        verify.counts(&survey, &after, listed, (files, bytes)).await?;
    }
    verify.end(is_same).await
}

/// Pages of all files of a dataset.
fn everything() -> ListQuery {
    let root = ListQuery::of(dl_format::DirPath::ROOT, true, PAGE_ENTRIES);
    ListQuery { bytes: PAGE_BYTES, ..root }
}

struct Verify<'a> {
    context: &'a ServerContext,
    id: DatasetId,
    progress: &'a Progress,
    state: VerifyProgress,
    /// Findings that need an unchanged dataset.
    doubted: Vec<Doubt>,
    /// The number of findings beyond [`DOUBTED_MAX`].
    uncompared: u64,
    /// The number and the bytes of files hidden by folders.
    hidden: (u64, u64),
    /// The number of files of the chunks without a row in the metadata.
    missing: u64,
    /// Objects reported as lost, damaged or unreadable.
    lost: HashSet<ChunkId>,
}

/// A row of the metadata that differs from the chunks.
struct Doubt {
    problem: String,
    /// The chunk of the file by the metadata.
    holder: Option<ChunkId>,
    remedy: Remedy,
}

/// The remedy for a row of the metadata that differs from the chunks.
enum Remedy {
    /// A recovery writes the rows anew.
    Rebuild,
    /// A recovery, unless a lost object had deleted or replaced this file.
    PutAgain(FilePath),
    Other(String),
}

impl Verify<'_> {
    fn name(&self) -> String {
        format!("dl://{}", self.state.dataset)
    }

    async fn info(&self) -> Result<DatasetInfo, Error> {
        let info = self.context.meta.dataset(self.id).await.doing("describe dataset", self.id)?;
        let why = "it was deleted meanwhile";
        info.ok_or_else(|| Error::new(Kind::NotFound, "find dataset", self.id, why))
    }

    async fn find(&mut self, problem: String, remedy: impl Into<String>) -> Result<(), Error> {
        self.state.findings.push(Finding { problem, remedy: remedy.into() });
        if self.state.findings.len() < TOLD_TOGETHER {
            return Ok(());
        }
        self.tell().await
    }

    fn doubt(&mut self, problem: String, holder: Option<ChunkId>, remedy: Remedy) {
        if self.doubted.len() < DOUBTED_MAX {
            self.doubted.push(Doubt { problem, holder, remedy });
        } else {
            self.uncompared += 1;
        }
    }

    /// The remedy for rows that differ from the chunks.
    fn rebuild(&self) -> String {
        if !self.lost.is_empty() {
            // Rebuilt metadata would lack the files of the lost objects.
            return format!(
                "mend first what is said to be damaged or lost, then run `dlcmd verify {}` again; \
                 until then keep the metadata, which alone has what those objects said",
                self.name()
            );
        }
        format!(
            "{}; if that does not mend it, stop the servers, empty the metadata store, start them, \
             run `dlcmd recover --all`",
            self.recover()
        )
    }

    /// The remedy for a file with damaged bytes.
    fn put_again(&self, path: &FilePath) -> String {
        format!("put {path} again: `dlcmd put --checksum SRC {}`", self.name())
    }

    /// The remedy for a file of the chunks without a row in the metadata.
    fn put_or_delete(&self, path: &FilePath) -> String {
        let first = match self.lost.is_empty() {
            true => format!("{}; if the file is missing then", self.recover()),
            false => {
                "restore the objects that are lost or damaged; without a copy of them".to_owned()
            }
        };
        format!("{first}, put {path} again, and delete it if it is to be gone")
    }

    fn recover(&self) -> String {
        format!("run `dlcmd recover {}`", self.name())
    }

    /// Compares files with the metadata; gives their number and their bytes.
    async fn compare(&mut self, survey: &Survey, rows: &Rows) -> Result<(u64, u64), Error> {
        let (mut files, mut bytes) = (0, 0u64);
        let mut expected = Vec::with_capacity(PATHS_AT_ONCE);
        for (path, winner, _) in rows.paths() {
            let path = FilePath::new(Bytes::copy_from_slice(path))
                .map_err(|error| Error::new(Kind::Internal, "look up", "a path", error))?;
            let is_file = !survey.deleted.contains(&winner.record.version);
            if is_file {
                files += 1;
                bytes = bytes.saturating_add(winner.record.length);
            }
            expected.push((path, is_file.then_some(winner.record)));
            if expected.len() >= PATHS_AT_ONCE {
                self.look_up(std::mem::take(&mut expected)).await?;
            }
        }
        self.look_up(expected).await?;
        Ok((files, bytes))
    }

    async fn look_up(
        &mut self,
        expected: Vec<(FilePath, Option<FileRecord>)>,
    ) -> Result<(), Error> {
        let paths: Vec<FilePath> = expected.iter().map(|(path, _)| path.clone()).collect();
        let found = self
            .context
            .meta
            .lookup(self.id, &paths)
            .await
            .doing("look up files of dataset", self.id)?;
        for ((path, expected), found) in expected.into_iter().zip(found) {
            match (expected, found) {
                (Some(expected), Found::File(found)) if expected == found => {}
                (None, Found::Missing | Found::Folder) => {}
                (Some(file), Found::Folder) => {
                    self.hidden.0 += 1;
                    self.hidden.1 = self.hidden.1.saturating_add(file.length);
                    let problem = format!("{path} is a file and a folder; the folder holds");
                    let remedy = format!(
                        "`dlcmd rm -r {}/{path}/` deletes the files of the folder, and the file is \
                         back; without the last slash it is deleted with them. To keep the folder, \
                         get it before, and put it again: elsewhere, if the file is to stay",
                        self.name()
                    );
                    self.doubt(problem, None, Remedy::Other(remedy));
                }
                (Some(expected), Found::Missing) => {
                    let chunk = expected.holder.chunk;
                    let problem = format!("{path} of chunk {chunk} is not in the metadata");
                    self.missing += 1;
                    self.doubt(problem, None, Remedy::PutAgain(path));
                }
                (Some(_), Found::File(found)) => {
                    let chunk = found.holder.chunk;
                    let problem =
                        format!("{path}: the metadata has another version, of chunk {chunk}");
                    self.doubt(problem, Some(chunk), Remedy::Rebuild);
                }
                (None, Found::File(found)) => {
                    let problem = format!("{path} is deleted, and the metadata still has it");
                    self.doubt(problem, Some(found.holder.chunk), Remedy::Rebuild);
                }
            }
        }
        Ok(())
    }

    /// Compares the name with its object in the chunk store.
    async fn named(&mut self, name: &DatasetName) -> Result<(), Error> {
        let again = format!("run `dlcmd verify {}` again then", self.name());
        let (problem, remedy) = match names::newest(self.context, name).await {
            Ok(Some(named)) if named.record.dataset != self.id => {
                (names::changed(name, named.generation), again)
            }
            Ok(Some(named)) if named.record.state == NameState::Live => return Ok(()),
            Ok(Some(_)) => ("its name says that it was deleted".to_owned(), self.recover()),
            Ok(None) => ("its name is not in the chunk store".to_owned(), self.recover()),
            Err(error) if error.kind == Kind::Corrupt => (error.chain(), again),
            Err(error) => return Err(error),
        };
        // A deletion that runs meanwhile writes the name first.
        let record = self.context.meta.record(self.id).await.doing("find dataset", self.id)?;
        match record {
            Some(record) if record.state != DatasetState::Ending => {
                self.find(problem, remedy).await
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Reads every byte of every object.
    async fn checksums(&mut self, survey: &Survey, memory: &Budget) -> Result<(), Error> {
        let context = self.context;
        let stored: Vec<(ObjectRecord, Key)> = survey
            .objects
            .iter()
            // An object of another length was reported before.
            .filter(|object| survey.stored.get(&object.id) == Some(&object.object_length))
            .filter(|object| object.kind != ObjectKind::Part || !self.lost.contains(&object.id))
            .map(|object| (*object, survey.key(object)))
            .collect();
        let mut checked = stream::iter(stored)
            .map(move |(object, key)| async move {
                let room = memory.take(object.object_length, context).await?;
                let body = context.store.read_all(&key).await;
                let damaged = body.map(|body| Damaged::of(&body));
                drop(room);
                let damaged = damaged.storing("read object", &key);
                Ok::<_, Error>((object, damaged))
            })
            .buffered(OBJECTS_AT_ONCE);
        let mut away = Away::default();
        self.state.checked = 0;
        while let Some(one) = checked.next().await {
            let (object, damaged) = one?;
            self.state.checked += 1;
            self.state.bytes = self.state.bytes.saturating_add(object.object_length);
            match away.note(self.context, damaged).await? {
                Ok(Ok(Damaged::Nothing)) => {}
                Ok(Ok(Damaged::Part)) => {
                    self.name_damaged_part(survey, object.id).await?;
                }
                Ok(Ok(Damaged::Files(paths))) => {
                    let place = format!("chunk {}", object.id);
                    self.name_damaged(object.id, &place, &paths).await?;
                }
                Ok(Err(_)) if object.kind == ObjectKind::Part => {
                    self.name_damaged_part(survey, object.id).await?;
                }
                // The damaged header was reported before.
                Ok(Err(_)) => {}
                // Removed by a purge, or reported before.
                Err(error) if error.kind == Kind::NotFound => {}
                Err(error) => {
                    self.find(error.chain(), "make the object readable, then verify again").await?;
                }
            }
            if self.state.checked.is_multiple_of(64) || !self.state.findings.is_empty() {
                self.tell().await?;
            }
        }
        Ok(())
    }

    /// Names the large file of a damaged part, if the file is in use; whether it is.
    async fn name_damaged_part(&mut self, survey: &Survey, part: ChunkId) -> Result<bool, Error> {
        let naming = survey.extents.iter().filter(|(_, extent)| extent.part == part);
        let numbers = naming.map(|(number, _)| *number).collect();
        let mut owners = Vec::new();
        {
            let mut headers = std::pin::pin!(survey.headers(self.context, numbers));
            while let Some((_, header)) = headers.next().await {
                // An unreadable header was reported before.
                let Ok(header) = header else { continue };
                let paths: Vec<_> = header.entries().map(|entry| entry.path).collect();
                owners.push((header.id(), paths));
            }
        }
        let mut is_in_use = false;
        for (chunk, paths) in owners {
            is_in_use |= self.name_damaged(chunk, &format!("part {part}"), &paths).await?;
        }
        Ok(is_in_use)
    }

    /// Names damaged files of `chunk` that are in use; whether there are any.
    async fn name_damaged(
        &mut self,
        chunk: ChunkId,
        place: &str,
        paths: &[FilePath],
    ) -> Result<bool, Error> {
        let mut are_any = false;
        let found = self
            .context
            .meta
            .lookup(self.id, paths)
            .await
            .doing("look up files of dataset", self.id)?;
        for (path, found) in paths.iter().zip(found) {
            if matches!(found, Found::File(record) if record.holder.chunk == chunk) {
                let problem = format!("{path} is damaged in {place}");
                self.find(problem, self.put_again(path)).await?;
                are_any = true;
            }
        }
        Ok(are_any)
    }

    /// The number and the bytes of all listed files. The counts of the metadata may be older than a loss that no
    /// server noticed, and a listing misses the files of a folder without its row.
    async fn shown(&mut self) -> Result<(u64, u64), Error> {
        let (mut query, mut files, mut bytes) = (everything(), 0u64, 0u64);
        loop {
            let page =
                self.context.meta.list(self.id, &query).await.doing("list dataset", self.id)?;
            for entry in &page {
                if let ListEntry::File(_, record) = entry {
                    files += 1;
                    bytes = bytes.saturating_add(record.length);
                }
            }
            self.tell().await?;
            query.after = page.last().map(ListEntry::key);
            if query.is_last(&page) {
                return Ok((files, bytes));
            }
        }
    }

    async fn counts(
        &mut self,
        survey: &Survey,
        info: &DatasetInfo,
        listed: Option<(u64, u64)>,
        (files, bytes): (u64, u64),
    ) -> Result<(), Error> {
        let version = survey.version();
        if (info.objects, info.version) != (survey.objects.len() as u64, version) {
            let problem = format!(
                "the metadata counts {} objects of version {}, and its log has {} of version \
                 {version}",
                info.objects,
                info.version,
                survey.objects.len()
            );
            self.find(problem, self.rebuild()).await?;
        }
        let Some(listed) = listed else { return Ok(()) };
        let in_sight = (files - self.hidden.0.min(files), bytes - self.hidden.1.min(bytes));
        let counted = (info.files, info.bytes);
        for (what, has, hold) in [("counts", counted, (files, bytes)), ("lists", listed, in_sight)]
        {
            if has != hold {
                let problem = format!(
                    "the metadata {what} {} files of {} bytes, and the chunks hold {} of {} bytes",
                    has.0, has.1, hold.0, hold.1
                );
                self.find(problem, self.rebuild()).await?;
            }
        }
        Ok(())
    }

    async fn end(mut self, is_same: bool) -> Result<(), Error> {
        let doubted = std::mem::take(&mut self.doubted);
        if is_same {
            for Doubt { problem, holder, remedy } in doubted {
                // The files of an unreadable chunk were reported before.
                if holder.is_none_or(|holder| !self.lost.contains(&holder)) {
                    let remedy = match remedy {
                        Remedy::Rebuild => self.rebuild(),
                        Remedy::PutAgain(path) => self.put_or_delete(&path),
                        Remedy::Other(remedy) => remedy,
                    };
                    self.find(problem, remedy).await?;
                }
            }
            if self.uncompared > 0 {
                let problem = format!("{} more files are not as they should be", self.uncompared);
                self.find(problem, self.rebuild()).await?;
            }
        } else if !doubted.is_empty() {
            let count = doubted.len() as u64 + self.uncompared;
            let problem = format!(
                "the dataset was being written to, or its metadata had not taken in all of it, \
                 and {count} files or objects could not be compared"
            );
            self.find(problem, format!("run `dlcmd verify {}` again", self.name())).await?;
        }
        self.state.done = true;
        self.tell().await
    }

    /// Reports how many objects were checked, unless the channel is full; fails when the client is gone.
    fn mention(&self, checked: u64) -> Result<(), Error> {
        let state = VerifyProgress { checked, findings: Vec::new(), ..self.state.clone() };
        match self.progress.try_send(Reply::More(state)) {
            Err(mpsc::error::TrySendError::Closed(_)) => {
                let why = "the client is gone";
                Err(Error::new(Kind::Cancelled, "verify", self.name(), why))
            }
            Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => Ok(()),
        }
    }

    /// Reports the progress, and the findings since the last report.
    async fn tell(&mut self) -> Result<(), Error> {
        let mut findings = std::mem::take(&mut self.state.findings);
        loop {
            let length = |one: &Finding| one.problem.len() + one.remedy.len();
            let rest = findings.split_off(told_together(&findings, length));
            let done = self.state.done && rest.is_empty();
            let message = VerifyProgress { findings, done, ..self.state.clone() };
            hand_over(self.context, self.progress, Reply::More(message)).await?;
            if rest.is_empty() {
                return Ok(());
            }
            findings = rest;
        }
    }
}

#[cfg(test)]
mod tests;
