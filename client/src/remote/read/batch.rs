//! One request for many files, tried until each is there or can't be had.
//!
//! Must hold: what came in a try that broke is not asked for again; a damaged file is asked for
//! once more and then given up.

use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use dl_proto::{Dataset as DatasetInfo, ReadPiece, ReadRequest, StatItem, pb};

use crate::error::{Error, Kind};
use crate::remote::connections::{Connection, Try};
use crate::remote::dataset::stat;
use crate::remote::failure::Failure;
use crate::remote::read::assemble::Assembly;
use crate::remote::read::wanted::Wanted;
use crate::remote::session::Session;

/// What came of a request.
#[derive(Debug)]
pub(super) struct BatchRead {
    files: Vec<Result<Bytes, Error>>,
    /// Of the request as a whole.
    error: Option<Error>,
}

impl BatchRead {
    /// Each file; one that a failed request left out has the request's error.
    pub(super) fn into_each(self) -> Vec<Result<Bytes, Error>> {
        self.files
    }

    /// Each file, or the error of the request.
    pub(super) fn into_whole(self) -> Result<Vec<Result<Bytes, Error>>, Error> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.files),
        }
    }

    /// The only file.
    pub(super) fn pop_result(&mut self) -> Result<Bytes, Error> {
        self.files.pop().expect("one answer for each wanted file")
    }
}

/// How far the tries got.
#[derive(Debug)]
struct Progress {
    files: Vec<Item>,
    /// Whether something came since that was last looked at.
    moved: bool,
    /// Whether the last try was answered to its end.
    answered: bool,
}

#[derive(Debug)]
enum Item {
    /// Not yet; why not, when it was tried.
    Missing(Option<Failure>),
    Read(Bytes),
    Failed(Failure),
}

/// Reads all of `wanted`; one result for each, in order.
pub(super) async fn read_batch(
    session: &Session,
    dataset: &DatasetInfo,
    wanted: Vec<Wanted<'_>>,
) -> BatchRead {
    let files = wanted.iter().map(|_| Item::Missing(None)).collect();
    let progress = Mutex::new(Progress { files, moved: false, answered: false });
    let connections = &session.connections;
    let subject = || match wanted.as_slice() {
        [one] => format!("dl://{}/{}", dataset.name, one.item.path),
        many => format!("{} files of dl://{}", many.len(), dataset.name),
    };
    let error = loop {
        let attempt = |server, this| attempt(server, this, dataset, &wanted, &progress);
        match connections.call("read", subject, connections.usual(), attempt).await {
            Ok(()) => break None,
            // Time counts from the last bytes that came.
            Err(error) if error.kind().is_retryable() && take_moved(&progress) => {}
            Err(error) => break Some(error),
        }
    };
    let progress = progress.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut files = Vec::with_capacity(wanted.len());
    for (wanted, item) in wanted.iter().zip(progress.files) {
        files.push(match item {
            Item::Read(bytes) => Ok(bytes),
            Item::Failed(failure) => Err(explain(session, dataset, wanted, failure).await),
            Item::Missing(Some(failure)) if progress.answered => {
                Err(explain(session, dataset, wanted, failure).await)
            }
            Item::Missing(_) => Err(error.clone().unwrap_or_else(|| {
                let problem = Failure::new(Kind::Internal, "no answer came for it");
                Error::new(Kind::Internal, "read", subject(), problem)
            })),
        });
    }
    BatchRead { files, error: error.filter(|_| !progress.answered) }
}

/// One try: asks for what is missing, keeps what comes.
async fn attempt(
    mut server: Connection,
    this: Try,
    dataset: &DatasetInfo,
    wanted: &[Wanted<'_>],
    progress: &Mutex<Progress>,
) -> Result<(), Failure> {
    lock(progress).answered = false;
    let asked: Vec<usize> = {
        let progress = lock(progress);
        let files = progress.files.iter().enumerate();
        files.filter(|(_, item)| matches!(item, Item::Missing(_))).map(|(n, _)| n).collect()
    };
    let items = asked.iter().filter_map(|number| wanted.get(*number)).map(Wanted::request);
    let message = ReadRequest { dataset: dataset.id, items: items.collect() };
    let request = this.request(pb::ReadRequest::from(message));
    let mut stream = this.answer(server.read(request)).await?;
    let mut assembly = Assembly::new(wanted, &asked);
    while let Some(message) = this.message(&mut stream).await? {
        let size = message.pieces.iter().map(|piece| piece.data.len()).sum();
        let mut progress = lock(progress);
        progress.moved |= size > 0;
        for piece in message.pieces {
            if let Some((number, came)) = assembly.add(ReadPiece::from(piece), size)? {
                progress.settle(number, came);
            }
        }
    }
    lock(progress).end()
}

impl Progress {
    fn settle(&mut self, number: usize, came: Result<Bytes, Failure>) {
        let Some(item) = self.files.get_mut(number) else { return };
        // Damage on the way, or in one server's copy, is worth one more look.
        let damaged_before =
            matches!(item, Item::Missing(Some(Failure { kind: Kind::Corrupt, .. })));
        *item = match came {
            Ok(bytes) => Item::Read(bytes),
            Err(failure) if failure.kind.is_retryable() => Item::Missing(Some(failure)),
            Err(failure) if failure.kind == Kind::Corrupt && !damaged_before => {
                Item::Missing(Some(failure))
            }
            Err(failure) => Item::Failed(failure),
        };
    }

    /// The answer ended.
    fn end(&mut self) -> Result<(), Failure> {
        let mut missing = self.files.iter().filter_map(|item| match item {
            Item::Missing(why) => Some(why),
            Item::Read(_) | Item::Failed(_) => None,
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
    if failure.kind != Kind::Corrupt {
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

fn take_moved(progress: &Mutex<Progress>) -> bool {
    std::mem::take(&mut lock(progress).moved)
}

fn lock(progress: &Mutex<Progress>) -> MutexGuard<'_, Progress> {
    progress.lock().unwrap_or_else(PoisonError::into_inner)
}
