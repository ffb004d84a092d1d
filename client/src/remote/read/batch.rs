//! One request for many files, tried until each is there or can't be had.
//!
//! Must hold: each file is handed over once, as soon as it is there; what came in a try that broke
//! is not asked for again; a damaged file is asked for once more, so that copies of it are checked, and
//! then given up. It ends: only what had not come before makes it go on for longer.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dl_format::{EntryVersion, FileRecord};
use dl_proto::{Dataset as DatasetInfo, ReadPiece, ReadRequest, STAT_PATHS_MAX, StatItem, pb};

use crate::error::{Error, Kind};
use crate::remote::connections::{Connection, Try};
use crate::remote::failure::Failure;
use crate::remote::read::ReadItem;
use crate::remote::read::assemble::{Assembly, Came, Extents};
use crate::remote::read::runs::Run;
use crate::remote::read::wanted::Wanted;
use crate::remote::session::Session;
use crate::remote::split;
use crate::remote::stats::stat;
use crate::remote::wire::Replies;

/// A slice of less than one part in so many of its message is copied out of it when it is kept, so
/// that a small file doesn't keep a large message alive.
const SLICE_SHARE: usize = 4;

/// The bytes of a file, as they came.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) bytes: Bytes,
    /// The parts of a large file that end in them.
    extents: Extents,
    /// Bytes that came in the same message.
    message: usize,
}

impl Arrived {
    /// Bytes out of a message of so many.
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

/// How far the tries got.
#[derive(Debug, Default)]
struct Progress {
    files: Vec<Item>,
    /// Bytes that came of files which are not there as a whole, in the try that got furthest.
    begun: HashMap<usize, usize>,
    /// When something came that had not come before, if so since that was last looked at.
    moved: Option<Duration>,
    /// Whether the last try was answered to its end.
    answered: bool,
}

#[derive(Debug)]
enum Item {
    /// Not yet; why not, when it was tried.
    Missing(Option<Failure>),
    HandedOver,
    Failed(Failure),
}

/// Reads all of `wanted`; hands each over by its number, and gives the error of the request as a
/// whole, which those that it left out have too.
pub(crate) async fn read_batch(
    session: &Session,
    dataset: &DatasetInfo,
    wanted: Vec<Wanted<'_>>,
    hand_over: impl Fn(usize, Result<Arrived, Error>),
) -> Option<Error> {
    let mut progress = Progress::of(&wanted);
    let mut error = tries(session, dataset, &wanted, &mut progress, &hand_over).await;
    let elsewhere = elsewhere(session, dataset, &wanted, &progress).await;
    if !elsewhere.is_empty() {
        let items = elsewhere.iter();
        let moved =
            items.filter_map(|(number, item)| Some(Wanted { item, ..*wanted.get(*number)? }));
        let moved: Vec<Wanted<'_>> = moved.collect();
        let mut again = Progress::of(&moved);
        let number_of = |index: usize| elsewhere.get(index).map_or(index, |(number, _)| *number);
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
                let problem = Failure::new(Kind::Internal, "no answer came for it");
                let subject = format!("dl://{}/{}", dataset.name, wanted.item.path);
                Error::new(Kind::Internal, "read", subject, problem)
            }),
        };
        hand_over(number, Err(why));
    }
    error.filter(|_| !progress.answered)
}

/// Tries until each of `wanted` is there or can't be had; gives the error of the last try.
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
        [one] => format!("dl://{}/{}", dataset.name, one.item.path),
        many => format!("{} files of dl://{}", many.len(), dataset.name),
    };
    let attempt = |server, this| attempt(server, this, dataset, wanted, &shared, hand_over);
    let moved = || lock(&shared).moved.take();
    let error = connections.call_while_moving("read", subject, attempt, moved).await.err();
    *progress = shared.into_inner().unwrap_or_else(PoisonError::into_inner);
    error
}

/// Files that were asked for by what was said of them, and that a purge has moved since: by their
/// numbers, with what is said of them now.
async fn elsewhere(
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
        // When that can't be told, they stay what they are.
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

/// Whether what was said of a file and what is said of it now are the same version. Of what a snapshot
/// says only the stamp is known, which no other version of a path has.
fn is_same_version(before: &FileRecord, now: &FileRecord) -> bool {
    if before.version.entry != EntryVersion::UNKNOWN_ENTRY {
        return before.version == now.version;
    }
    (before.version.stamp, before.length, before.crc) == (now.version.stamp, now.length, now.crc)
}

/// Reads all of `wanted`: each, in order, or the error of the request as a whole.
pub(crate) async fn read_whole(
    session: &Session,
    dataset: &DatasetInfo,
    wanted: Vec<Wanted<'_>>,
) -> Result<Vec<Result<Bytes, Error>>, Error> {
    read_each(session, dataset, wanted, Arrived::into_kept).await
}

/// Reads all of `wanted` and makes something of each.
async fn read_each<T>(
    session: &Session,
    dataset: &DatasetInfo,
    wanted: Vec<Wanted<'_>>,
    make: impl Fn(Arrived) -> T,
) -> Result<Vec<Result<T, Error>>, Error> {
    let files = Mutex::new(wanted.iter().map(|_| None).collect::<Vec<_>>());
    let keep = |number, file: Result<Arrived, Error>| {
        let file = file.map(&make);
        let mut files = files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = files.get_mut(number) {
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

/// Reads one file.
pub(super) async fn read_one(
    session: &Session,
    dataset: &DatasetInfo,
    wanted: Wanted<'_>,
) -> Result<Bytes, Error> {
    let mut files = read_whole(session, dataset, vec![wanted]).await?;
    files.pop().expect("one answer for each wanted file")
}

/// Reads a range of one file; also gives the parts of it that end there.
pub(super) async fn read_range(
    session: &Session,
    dataset: &DatasetInfo,
    wanted: Wanted<'_>,
) -> Result<Came, Error> {
    let came = |arrived: Arrived| (arrived.bytes, arrived.extents);
    let mut ranges = read_each(session, dataset, vec![wanted], came).await?;
    ranges.pop().expect("one answer for each wanted range")
}

/// One try: asks for what is missing, keeps what comes.
async fn attempt(
    mut server: Connection,
    this: Try,
    dataset: &DatasetInfo,
    wanted: &[Wanted<'_>],
    progress: &Mutex<Progress>,
    hand_over: &impl Fn(usize, Result<Arrived, Error>),
) -> Result<(), Failure> {
    lock(progress).answered = false;
    let mut asked: Vec<usize> = {
        let progress = lock(progress);
        let files = progress.files.iter().enumerate();
        files.filter(|(_, item)| matches!(item, Item::Missing(_))).map(|(n, _)| n).collect()
    };
    let (runs, is_damaged) = {
        let progress = lock(progress);
        let is_damaged = |number: &usize| {
            let item = progress.files.get(*number);
            matches!(item, Some(Item::Missing(Some(Failure { kind: Kind::Corrupt, .. }))))
        };
        let is_damaged = asked.iter().any(is_damaged);
        // What failed before is asked for alone: the others are not to fail with it.
        let failed =
            |number: usize| matches!(progress.files.get(number), Some(Item::Missing(Some(_))));
        (Run::of(wanted, &mut asked, failed), is_damaged)
    };
    // A copy may be one of damaged bytes, and the object whole by now.
    let pass_copies = is_damaged || wanted.iter().any(|wanted| wanted.item.pass_copies);
    let check_headers = wanted.iter().any(|wanted| wanted.item.check_headers);
    let items = runs.iter().filter_map(|run| {
        let first = asked.get(run.files.start).and_then(|number| wanted.get(*number))?;
        Some(run.request(first))
    });
    let items = items.collect();
    let message = ReadRequest { dataset: dataset.id, items, pass_copies, check_headers };
    let mut request = this.request(pb::ReadRequest::from(message));
    let replies = Replies::default();
    request.extensions_mut().insert(replies.clone());
    let mut stream = this.answer(server.read(request)).await?;
    let mut assembly = Assembly::new(wanted, &asked, &runs);
    while let Some(shown) = this.message(&mut stream).await? {
        let message = replies.next().unwrap_or(shown);
        let size = message.pieces.iter().map(|piece| piece.data.len()).sum();
        let (mut progress, now) = (lock(progress), this.now());
        for piece in message.pieces {
            let item = piece.item as usize;
            assembly.add(ReadPiece::try_from(piece)?, |number, came| {
                if let Some((bytes, extents)) = progress.settle(number, came) {
                    progress.moved = Some(now);
                    hand_over(number, Ok(Arrived { bytes, extents, message: size }));
                }
            })?;
            if let Some((number, bytes)) = assembly.begun(item) {
                progress.begin(number, bytes, now);
            }
        }
    }
    lock(progress).end()
}

impl Progress {
    fn of(wanted: &[Wanted<'_>]) -> Self {
        let files = wanted.iter().map(|_| Item::Missing(None)).collect();
        Self { files, begun: HashMap::new(), moved: None, answered: false }
    }

    /// So many bytes of a file have come in this try.
    fn begin(&mut self, number: usize, bytes: usize, now: Duration) {
        let before = self.begun.entry(number).or_default();
        if bytes > *before {
            *before = bytes;
            self.moved = Some(now);
        }
    }

    /// Gives the bytes of a file that came as it should and was not handed over before.
    fn settle(&mut self, number: usize, came: Result<Came, Failure>) -> Option<Came> {
        let item = self.files.get_mut(number)?;
        let Item::Missing(before) = item else { return None };
        // Damage on the way, or in one server's copy, is worth one more look.
        let damaged_before = matches!(before, Some(Failure { kind: Kind::Corrupt, .. }));
        let failure = match came {
            Ok(came) => {
                *item = Item::HandedOver;
                return Some(came);
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

    /// The answer ended.
    fn end(&mut self) -> Result<(), Failure> {
        let mut missing = self.files.iter().filter_map(|item| match item {
            Item::Missing(why) => Some(why),
            Item::HandedOver | Item::Failed(_) => None,
        });
        let Some(first) = missing.next() else { return Ok(()) };
        self.answered = true;
        let problem = match first {
            Some(why) => why.to_string(),
            None => "the answer leaves out what was asked for".to_owned(),
        };
        Err(Failure::new(Kind::Unavailable, problem))
    }
}

/// Says which chunk is damaged, so that it can be looked at.
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
        let why = "the snapshot is stale: the file was deleted or replaced since, and its space was \
                   given back; connect again, or load a newer snapshot";
        return Error::new(failure.kind, "read", subject, Failure::new(failure.kind, why));
    }
    if failure.kind != Kind::Corrupt || failure.names_object() {
        return Error::new(failure.kind, "read", subject, failure);
    }
    let record = match &wanted.item.record {
        Some(record) => Some(*record),
        None => match stat(&session.connections, dataset, std::slice::from_ref(path)).await {
            Ok(found) => found.into_iter().find_map(|item| match item {
                StatItem::File(record) => Some(record),
                StatItem::Folder | StatItem::Missing => None,
            }),
            Err(_) => None,
        },
    };
    let problem = match record {
        Some(record) => format!("chunk {}: {failure}", record.holder.chunk),
        None => failure.to_string(),
    };
    Error::new(Kind::Corrupt, "read", subject, Failure::new(Kind::Corrupt, problem))
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}
