//! Recovery: what the chunk store holds becomes known to the metadata store again (paper, 4.1.2).
//!
//! Must hold: a complete object of a living dataset that the log lacks is adopted, under the stamp
//! it carries; nothing is ever removed; what can't be adopted is named. Safe on a live server, and safe to cut
//! off and run again.

mod dataset;
mod found;
mod living;
mod shares;
#[cfg(test)]
mod tests;
mod unnamed;

use std::collections::BTreeSet;
use std::time::Duration;

use dl_format::{DatasetId, DatasetName, NameState, Stamp};
use dl_meta::{Brought, Damage, DatasetRecord, DatasetState};
use dl_proto::{Kind, RecoverProgress, RecoverRequest, Role};
use futures::future::{FutureExt, ready, try_join};
use futures::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::mpsc;

use self::dataset::{Progress, Read, Recovery};
use self::shares::Shares;
use crate::answer::Reply;
use crate::auth::Caller;
use crate::error::Error;
use crate::identity;
use crate::late::Late;
use crate::listener::Listener;
use crate::names::{self, Named};
use crate::parts::Parts;

/// Datasets that are recovered at once: most are small, and what they cost is latency.
const DATASETS_AT_ONCE: usize = 8;

/// Ids are looked at from this long before the asked time: writers' clocks may be off by half.
const SLACK: Duration = Duration::from_secs(30 * 60);

/// Whether the metadata has what its log says it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Log {
    /// What it knows is there, whatever became of the rest: it was brought in since the metadata was
    /// empty, or is written together with its rows.
    Sound,
    /// Unless the metadata knows that it lost something.
    Trusted,
    /// Whoever asks for a recovery may know more than the metadata does.
    Doubted,
}

/// Rebuilds what a request names, and appends again what the log has already: rows of it may be
/// gone. Tells how far it is through `progress`. The caller may do that and is told of no other
/// dataset.
pub(crate) async fn recover(
    parts: &Parts,
    request: RecoverRequest,
    caller: &Caller,
    progress: &mpsc::Sender<Reply<RecoverProgress>>,
) -> Result<(), Error> {
    let progress = Listener::new(parts, progress);
    let bound = parts.meta.identity().await;
    let bound = bound.map_err(|error| Error::meta("look into", &parts.meta, error))?;
    // Metadata that is filled from nothing has what was brought in since: what was cut off goes on.
    let log = bound.map_or(Log::Sound, |_| Log::Doubted);
    // Nothing is written into the store of others.
    identity::Tie::default().check(parts).await?;
    let is_all = request.dataset.is_none() && caller.may_all(Role::Read);
    let found = async { if is_all { unnamed::find(parts).await } else { BTreeSet::new() } };
    let found = found.boxed().shared();
    let rebuilt = rebuild(parts, request, caller, log, &progress, found.clone());
    let (found, ()) = try_join(found.map(Ok), rebuilt).await?;
    unnamed::tell(parts, found, &progress).await;
    progress.end()
}

async fn rebuild(
    parts: &Parts,
    request: RecoverRequest,
    caller: &Caller,
    log: Log,
    progress: &Listener<'_, RecoverProgress>,
    found: impl Future<Output = BTreeSet<DatasetId>>,
) -> Result<(), Error> {
    let is_filled = log == Log::Sound;
    let mut unnamed = match log {
        Log::Doubted => living::restore_names(parts, request.dataset.as_ref(), caller).await?,
        Log::Trusted | Log::Sound => Vec::new(),
    };
    if let Some(name) = &request.dataset {
        match unnamed.pop() {
            Some((_, error)) => return Err(error),
            None => is_there(parts, name, caller).await?,
        }
    }
    let damage = parts.meta.damage().await;
    let damage = damage.map_err(|error| Error::meta("look for damage in", &parts.meta, error))?;
    let since = request.since.map(seconds_of);
    // Without damage few objects are new, if any: those that are old are told of one by one.
    let (from, late) = match damage {
        Some(_) => (request.since, Late::before_seconds(parts, since.unwrap_or(0))),
        None => (Some(Stamp::at(parts.clock.now())), Late::usual(parts)),
    };
    let mending = parts.meta.mending(from).await;
    let mending = mending.map_err(|error| Error::meta("begin to mend", &parts.meta, error))?;
    // Metadata that is filled from nothing goes on where this one ends. What else is there in metadata of
    // no chunk store is what Redis left of it, and the next one would take it for brought in.
    let goes_on = log == Log::Sound && (mending.has_rows || is_empty(parts).await?);
    let log = if log == Log::Sound && !mending.has_rows { Log::Doubted } else { log };
    let damage = mending.damage;
    let damaged = damage.map(|damage| damage.since.map_or(0, seconds_of));
    // Metadata that lost its last writes may have datasets that were deleted since. Not before: what
    // comes back from now on comes with a loss of its own.
    living::end_deleted(parts, damage).await?;
    let shares = Shares::default();
    let late_ones = &late;
    let tells_missing = true;
    let recovery = Recovery {
        parts,
        late: late_ones,
        since,
        damaged,
        log,
        tells_missing,
        progress,
        shares: &shares,
    };
    // Before the names: each is written before the metadata has its dataset.
    let left = living::remnants(parts, damage).await?;
    // Not before: of what is created from now on nothing is missing.
    let (mut names, may_pass) = living::names(parts).await?;
    let wanted = |name: &DatasetName| request.dataset.as_ref().is_none_or(|wanted| wanted == name);
    let live = |named: &Named| named.record.state == NameState::Live;
    let is_left = |(name, named): &&(DatasetName, Named)| is_filled && live(named) && !wanted(name);
    let others: Vec<_> = names.read.iter().filter(is_left).cloned().collect();
    names.retain(|name| caller.may(Role::Read, name));
    let mut incomplete = false;
    for (name, error) in &unnamed {
        Progress::of(name, progress).fail(error).await;
    }
    for (name, error) in names.unread.iter().filter(|(name, _)| wanted(name)) {
        // What can't be read while the rest can will not be there the next time either.
        let may_pass = error.kind.is_retryable() && may_pass;
        incomplete |= may_pass || !recovery.set_aside(name).await;
        Progress::of(name, progress).fail(error).await;
    }
    let is_nameless = |dataset: &&DatasetRecord| {
        let is_asked = wanted(&dataset.name) && caller.may(Role::Read, &dataset.name);
        is_asked && living::is_nameless(&names, dataset)
    };
    for DatasetRecord { name, .. } in left.iter().filter(is_nameless) {
        incomplete |= !recovery.set_aside(name).await;
        let why = "the chunk store has lost its name, and nothing of it is brought back before it has it \
                   again; run `dlcmd recover --all` once more";
        Progress::of(name, progress).tell_problem(why.to_owned()).await;
    }
    names.read.retain(|(name, named)| live(named) && wanted(name));
    let is_awaited = |_: &(DatasetName, Named)| ready(!progress.is_deserted());
    let living = stream::iter(names.read).take_while(is_awaited);
    let recovered = living.map(|(name, named)| async move {
        // One dataset that can't be recovered now doesn't keep the others from it.
        match recovery.dataset(&name, named).await {
            Ok(read) => (read == Read::Interrupted, None),
            // What is whole stays so. Of metadata that is filled from nothing the next one trusts no log:
            // what there was no room for may be in it without its rows.
            Err(error) if error.kind == Kind::Full && damage.is_none() => {
                Progress::of(&name, progress).fail(&error).await;
                let why = format!("{}; make room, and recover again", error.chain());
                (true, Some(Error::new(Kind::Full, "recover dataset", &name, why)))
            }
            Err(error) => {
                let incomplete = error.kind.is_retryable() || !recovery.set_aside(&name).await;
                Progress::of(&name, progress).fail(&error).await;
                (incomplete, None)
            }
        }
    });
    let recovered = recovered.buffer_unordered(DATASETS_AT_ONCE);
    let add = |(any, full): (bool, Option<Error>), (one, error)| ready((any | one, full.or(error)));
    let (any, full) = recovered.fold((false, None), add).await;
    incomplete |= any;
    late.end().await?;
    // Of metadata that was empty nothing else tells that the others are missing, once it has a store.
    let mut lacks_others = false;
    if damage.is_none() {
        let others = stream::iter(others);
        let left =
            others.map(|(name, named)| async move { living::leave(parts, &name, named).await });
        let left: Vec<_> = left.buffer_unordered(DATASETS_AT_ONCE).try_collect().await?;
        lacks_others = left.contains(&true);
    }
    if damage.is_some() {
        // Before what is empty now is taken for whole.
        incomplete |= !unnamed::set_aside(parts, found.await).await;
    }
    incomplete |= progress.is_deserted();
    if progress.is_deserted() && goes_on {
        // As long as it is bound to no store.
        let why = "nobody waits for it any more; run it again to go on";
        return Err(Error::new(Kind::Unavailable, "recover", "datasets", why));
    }
    // One that doubts the log goes back as far as the damage does.
    let covers = log == Log::Doubted || damage.is_none_or(|damage| covers(request.since, damage));
    let brought = match request.dataset.is_none() && !incomplete && covers {
        true => Brought::All,
        false => Brought::Some,
    };
    let store = identity::of_recovered(parts).await?;
    let mended = parts.meta.mended(&mending, brought, store).await;
    mended.map_err(|error| Error::meta("take for mended", &parts.meta, error))?;
    if let Some(full) = full {
        return Err(full);
    }
    if incomplete {
        let why =
            "the chunk store or the metadata store did not answer for all of it; run recover again";
        return Err(Error::new(Kind::Unavailable, "recover", "datasets", why));
    }
    if lacks_others {
        let why = "what was asked for is recovered as far as it can be, and the other datasets are still \
                   missing; run `dlcmd recover --all`";
        return Err(Error::new(Kind::NeedsRecovery, "recover", "datasets", why));
    }
    if damage.is_some() && brought == Brought::Some {
        let why = "what was asked for is recovered as far as it can be, but all of the metadata may lack \
                   something; run `dlcmd recover --all`";
        return Err(Error::new(Kind::NeedsRecovery, "recover", "datasets", why));
    }
    if brought == Brought::Some {
        // Without marks of its own in all that was there, what was lost meanwhile is told here.
        identity::refuse_damaged(parts, "recover", "datasets").await?;
    }
    if let Some(name) = &request.dataset
        && let Ok(Some(named)) = names::newest(parts, name).await
        && named.record.state != NameState::Live
    {
        return Err(Error::new(
            Kind::NotFound,
            "recover dataset",
            name,
            "it was deleted meanwhile",
        ));
    }
    Ok(())
}

/// Whether the metadata has no dataset.
async fn is_empty(parts: &Parts) -> Result<bool, Error> {
    let left = parts.meta.remnants().await;
    Ok(left.map_err(|error| Error::meta("list", "datasets", error))?.is_empty())
}

/// Fails when the chunk store has no dataset of that name.
async fn is_there(parts: &Parts, name: &DatasetName, caller: &Caller) -> Result<(), Error> {
    let mut names = names::all(parts).await?;
    names.retain(|name| caller.may(Role::Read, name));
    let unread = names.unread.iter().map(|(unread, _)| unread);
    if names.live().map(|(live, _)| live).chain(unread).any(|there| there == name) {
        return Ok(());
    }
    let why = match names::nearest(name, names.live().map(|(live, _)| live)) {
        Some(near) => format!("the chunk store has none; did you mean {near}?"),
        None => "the chunk store has none of that name.".to_owned(),
    };
    let why = format!("{why} What has lost its name is found by `dlcmd recover --all`");
    Err(Error::new(Kind::NotFound, "recover dataset", name, why))
}

/// Whether a recovery from `since` on brings back all that may be missing.
fn covers(since: Option<Stamp>, damage: Damage) -> bool {
    since.is_none_or(|since| damage.since.is_some_and(|lost| since <= lost))
}

/// The seconds of ids from which on objects are looked at that were written since then.
fn seconds_of(since: Stamp) -> u64 {
    let since = since.time().checked_sub(SLACK);
    since.map_or(0, |since| Stamp::at(since).get() / 1_000_000)
}

/// Adopts whatever the logs of all datasets lack, after a metadata store lost their ends.
pub(crate) async fn roll_forward(parts: &Parts) -> Result<u64, Error> {
    match quietly(parts, None, Log::Sound).await {
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
    let (recovered, adopted) = quietly(parts, Some(since), Log::Trusted).await;
    recovered.map(|()| adopted)
}

/// Recovers all datasets; what is wrong goes into the log. Gives how many objects were adopted.
async fn quietly(parts: &Parts, since: Option<Stamp>, log: Log) -> (Result<(), Error>, u64) {
    let (progress, mut done) = mpsc::channel::<Reply<RecoverProgress>>(16);
    let everything = RecoverRequest { dataset: None, since };
    let adopted = async {
        let mut adopted = 0;
        while let Some(Reply::More(progress) | Reply::Last(progress)) = done.recv().await {
            for problem in &progress.problems {
                tracing::error!(dataset = progress.dataset, problem, "not all is recovered");
            }
            adopted += if progress.done { progress.adopted } else { 0 };
        }
        adopted
    };
    let recovered = async {
        let listener = Listener::new(parts, &progress);
        let none = ready(BTreeSet::new());
        let recovered = rebuild(parts, everything, &Caller::Everybody, log, &listener, none).await;
        let recovered = recovered.and_then(|()| listener.end());
        drop(progress);
        recovered
    };
    tokio::join!(recovered, adopted)
}

/// Adopts whatever the log of one dataset lacks; gives what is wrong with its objects.
pub(crate) async fn bring_in(parts: &Parts, name: &DatasetName) -> Result<Vec<String>, Error> {
    bring(parts, name, Log::Trusted).await
}

/// Appends all objects of one dataset again: the metadata takes the stamps of their headers, and has
/// the versions back that other stamps hid.
pub(crate) async fn take_stamps(parts: &Parts, name: &DatasetName) -> Result<(), Error> {
    bring(parts, name, Log::Doubted).await.map(drop)
}

async fn bring(parts: &Parts, name: &DatasetName, log: Log) -> Result<Vec<String>, Error> {
    let named = names::newest(parts, name).await?;
    let Some(named) = named.filter(|named| named.record.state == NameState::Live) else {
        return Err(no_name(parts, name).await);
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
        let late = Late::usual(parts);
        let (shares, listener) = (Shares::default(), Listener::new(parts, &progress));
        let recovery = Recovery {
            parts,
            late: &late,
            since: None,
            damaged: None,
            log,
            tells_missing: false,
            progress: &listener,
            shares: &shares,
        };
        let brought = recovery.dataset(name, named).await;
        drop(progress);
        let brought = brought?;
        late.end().await?;
        Ok::<_, Error>(brought)
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

/// What there is to say of a dataset that has no name in the chunk store.
async fn no_name(parts: &Parts, name: &DatasetName) -> Error {
    let (kind, why) = match parts.meta.record_named(name).await {
        Err(error) => return Error::meta("find dataset", name, error),
        // Of one that is deleted, the name goes first.
        Ok(Some(record)) if record.state != DatasetState::Ending => (
            Kind::NeedsRecovery,
            format!(
                "the metadata has it and its name is not in the chunk store, or says that it was \
                 deleted; run `dlcmd recover dl://{name}`"
            ),
        ),
        Ok(_) => (Kind::NotFound, "it was deleted".to_owned()),
    };
    Error::new(kind, "find dataset", name, why)
}
