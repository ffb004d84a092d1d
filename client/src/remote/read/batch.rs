//! A request for many files, tried until each file has arrived or failed.
//!
//! Must hold: each file is delivered once, on arrival. A new try leaves out the files received
//! before. A damaged file is requested once more, past all copies, and then fails. The loop ends:
//! only new bytes extend its time.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dl_format::{EntryVersion, FileRecord};
use dl_proto::{Dataset as DatasetInfo, ReadPiece, ReadRequest, STAT_PATHS_MAX, StatItem, pb};
use dl_runtime::locked;

use crate::error::{Error, Kind};
use crate::remote::connections::{Connection, Try};
use crate::remote::failure::Failure;
use crate::remote::read::ReadItem;
use crate::remote::read::assemble::{Assembly, Extents, Received};
use crate::remote::read::runs::Run;
use crate::remote::read::wanted::Wanted;
use crate::remote::session::Session;
use crate::remote::split;
use crate::remote::stats::stat;
use crate::remote::wire::Replies;

/// A slice of a smaller share of its message is copied, so a small file doesn't keep a large
/// message in memory.
const SLICE_SHARE: usize = 4;

/// The received bytes of a file.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) bytes: Bytes,
    /// The parts of a large file that end in the bytes.
    extents: Extents,
    /// Bytes of the whole message.
    message: usize,
}

impl Arrived {
    /// Bytes from a message of the given length.
    pub(crate) fn with_message(bytes: Bytes, message: usize) -> Self {
        Self { bytes, extents: Extents::new(), message }
    }

    /// The bytes for a caller who may keep them.
    pub(crate) fn into_kept(self) -> Bytes {
        if self.bytes.len() >= self.message / SLICE_SHARE {
            self.bytes
        } else {
            Bytes::copy_from_slice(&self.bytes)
        }
    }
}

#[derive(Debug, Default)]
struct Progress {
    files: Vec<Item>,
    /// The received bytes of incomplete files, in the most advanced try.
    begun: HashMap<usize, usize>,
    /// The time of the last new bytes, unless read since.
    moved: Option<Duration>,
    /// Whether the last answer was complete.
    answered: bool,
}

#[derive(Debug)]
enum Item {
    /// Without a result; with the failure of the last try, if any.
    Missing(Option<Failure>),
    HandedOver,
    Failed(Failure),
}

/// Reads all of `wanted`, and hands each file over with its index. Gives the error of the whole
/// request, which also counts for each file without a result.
pub(crate) async fn read_batch(
    session: &Session,
    dataset: &DatasetInfo,
    wanted: Vec<Wanted<'_>>,
    hand_over: impl Fn(usize, Result<Arrived, Error>),
) -> Option<Error> {
    let mut progress = Progress::of(&wanted);
    let mut error = tries(session, dataset, &wanted, &mut progress, &hand_over).await;
    let moved_files = moved_files(session, dataset, &wanted, &progress).await;
    if !moved_files.is_empty() {
        let items = moved_files.iter();
        let moved =
            items.filter_map(|(number, item)| Some(Wanted { item, ..*wanted.get(*number)? }));
        let moved: Vec<Wanted<'_>> = moved.collect();
        let mut again = Progress::of(&moved);
        let number_of = |index: usize| moved_files.get(index).map_or(index, |(number, _)| *number);
        let to_caller = |index, file| hand_over(number_of(index), file);
        error = tries(session, dataset, &moved, &mut again, &to_caller).await.or(error);
        progress.answered &= again.answered;
        for (index, item) in again.files.into_iter().enumerate() {
            if let Some(slot) = progress.files.get_mut(number_of(index)) {
                *slot = item;
            }
        }
    }
    for ((number, wanted), item) in wanted.iter().enumerate().zip(progress.files) {
        let why = match item {
            Item::HandedOver => continue,
            Item::Failed(failure) => explain(session, dataset, wanted, failure).await,
            Item::Missing(Some(failure)) if progress.answered => {
                explain(session, dataset, wanted, failure).await
            }
            Item::Missing(_) => error.clone().unwrap_or_else(|| {
                let problem = "the answer has no result for the file";
                let subject = format!("dl://{}/{}", dataset.name, wanted.item.path);
                Error::new(Kind::Internal, "read", subject, problem)
            }),
        };
        hand_over(number, Err(why));
    }
    error.filter(|_| !progress.answered)
}

/// Tries until each of `wanted` has a result; gives the error of the last try.
async fn tries(
    session: &Session,
    dataset: &DatasetInfo,
    wanted: &[Wanted<'_>],
    progress: &mut Progress,
    hand_over: &impl Fn(usize, Result<Arrived, Error>),
) -> Option<Error> {
    let shared = Mutex::new(std::mem::take(progress));
    let connections = &session.connections;
    let subject = || match wanted {
        [file] => format!("dl://{}/{}", dataset.name, file.item.path),
        files => format!("{} files of dl://{}", files.len(), dataset.name),
    };
    let attempt = |server, this| attempt(server, this, dataset, wanted, &shared, hand_over);
    let moved = || locked(&shared).moved.take();
    let error = connections.call_while_moving("read", subject, attempt, moved).await.err();
    *progress = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    error
}

/// Files requested by an old record and moved by a purge since: their indices, with their new
/// records.
async fn moved_files(
    session: &Session,
    dataset: &DatasetInfo,
    wanted: &[Wanted<'_>],
    progress: &Progress,
) -> Vec<(usize, ReadItem)> {
    let is_gone = |item: &Item| matches!(item, Item::Failed(Failure { kind: Kind::NotFound, .. }));
    let gone = wanted.iter().zip(&progress.files).enumerate();
    let gone: Vec<(usize, &Wanted<'_>, FileRecord)> = gone
        .filter(|(_, (_, item))| is_gone(item))
        .filter_map(|(number, (wanted, _))| Some((number, wanted, wanted.item.record?)))
        .collect();
    let mut moved = Vec::new();
    for gone in split::by_path(&gone, STAT_PATHS_MAX, |(_, wanted, _)| &wanted.item.path) {
        let paths: Vec<_> = gone.iter().map(|(_, wanted, _)| wanted.item.path.clone()).collect();
        // After a failed lookup, the files keep their failure.
        let found = stat(&session.connections, dataset, &paths).await.unwrap_or_default();
        for ((number, wanted, before), found) in gone.iter().zip(found) {
            if let StatItem::File(now) = found
                && is_same_version(before, &now)
                && now.holder != before.holder
            {
                moved.push((*number, ReadItem { record: Some(now), ..wanted.item.clone() }));
            }
        }
    }
    moved
}

/// Whether two records are of the same version. A record from a snapshot has only a stamp, which is
/// unique among the versions of a path.
fn is_same_version(before: &FileRecord, now: &FileRecord) -> bool {
    if before.version.entry != EntryVersion::UNKNOWN_ENTRY {
        return before.version == now.version;
    }
    (before.version.stamp, before.length, before.crc) == (now.version.stamp, now.length, now.crc)
}

/// Reads all of `wanted`: the result of each file, in order, or the error of the whole request.
pub(crate) async fn read_whole(
    session: &Session,
    dataset: &DatasetInfo,
    wanted: Vec<Wanted<'_>>,
) -> Result<Vec<Result<Bytes, Error>>, Error> {
    read_each(session, dataset, wanted, Arrived::into_kept).await
}

/// Reads all of `wanted`, and converts each file.
async fn read_each<T>(
    session: &Session,
    dataset: &DatasetInfo,
    wanted: Vec<Wanted<'_>>,
    make: impl Fn(Arrived) -> T,
) -> Result<Vec<Result<T, Error>>, Error> {
    let files = Mutex::new(wanted.iter().map(|_| None).collect::<Vec<_>>());
    let keep = |number, file: Result<Arrived, Error>| {
        let file = file.map(&make);
        if let Some(slot) = locked(&files).get_mut(number) {
            *slot = Some(file);
        }
    };
    match read_batch(session, dataset, wanted, keep).await {
        Some(error) => Err(error),
        None => {
            let files = files.into_inner().unwrap_or_else(PoisonError::into_inner);
            Ok(files.into_iter().flatten().collect())
        }
    }
}

pub(super) async fn read_one(
    session: &Session,
    dataset: &DatasetInfo,
    wanted: Wanted<'_>,
) -> Result<Bytes, Error> {
    let mut files = read_whole(session, dataset, vec![wanted]).await?;
    files.pop().expect("a result for each wanted file")
}

/// Reads a range of a file; also gives the parts that end there.
pub(super) async fn read_range(
    session: &Session,
    dataset: &DatasetInfo,
    wanted: Wanted<'_>,
) -> Result<Received, Error> {
    let received = |arrived: Arrived| (arrived.bytes, arrived.extents);
    let mut ranges = read_each(session, dataset, vec![wanted], received).await?;
    ranges.pop().expect("a result for each wanted range")
}

struct Asked {
    /// The indices of the files, in the order of their bytes.
    numbers: Vec<usize>,
    runs: Vec<Run>,
}

/// A try: requests the missing files, and keeps the received bytes.
async fn attempt(
    mut server: Connection,
    this: Try,
    dataset: &DatasetInfo,
    wanted: &[Wanted<'_>],
    progress: &Mutex<Progress>,
    hand_over: &impl Fn(usize, Result<Arrived, Error>),
) -> Result<(), Failure> {
    let (Asked { numbers: asked, runs }, message) = locked(progress).begin_try(dataset, wanted);
    let mut request = this.request(pb::ReadRequest::from(message));
    let replies = Replies::default();
    request.extensions_mut().insert(replies.clone());
    let mut stream = this.answer(server.read(request)).await?;
    let mut assembly = Assembly::new(wanted, &asked, &runs);
    while let Some(shown) = this.message(&mut stream).await? {
        let message = replies.next().unwrap_or(shown);
        let size = message.pieces.iter().map(|piece| piece.data.len()).sum();
        let (mut progress, now) = (locked(progress), this.now());
        for piece in message.pieces {
            let item = piece.item as usize;
            assembly.add(ReadPiece::try_from(piece)?, |number, received| {
                if let Some((bytes, extents)) = progress.record(number, received) {
                    progress.moved = Some(now);
                    hand_over(number, Ok(Arrived { bytes, extents, message: size }));
                }
            })?;
            if let Some((number, bytes)) = assembly.begun(item) {
                progress.begin(number, bytes, now);
            }
        }
    }
    locked(progress).end()
}

impl Progress {
    fn of(wanted: &[Wanted<'_>]) -> Self {
        let files = wanted.iter().map(|_| Item::Missing(None)).collect();
        Self { files, begun: HashMap::new(), moved: None, answered: false }
    }

    /// Begins a try for all files without a result.
    fn begin_try(&mut self, dataset: &DatasetInfo, wanted: &[Wanted<'_>]) -> (Asked, ReadRequest) {
        self.answered = false;
        let failure = |number: usize| match self.files.get(number) {
            Some(Item::Missing(failure)) => failure.as_ref(),
            _ => None,
        };
        let missing = self.files.iter().enumerate();
        let missing = missing.filter(|(_, item)| matches!(item, Item::Missing(_)));
        let mut numbers: Vec<usize> = missing.map(|(number, _)| number).collect();
        let is_corrupt =
            |number: &usize| failure(*number).is_some_and(|failure| failure.kind == Kind::Corrupt);
        let is_damaged = numbers.iter().any(is_corrupt);
        // After a failure a file goes alone, to spare its neighbours another failure.
        let runs = Run::of(wanted, &mut numbers, |number| failure(number).is_some());
        let items = runs.iter().filter_map(|run| {
            let first = numbers.get(run.files.start).and_then(|number| wanted.get(*number))?;
            Some(run.request(first))
        });
        let message = ReadRequest {
            dataset: dataset.id,
            items: items.collect(),
            // The damage may be in a copy, and the object whole.
            pass_copies: is_damaged || wanted.iter().any(|wanted| wanted.item.pass_copies),
            check_headers: wanted.iter().any(|wanted| wanted.item.check_headers),
        };
        (Asked { numbers, runs }, message)
    }

    /// Notes the received bytes of a file in the current try.
    fn begin(&mut self, number: usize, bytes: usize, now: Duration) {
        let before = self.begun.entry(number).or_default();
        if bytes > *before {
            *before = bytes;
            self.moved = Some(now);
        }
    }

    /// Records the result of a file; gives the bytes of a good file at its first arrival.
    fn record(&mut self, number: usize, received: Result<Received, Failure>) -> Option<Received> {
        let item = self.files.get_mut(number)?;
        let Item::Missing(before) = item else { return None };
        // Damage in transfer, or in a copy, is worth another try.
        let damaged_before = matches!(before, Some(Failure { kind: Kind::Corrupt, .. }));
        let failure = match received {
            Ok(received) => {
                *item = Item::HandedOver;
                return Some(received);
            }
            Err(failure) => failure,
        };
        *item = match failure.kind {
            kind if kind.is_retryable() => Item::Missing(Some(failure)),
            Kind::Corrupt if !damaged_before => Item::Missing(Some(failure)),
            _ => Item::Failed(failure),
        };
        None
    }

    /// Ends a complete answer; fails if files are missing.
    fn end(&mut self) -> Result<(), Failure> {
        let mut missing = self.files.iter().filter_map(|item| match item {
            Item::Missing(why) => Some(why),
            Item::HandedOver | Item::Failed(_) => None,
        });
        let Some(first) = missing.next() else { return Ok(()) };
        self.answered = true;
        let problem = match first {
            Some(why) => why.to_string(),
            None => "the answer leaves out a requested file".to_owned(),
        };
        Err(Failure::new(Kind::Unavailable, problem))
    }
}

/// Adds the damaged chunk to the error.
async fn explain(
    session: &Session,
    dataset: &DatasetInfo,
    wanted: &Wanted<'_>,
    failure: Failure,
) -> Error {
    let path = &wanted.item.path;
    let subject = format!("dl://{}/{path}", dataset.name);
    let by_snapshot = |record: &FileRecord| record.version.entry == EntryVersion::UNKNOWN_ENTRY;
    if failure.kind == Kind::NotFound && wanted.item.record.as_ref().is_some_and(by_snapshot) {
        let why = "the snapshot is stale: the file was deleted or replaced, and its space was \
                   reclaimed; connect again, or load a newer snapshot";
        return Error::new(failure.kind, "read", subject, why);
    }
    if failure.kind != Kind::Corrupt || failure.names_object {
        return Error::new(failure.kind, "read", subject, failure);
    }
    let record = match &wanted.item.record {
        Some(record) => Some(*record),
        None => {
            match stat(&session.connections, dataset, std::slice::from_ref(path)).await.as_deref() {
                Ok([StatItem::File(record)]) => Some(*record),
                _ => None,
            }
        }
    };
    let problem = match record {
        Some(record) => format!("chunk {}: {failure}", record.holder.chunk),
        None => failure.to_string(),
    };
    Error::new(Kind::Corrupt, "read", subject, problem)
}
