//! Recovery: what the chunk store holds becomes known to the metadata store again (paper, 4.1.2).
//!
//! Must hold: a complete object of a living dataset that the log lacks is adopted, under the stamp
//! it carries; nothing is ever removed; what can't be adopted is named. Safe on a live server, and
//! safe to cut off and run again.

use std::collections::HashSet;
use std::time::Duration;

use dl_format::{
    ChunkId, DatasetId, DatasetName, Header, NameState, Stamp, dataset_prefix, parse_object_key,
};
use dl_meta::{Appended, Damage, DatasetState};
use dl_proto::{Kind, RecoverProgress, RecoverRequest, Role};
use dl_store::{Key, ObjectInfo};
use futures::TryStreamExt;
use futures::stream::{self, StreamExt};
use tokio::sync::mpsc;

use crate::answer::Reply;
use crate::auth::Caller;
use crate::catalog;
use crate::error::Error;
use crate::headers::read_headers;
use crate::identity;
use crate::names::{self, Named};
use crate::parts::{Parts, prefix};

/// Ids are looked at from this long before the asked time: writers' clocks may be off by half.
const SLACK: Duration = Duration::from_secs(30 * 60);

/// Headers read with one call to the store, and such calls in flight.
const BATCH: usize = 32;
const BATCHES_AT_ONCE: usize = 4;

/// Objects asked of the log at once.
const LOG_PAGE: usize = 10_000;

/// Rebuilds what a request names; tells how far it is through `progress`. The caller may do that
/// and is told of no other dataset.
pub(crate) async fn recover(
    parts: &Parts,
    request: RecoverRequest,
    caller: &Caller,
    progress: &mpsc::Sender<Reply<RecoverProgress>>,
) -> Result<(), Error> {
    let damage = parts.meta.damage().await;
    let damage = damage.map_err(|error| Error::meta("look for damage in", &parts.meta, error))?;
    let mut names = names::all(parts).await?;
    names.retain(|name| caller.may(Role::Read, name));
    let wanted = |name: &DatasetName| request.dataset.as_ref().is_none_or(|wanted| wanted == name);
    let (mut found, mut incomplete) = (false, false);
    for (name, error) in names.unread.iter().filter(|(name, _)| wanted(name)) {
        found = true;
        incomplete |= error.kind.is_retryable();
        failed(progress, name, error).await;
    }
    for (name, named) in names.live().filter(|(name, _)| wanted(name)) {
        found = true;
        // One dataset that can't be recovered now doesn't keep the others from it.
        match dataset(parts, name, *named, request.since, damage, progress).await {
            Ok(read) => incomplete |= read == Read::Interrupted,
            Err(error) => {
                incomplete |= error.kind.is_retryable();
                failed(progress, name, &error).await;
            }
        }
    }
    if let Some(name) = request.dataset.as_ref().filter(|_| !found) {
        let why = match names::nearest(name, names.live().map(|(live, _)| live)) {
            Some(near) => format!("the chunk store has none; did you mean {near}?"),
            None => "the chunk store has none of that name".to_owned(),
        };
        return Err(Error::new(Kind::NotFound, "recover dataset", name, why));
    }
    identity::bind_recovered(parts).await?;
    if incomplete {
        let why = "the chunk store did not answer for all objects; run recover again";
        return Err(Error::new(Kind::Unavailable, "recover", "datasets", why));
    }
    match damage {
        Some(damage) if request.dataset.is_none() && covers(request.since, damage) => {
            let mended = parts.meta.mended().await;
            mended.map_err(|error| Error::meta("take for mended", &parts.meta, error))
        }
        Some(_) => {
            let why = "this dataset is recovered, but all of the metadata may lack something; run \
                       `dlcmd recover --all`";
            Err(Error::new(Kind::NeedsRecovery, "recover", "datasets", why))
        }
        None => Ok(()),
    }
}

/// Whether a recovery from `since` on brings back all that may be missing.
fn covers(since: Option<Stamp>, damage: Damage) -> bool {
    since.is_none_or(|since| damage.since.is_some_and(|lost| since <= lost))
}

/// How far the objects of a dataset were read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    /// As far as they can be.
    Whole,
    /// The store failed for some; another try may do better.
    Interrupted,
}

/// Tells that nothing can be done for a dataset now.
async fn failed(
    progress: &mpsc::Sender<Reply<RecoverProgress>>,
    name: &DatasetName,
    error: &Error,
) {
    let mut state = started(name);
    state.problems.push(error.chain());
    state.done = true;
    tell(progress, &mut state).await;
}

fn started(name: &DatasetName) -> RecoverProgress {
    RecoverProgress {
        dataset: name.to_string(),
        listed: 0,
        checked: 0,
        adopted: 0,
        files: 0,
        problems: Vec::new(),
        done: false,
    }
}

/// Adopts whatever the logs of all datasets lack, after a metadata store lost their ends.
pub(crate) async fn roll_forward(parts: &Parts) -> Result<u64, Error> {
    match quietly(parts, None).await {
        // Those datasets are refused until they are recovered; the others are served.
        (Err(error), adopted) if error.kind == Kind::Unavailable => {
            tracing::error!(error = error.chain(), "some datasets are not whole");
            Ok(adopted)
        }
        (recovered, adopted) => recovered.map(|()| adopted),
    }
}

/// Appends all objects again that were sealed since then, or shortly before.
pub(crate) async fn append_again(parts: &Parts, since: Stamp) -> Result<u64, Error> {
    let (recovered, adopted) = quietly(parts, Some(since)).await;
    recovered.map(|()| adopted)
}

/// Recovers all datasets; what is wrong goes into the log. Gives how many objects were adopted.
async fn quietly(parts: &Parts, since: Option<Stamp>) -> (Result<(), Error>, u64) {
    let (progress, mut done) = mpsc::channel::<Reply<RecoverProgress>>(16);
    let everything = RecoverRequest { dataset: None, since };
    let adopted = async {
        let mut adopted = 0;
        while let Some(Reply::More(progress) | Reply::Last(progress)) = done.recv().await {
            for problem in &progress.problems {
                tracing::error!(dataset = progress.dataset, problem, "damaged object");
            }
            adopted += if progress.done { progress.adopted } else { 0 };
        }
        adopted
    };
    let recovered = async {
        let recovered = recover(parts, everything, &Caller::Everybody, &progress).await;
        drop(progress);
        recovered
    };
    tokio::join!(recovered, adopted)
}

/// Adopts whatever the log of one dataset lacks; gives what is wrong with its objects.
pub(crate) async fn bring_in(parts: &Parts, name: &DatasetName) -> Result<Vec<String>, Error> {
    let named = names::newest(parts, name).await?;
    let Some(named) = named.filter(|named| named.record.state == NameState::Live) else {
        let why = "it was deleted";
        return Err(Error::new(Kind::NotFound, "find dataset", name, why));
    };
    let (progress, mut done) = mpsc::channel::<Reply<RecoverProgress>>(16);
    let problems = async {
        let mut problems = Vec::new();
        while let Some(Reply::More(progress) | Reply::Last(progress)) = done.recv().await {
            problems.extend(progress.problems);
        }
        problems
    };
    let brought = async {
        let brought = dataset(parts, name, named, None, None, &progress).await;
        drop(progress);
        brought
    };
    let (brought, problems) = tokio::join!(brought, problems);
    match brought? {
        Read::Whole => Ok(problems),
        Read::Interrupted => {
            let why = "the chunk store did not answer for all objects; try again";
            Err(Error::new(Kind::Unavailable, "look at dataset", name, why))
        }
    }
}

async fn dataset(
    parts: &Parts,
    name: &DatasetName,
    named: Named,
    since: Option<Stamp>,
    damage: Option<Damage>,
    progress: &mpsc::Sender<Reply<RecoverProgress>>,
) -> Result<Read, Error> {
    let id = named.record.dataset;
    let record = parts.meta.record(id).await;
    let record = record.map_err(|error| Error::meta("recover dataset", name, error))?;
    let whole = record.is_some_and(|record| record.state == DatasetState::Live);
    // Until all is back, its contents must not be taken for all there is.
    if !whole && !catalog::index(parts, name, named, DatasetState::Recovering).await? {
        return ended(progress, name).await;
    }
    if whole && damage.is_some() && !catalog::index(parts, name, named, DatasetState::Live).await? {
        return ended(progress, name).await;
    }
    // A log that was lost is read from its beginning, whatever was asked for.
    let since = since.filter(|_| whole).map(seconds_of);
    // Of what the log knows, other records may be lost.
    let doubted = damage.map(|damage| damage.since.map_or(0, seconds_of));
    let mut state = started(name);
    let (mut unread, mut read) = (false, Read::Whole);
    let known = known_objects(parts, id).await?;
    let mut missing: Vec<(ChunkId, ObjectInfo)> = Vec::new();
    {
        let all = prefix(dataset_prefix(id));
        let mut objects = parts.store.list(&all);
        while let Some(object) = next(&mut objects, name).await? {
            state.listed += 1;
            match parse_object_key(object.key.as_str()) {
                Some((dataset, chunk, _)) if dataset == id => {
                    let is_recent = |since: u64| u64::from(chunk.seconds()) >= since;
                    let is_whole = known.contains(&chunk) && !doubted.is_some_and(is_recent);
                    if since.is_none_or(is_recent) && !is_whole {
                        missing.push((chunk, object));
                    }
                }
                _ => state.problems.push(format!("{} is no object of a dataset", object.key)),
            }
        }
    }
    // By id: by the time of writing, and so that the log grows in order.
    missing.sort_unstable_by_key(|(chunk, _)| *chunk);
    state.checked = state.listed.saturating_sub(missing.len() as u64);
    tell(progress, &mut state).await;

    // A power cut must not take what the metadata names from now on.
    let keys: Vec<Key> = missing.iter().map(|(_, object)| object.key.clone()).collect();
    let settled = parts.store.settle(&keys).await;
    settled.map_err(|error| Error::store("settle the objects of dataset", name, error))?;

    let batches: Vec<Vec<_>> = missing.chunks(BATCH).map(<[_]>::to_vec).collect();
    let mut batches = stream::iter(batches)
        .map(|batch| async move {
            let keys: Vec<Key> = batch.iter().map(|(_, object)| object.key.clone()).collect();
            let headers = read_headers(parts, &keys).await;
            (batch, headers)
        })
        .buffered(BATCHES_AT_ONCE);
    while let Some((batch, headers)) = batches.next().await {
        for ((chunk, object), header) in batch.iter().zip(headers) {
            state.checked += 1;
            match header {
                Ok(header) => {
                    if !adopt(parts, id, *chunk, object, header, &mut state).await? {
                        return ended(progress, name).await;
                    }
                }
                // Removed since it was listed: with its dataset.
                Err(error) if error.kind == Kind::NotFound => {}
                Err(error) => {
                    unread |= error.kind != Kind::Corrupt;
                    if error.kind.is_retryable() {
                        read = Read::Interrupted;
                    }
                    state.problems.push(error.chain());
                }
            }
        }
        tell(progress, &mut state).await;
    }
    if unread {
        state.problems.push("some objects could not be read; run recover again".to_owned());
    } else if !whole && !catalog::index(parts, name, named, DatasetState::Live).await? {
        return ended(progress, name).await;
    }
    state.done = true;
    tell(progress, &mut state).await;
    Ok(read)
}

/// The seconds of ids from which on objects are looked at that were written since then.
fn seconds_of(since: Stamp) -> u64 {
    let since = since.time().checked_sub(SLACK);
    since.map_or(0, |since| Stamp::at(since).get() / 1_000_000)
}

/// The dataset was deleted meanwhile: nothing is left to recover.
async fn ended(
    progress: &mpsc::Sender<Reply<RecoverProgress>>,
    name: &DatasetName,
) -> Result<Read, Error> {
    let mut state = started(name);
    state.done = true;
    tell(progress, &mut state).await;
    Ok(Read::Whole)
}

/// False when the dataset was deleted meanwhile.
async fn adopt(
    parts: &Parts,
    dataset: DatasetId,
    chunk: ChunkId,
    object: &ObjectInfo,
    header: Header,
    state: &mut RecoverProgress,
) -> Result<bool, Error> {
    if header.dataset() != dataset || header.id() != chunk {
        state.problems.push(format!("{} holds another object than its key says", object.key));
        return Ok(true);
    }
    if header.object_length() != object.size {
        state.problems.push(format!(
            "{} has {} bytes and should have {}",
            object.key,
            object.size,
            header.object_length()
        ));
        return Ok(true);
    }
    let files = u64::from(header.entry_count());
    let committed = match header.committed() {
        Ok(committed) => committed,
        Err(error) => {
            state.problems.push(format!("{}: {error}", object.key));
            return Ok(true);
        }
    };
    match parts.meta.append(&committed).await {
        Ok(Appended::New) => {
            state.adopted += 1;
            state.files += files;
        }
        Ok(Appended::Known) => {}
        Err(error) if error.kind == dl_meta::Kind::Missing => return Ok(false),
        Err(error) => return Err(Error::meta("adopt object", chunk, error)),
    }
    Ok(true)
}

async fn known_objects(parts: &Parts, dataset: DatasetId) -> Result<HashSet<ChunkId>, Error> {
    let mut known = HashSet::new();
    let mut after = None;
    loop {
        let page = parts.meta.objects(dataset, after, LOG_PAGE).await;
        let page = page.map_err(|error| Error::meta("read the log of dataset", dataset, error))?;
        after = page.last().map(|object| object.id);
        known.extend(page.iter().map(|object| object.id));
        if page.len() < LOG_PAGE {
            return Ok(known);
        }
    }
}

async fn next(
    objects: &mut stream::BoxStream<'_, Result<ObjectInfo, dl_store::Error>>,
    name: &DatasetName,
) -> Result<Option<ObjectInfo>, Error> {
    let object = objects.try_next().await;
    object.map_err(|error| Error::store("list the objects of dataset", name, error))
}

/// Says how far it is. Problems are told once.
async fn tell(progress: &mpsc::Sender<Reply<RecoverProgress>>, state: &mut RecoverProgress) {
    // The recovery goes on when nobody listens.
    let _ = progress.send(Reply::More(state.clone())).await;
    state.problems.clear();
}
