//! Verify: compares a dataset's metadata with the chunk store, by the rules of the fold.
//!
//! Must hold: it changes nothing and holds a share of the paths at a time; each finding says what
//! is wrong and what to do; what changes while it looks is not taken for wrong.

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
use crate::answer::{Reply, TOLD_TOGETHER, hand_over, told_together};
use crate::auth::Caller;
use crate::catalog::{self, Told};
use crate::error::Error;
use crate::names;
use crate::parts::{Budget, Parts};
use crate::survey::{Away, Rows, Survey};
use crate::turns::Turns;

/// Paths that are looked up at once.
const PATHS_AT_ONCE: usize = 4_096;
/// Entries of one page of a listing.
const PAGE_ENTRIES: usize = 4_096;
/// Bytes of their paths.
const PAGE_BYTES: usize = 1 << 20;
/// Objects that are read whole at a time.
const OBJECTS_AT_ONCE: usize = 4;
/// Findings that are kept until it is known whether the dataset changed meanwhile.
const DOUBTED_MAX: usize = 10_000;

type Progress = mpsc::Sender<Reply<VerifyProgress>>;

/// Compares what a request names; tells what it finds through `progress`.
pub(crate) async fn verify(
    parts: &Parts,
    (memory, turns): (&Budget, &Turns),
    request: VerifyRequest,
    caller: &Caller,
    progress: &Progress,
) -> Result<(), Error> {
    let id = catalog::by_name(parts, &request.dataset, caller, Told::Record).await?.id;
    match compare(parts, (memory, turns), request, id, progress).await {
        Err(error) => Err(catalog::explained(parts, id, error).await),
        done => done,
    }
}

async fn compare(
    parts: &Parts,
    (memory, turns): (&Budget, &Turns),
    request: VerifyRequest,
    id: DatasetId,
    progress: &Progress,
) -> Result<(), Error> {
    let shape = catalog::by_id(parts, id).await?.shape;
    let state = VerifyProgress { dataset: request.dataset.to_string(), ..Default::default() };
    let _turn = turns
        .survey(parts, || match progress.try_send(Reply::More(state.clone())) {
            Ok(()) | Err(mpsc::error::TrySendError::Full(_)) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
        })
        .await?;
    let (doubted, lost) = (Vec::new(), HashSet::new());
    let mut verify = Verify {
        parts,
        id,
        progress,
        state,
        doubted,
        uncompared: 0,
        hidden: (0, 0),
        undone: (0, 0),
        is_undone_told: false,
        lost,
    };
    let before = verify.info().await?;
    let mut survey = Survey::read(parts, id).await?;
    verify.state.objects = survey.objects.len() as u64;
    let (mut files, mut bytes) = (0u64, 0u64);
    let heard = |checked| verify.mention(checked);
    let mut shares = survey.shares(parts, shape, heard).await?;
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
    verify.name_undone(&survey).await?;
    verify.part_headers(&survey).await?;
    if request.checksums {
        verify.checksums(&survey, memory).await?;
    }
    let listed = if survey.is_whole() { Some(verify.shown().await?) } else { None };
    let after = verify.info().await?;
    // Of what was not settled before, files may have been found as they were without it.
    let is_same = before.is_settled && before.version == after.version;
    if is_same {
        verify.counts(&survey, &after, listed, (files, bytes)).await?;
    }
    verify.end(is_same).await
}

/// Pages of all that a dataset lists.
fn everything() -> ListQuery {
    let root = ListQuery::of(dl_format::DirPath::ROOT, true, PAGE_ENTRIES);
    ListQuery { bytes: PAGE_BYTES, ..root }
}

struct Verify<'a> {
    parts: &'a Parts,
    id: DatasetId,
    progress: &'a Progress,
    state: VerifyProgress,
    /// What is only true if nothing was written meanwhile.
    doubted: Vec<Doubt>,
    /// Beyond [`DOUBTED_MAX`].
    uncompared: u64,
    /// Files that folders of the same path hide, and their bytes.
    hidden: (u64, u64),
    /// Files that are deleted by nothing that can be read, and their bytes; and whether it was told.
    undone: (u64, u64),
    is_undone_told: bool,
    /// Objects that were told as lost, damaged or unreadable.
    lost: HashSet<ChunkId>,
}

/// A row that is not what the chunks say.
struct Doubt {
    problem: String,
    /// The chunk that the metadata has the file in.
    holder: Option<ChunkId>,
    /// Where it is not to write the rows anew.
    remedy: Option<String>,
}

impl Verify<'_> {
    fn name(&self) -> String {
        format!("dl://{}", self.state.dataset)
    }

    async fn info(&self) -> Result<DatasetInfo, Error> {
        let info = self.parts.meta.dataset(self.id).await;
        let info = info.map_err(|error| Error::meta("describe dataset", self.id, error))?;
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

    fn doubt(&mut self, doubt: Doubt) {
        if self.doubted.len() < DOUBTED_MAX {
            self.doubted.push(doubt);
        } else {
            self.uncompared += 1;
        }
    }

    /// What mends rows that are not what the chunks say.
    fn rebuild(&self) -> String {
        if !self.lost.is_empty() {
            // Metadata that is made anew would lack what they held.
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

    /// What mends a file whose bytes are not what was put.
    fn put_again(&self, path: &FilePath) -> String {
        format!("put {path} again: `dlcmd put --checksum SRC {}`", self.name())
    }

    fn recover(&self) -> String {
        format!("run `dlcmd recover {}`", self.name())
    }

    /// Compares files; gives how many there are, and their bytes.
    async fn compare(&mut self, survey: &Survey, rows: &Rows) -> Result<(u64, u64), Error> {
        let (mut files, mut bytes) = (0, 0u64);
        let mut expected = Vec::with_capacity(PATHS_AT_ONCE);
        for (path, winner, _) in rows.paths() {
            let path = FilePath::new(Bytes::copy_from_slice(path))
                .map_err(|error| Error::new(Kind::Internal, "look up", "a path", error))?;
            let is_file = !survey.named.contains(&winner.record.version);
            if is_file {
                files += 1;
                bytes = bytes.saturating_add(winner.record.length);
            }
            expected.push((path, is_file.then_some(winner.record)));
            if expected.len() >= PATHS_AT_ONCE {
                self.look_up(survey, std::mem::take(&mut expected)).await?;
            }
        }
        self.look_up(survey, expected).await?;
        Ok((files, bytes))
    }

    async fn look_up(
        &mut self,
        survey: &Survey,
        expected: Vec<(FilePath, Option<FileRecord>)>,
    ) -> Result<(), Error> {
        let paths: Vec<FilePath> = expected.iter().map(|(path, _)| path.clone()).collect();
        let found = self.parts.meta.lookup(self.id, &paths).await;
        let found =
            found.map_err(|error| Error::meta("look up files of dataset", self.id, error))?;
        let undone = self.undone(survey, &expected, &found).await?;
        for (((path, expected), found), is_undone) in expected.into_iter().zip(found).zip(undone) {
            match (expected, found) {
                (Some(file), _) if is_undone => {
                    self.undone.0 += 1;
                    self.undone.1 = self.undone.1.saturating_add(file.length);
                }
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
                    self.doubt(Doubt { problem, holder: None, remedy: Some(remedy) });
                }
                (Some(expected), Found::Missing) => {
                    let chunk = expected.holder.chunk;
                    let problem = format!("{path} of chunk {chunk} is not in the metadata");
                    self.doubt(Doubt { problem, holder: None, remedy: None });
                }
                (Some(_), Found::File(found)) => {
                    let chunk = found.holder.chunk;
                    let problem =
                        format!("{path}: the metadata has another version, of chunk {chunk}");
                    self.doubt(Doubt { problem, holder: Some(chunk), remedy: None });
                }
                (None, Found::File(found)) => {
                    let problem = format!("{path} is deleted, and the metadata still has it");
                    let holder = Some(found.holder.chunk);
                    self.doubt(Doubt { problem, holder, remedy: None });
                }
            }
        }
        Ok(())
    }

    /// Compares the name with what stands for it in the chunk store.
    async fn named(&mut self, name: &DatasetName) -> Result<(), Error> {
        let problem = match names::newest(self.parts, name).await {
            Ok(Some(named)) if named.record.dataset == self.id => match named.record.state {
                NameState::Live => return Ok(()),
                NameState::Deleted => "its name says that it was deleted",
            },
            Ok(Some(_)) => {
                let names = names::shared(self.parts).await?;
                if let Some((_, error)) = names.unread.iter().find(|(unread, _)| unread == name) {
                    let remedy = format!("run `dlcmd verify {}` again then", self.name());
                    return self.find(error.chain(), remedy).await;
                }
                "its name stands for another dataset in the chunk store"
            }
            Ok(None) => "its name is not in the chunk store",
            Err(error) if error.kind == Kind::Corrupt => {
                let remedy = format!("run `dlcmd verify {}` again then", self.name());
                return self.find(error.chain(), remedy).await;
            }
            Err(error) => return Err(error),
        };
        // Unless it was deleted meanwhile: first its name says so.
        let record = self.parts.meta.record(self.id).await;
        let record = record.map_err(|error| Error::meta("find dataset", self.id, error))?;
        match record {
            Some(record) if record.state != DatasetState::Ending => {
                self.find(problem.to_owned(), self.recover()).await
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Reads every byte of every object.
    async fn checksums(&mut self, survey: &Survey, memory: &Budget) -> Result<(), Error> {
        let parts = self.parts;
        let stored: Vec<(ObjectRecord, Key)> = survey
            .objects
            .iter()
            // Of one that has not its length it is known that it is damaged.
            .filter(|object| survey.stored.get(&object.id) == Some(&object.object_length))
            .filter(|object| object.kind != ObjectKind::Part || !self.lost.contains(&object.id))
            .map(|object| (*object, survey.key(object)))
            .collect();
        let mut checked = stream::iter(stored)
            .map(move |(object, key)| async move {
                let room = memory.take(object.object_length, parts).await?;
                let body = parts.store.read_all(&key).await;
                let damaged = body.map(|body| Damaged::of(&body));
                drop(room);
                let damaged = damaged.map_err(|error| Error::store("read object", &key, error));
                Ok::<_, Error>((object, damaged))
            })
            .buffered(OBJECTS_AT_ONCE);
        let mut away = Away::default();
        self.state.checked = 0;
        while let Some(one) = checked.next().await {
            let (object, damaged) = one?;
            self.state.checked += 1;
            self.state.bytes = self.state.bytes.saturating_add(object.object_length);
            match away.note(self.parts, damaged).await? {
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
                // Its header was found to be damaged before.
                Ok(Err(_)) => {}
                // By a purge, or told before.
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

    /// Names the large file that a damaged part belongs to, if it is in use; whether it is.
    async fn name_damaged_part(&mut self, survey: &Survey, part: ChunkId) -> Result<bool, Error> {
        let naming = survey.extents.iter().filter(|(_, extent)| extent.part == part);
        let numbers = naming.map(|(number, _)| *number).collect();
        let mut owners = Vec::new();
        {
            let mut headers = std::pin::pin!(survey.headers(self.parts, numbers));
            while let Some((_, header)) = headers.next().await {
                // What can't be read was told before.
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

    /// Names damaged files that are in use, as those of `chunk`; whether there are any.
    async fn name_damaged(
        &mut self,
        chunk: ChunkId,
        place: &str,
        paths: &[FilePath],
    ) -> Result<bool, Error> {
        let mut are_any = false;
        let found = self.parts.meta.lookup(self.id, paths).await;
        let found =
            found.map_err(|error| Error::meta("look up files of dataset", self.id, error))?;
        for (path, found) in paths.iter().zip(found) {
            if matches!(found, Found::File(record) if record.holder.chunk == chunk) {
                let problem = format!("{path} is damaged in {place}");
                self.find(problem, self.put_again(path)).await?;
                are_any = true;
            }
        }
        Ok(are_any)
    }

    /// How many files a listing of everything shows, and their bytes: what the metadata counts may be
    /// older than a loss that nobody noticed, and a folder without its row has files that are found by
    /// their paths.
    async fn shown(&mut self) -> Result<(u64, u64), Error> {
        let (mut query, mut files, mut bytes) = (everything(), 0u64, 0u64);
        loop {
            let page = self.parts.meta.list(self.id, &query).await;
            let page = page.map_err(|error| Error::meta("list dataset", self.id, error))?;
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
        let (files, bytes) = (files - self.undone.0.min(files), bytes - self.undone.1.min(bytes));
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
                // Of a chunk that can't be read it was told what lies in it.
                if holder.is_none_or(|holder| !self.lost.contains(&holder)) {
                    let remedy = remedy.unwrap_or_else(|| self.rebuild());
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

    /// Says how many objects were looked at, if that can be said at once; fails when nobody is there.
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

    /// Says how far it is, and what was found since.
    async fn tell(&mut self) -> Result<(), Error> {
        let mut findings = std::mem::take(&mut self.state.findings);
        loop {
            let length = |one: &Finding| one.problem.len() + one.remedy.len();
            let rest = findings.split_off(told_together(&findings, length));
            let done = self.state.done && rest.is_empty();
            let message = VerifyProgress { findings, done, ..self.state.clone() };
            hand_over(self.parts, self.progress, Reply::More(message)).await?;
            if rest.is_empty() {
                return Ok(());
            }
            findings = rest;
        }
    }
}

#[cfg(test)]
mod tests;
