//! The names of datasets: small objects `names/<name>/<generation>` in the chunk store. The highest
//! generation of a name holds. Names are the truth about living datasets; the metadata store indexes them.
//!
//! Must hold: a name object is written once and never changed. An object copied or edited by hand is refused with
//! an error about this object.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use dl_format::{
    DatasetId, DatasetName, NameRecord, NameState, dataset_prefix, name_key, name_prefix,
    parse_name_key, parse_snapshot_key,
};
use dl_proto::Kind;
use dl_runtime::Deadline;
use dl_store::{Prefix, StoreExt};
use futures::{StreamExt, TryStreamExt, stream};

use crate::error::{Doing, Error, is_created};
use crate::shared::context::{ServerContext, key, prefix};
pub(crate) use crate::shared::name_cache::{Named, Names};

const READ: &str = "read the name of dataset";

/// Names read in parallel.
const READS_AT_ONCE: usize = 64;

/// Time after a deletion within which a server ends the writes of before.
const SPENT_AFTER: Duration = Duration::from_secs(60 * 60);

/// Pauses between the tries to read a name.
pub(crate) const PAUSES: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(9)];

/// Age of the names for hints and for the choice of datasets in the fast store.
const RECENT: Duration = Duration::from_secs(1);

/// All names as they are now. Concurrent callers share a reading that began after their calls, so that
/// requests for missing datasets don't keep the chunk store busy.
pub(crate) async fn shared(context: &ServerContext) -> Result<Arc<Names>, Error> {
    shared_since(context, context.clock.monotonic()).await
}

/// All names as they were a moment ago.
pub(crate) async fn recent(context: &ServerContext) -> Result<Arc<Names>, Error> {
    shared_since(context, context.clock.monotonic().saturating_sub(RECENT)).await
}

/// All names by a reading that began after `began`. While the chunk store does not answer, all waiting calls
/// fail with the reading in progress: no call waits for several time-outs, nor for longer than the patience of
/// a request.
async fn shared_since(context: &ServerContext, began: Duration) -> Result<Arc<Names>, Error> {
    const ACTION: &str = "read the names of";
    let patience = context.limits.patience;
    let deadline = Deadline::after(&*context.clock, patience);
    loop {
        if let Some(names) = context.names.since(began) {
            return Ok(names);
        }
        let reading = context.names.reading(context.clock.monotonic(), || {
            let context = context.clone();
            async move { all_but(&context, context.names.last().as_deref()).await }
        });
        match deadline.bound(&*context.clock, reading).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                return Err(Error::new(error.kind, ACTION, "datasets", error.chain()));
            }
            Err(_) => {
                let why =
                    format!("the chunk store has not told them within {patience:?}; try again");
                return Err(Error::new(Kind::Unavailable, ACTION, "datasets", why));
            }
        }
    }
}

/// The newest generation of `name`; none when the name was never used.
pub(crate) async fn newest(
    context: &ServerContext,
    name: &DatasetName,
) -> Result<Option<Named>, Error> {
    match newest_generation(context, name).await? {
        Some(generation) => Ok(Some(read(context, name, generation).await?)),
        None => Ok(None),
    }
}

/// The number of the newest generation, readable or not; none when the name was never used.
pub(crate) async fn newest_generation(
    context: &ServerContext,
    name: &DatasetName,
) -> Result<Option<u32>, Error> {
    let found = list(context, &prefix(name_prefix(name))).await?;
    Ok(found.into_iter().next_back().map(|(_, generation)| generation))
}

/// All names, read anew.
pub(crate) async fn all(context: &ServerContext) -> Result<Names, Error> {
    all_but(context, None).await
}

/// All names. A known generation is not read again, as no generation ever changes, and names of deleted
/// datasets stay for ever. Young live generations are read again: a store with two-step creates may have taken
/// them from two servers.
async fn all_but(context: &ServerContext, known: Option<&Names>) -> Result<Names, Error> {
    let found = list(context, &prefix(dl_format::NAMES_PREFIX.to_owned())).await?;
    // In order: the last generation of a name stays.
    let newest: BTreeMap<_, _> = found.into_iter().collect();
    let now = context.clock.now();
    let is_final = move |named: &Named| {
        let age = now.duration_since(named.record.created.time());
        named.record.state == NameState::Deleted || age.is_ok_and(|age| age > SPENT_AFTER)
    };
    let read = stream::iter(newest).map(|(name, generation)| async move {
        let known = known.and_then(|known| known.of(&name)).filter(|known| is_final(known));
        let named = match known.filter(|known| known.generation == generation) {
            Some(known) => Ok(*known),
            None => read(context, &name, generation).await,
        };
        (name, named)
    });
    let mut names = Names::default();
    let mut read = std::pin::pin!(read.buffered(READS_AT_ONCE));
    while let Some((name, named)) = read.next().await {
        match named {
            Ok(named) => names.read.push((name, named)),
            Err(error) => names.unread.push((name, error)),
        }
    }
    refuse_copies(&mut names);
    Ok(names)
}

/// Takes live names of the same dataset for unread: all but a single name are copies, and nothing tells the
/// original. The error does not mention the other names, as its reader may not be allowed to know them.
fn refuse_copies(names: &mut Names) {
    let mut counts: HashMap<DatasetId, u32> = HashMap::new();
    for (_, named) in &names.read {
        *counts.entry(named.record.dataset).or_default() += 1;
    }
    for (name, named) in std::mem::take(&mut names.read) {
        let is_copied = counts.get(&named.record.dataset).is_some_and(|count| *count > 1);
        if !is_copied || named.record.state == NameState::Deleted {
            names.read.push((name, named));
            continue;
        }
        let object = name_key(&name, named.generation);
        let why = format!(
            "{object} in the chunk store stands for the same dataset as another name, so one is a copy of \
             the other: remove that one, put back what was there before, and run `dlcmd recover --all`"
        );
        names.unread.push((name.clone(), Error::new(Kind::Corrupt, READ, &name, why)));
    }
    names.unread.sort_by(|(name, _), (other, _)| name.cmp(other));
}

/// The error where the metadata has another dataset of a name than the name object, which was changed by hand.
pub(crate) fn changed(name: &DatasetName, generation: u32) -> String {
    let object = name_key(name, generation);
    format!(
        "{object} in the chunk store stands for another dataset than the metadata has: put that object \
         back from a copy; or get the files that are to be kept, remove the object, and run `dlcmd recover \
         dl://{name}`, which writes it again"
    )
}

/// Whether a dataset, called `what` in errors, has objects other than snapshots.
pub(crate) async fn has_objects(
    context: &ServerContext,
    what: impl Display,
    id: DatasetId,
) -> Result<bool, Error> {
    let objects = prefix(dataset_prefix(id));
    let mut objects = context.store.list(&objects);
    loop {
        let next = objects.try_next().await.storing("list the objects of dataset", &what)?;
        match next {
            Some(object) if parse_snapshot_key(object.key.as_str()).is_some() => {}
            next => return Ok(next.is_some()),
        }
    }
}

/// A deletion with objects that may be left.
#[derive(Debug)]
pub(crate) struct Deleted {
    pub(crate) name: DatasetName,
    pub(crate) named: Named,
    /// The generations after the deletion before, up to this deletion; without the newest generation.
    spent: Vec<u32>,
}

/// The result of a search for deletions.
#[derive(Debug, Default)]
pub(crate) struct Deletions {
    pub(crate) found: Vec<Deleted>,
    /// Names used more than once, each with the newest generation, whose predecessors are deleted.
    pub(crate) used_again: Vec<(DatasetName, u32)>,
}

/// The scope of a search for deletions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Past {
    /// Deletions not tidied up yet, also of names used again. Costs a listing, and a reading
    /// for each name with several generations: a name with a single generation has no past.
    Untidied,
    /// Also deletions already tidied up: a server may have written an object later, and died.
    All,
}

/// Searches for deletions with objects that may be left.
pub(crate) async fn deleted(context: &ServerContext, past: Past) -> Result<Deletions, Error> {
    let found = list(context, &prefix(dl_format::NAMES_PREFIX.to_owned())).await?;
    let mut all: BTreeMap<DatasetName, Vec<u32>> = BTreeMap::new();
    for (name, generation) in found {
        all.entry(name).or_default().push(generation);
    }
    let newest = |(name, generations): (&DatasetName, &Vec<u32>)| {
        let newest = generations.last().copied().filter(|newest| *newest > 1)?;
        Some((name.clone(), newest))
    };
    let used_again = all.iter().filter_map(newest).collect();
    all.retain(|_, generations| past == Past::All || generations.len() > 1);
    let read = stream::iter(all).map(|(name, generations)| async move {
        let read = stream::iter(&generations).then(|one| read_patiently(context, &name, *one));
        let read: Vec<_> = read.collect().await;
        of_name(&name, &generations, read)
    });
    let found = read.buffered(READS_AT_ONCE).concat().await;
    Ok(Deletions { found, used_again })
}

/// The deletions among the generations of a name.
fn of_name(
    name: &DatasetName,
    generations: &[u32],
    read: Vec<Result<Named, Error>>,
) -> Vec<Deleted> {
    let (mut deleted, mut spent) = (Vec::new(), Vec::new());
    for (generation, named) in generations.iter().zip(read) {
        let named = match named {
            Ok(named) => named,
            Err(error) => {
                tracing::error!(error = error.chain(), "a name can't be read");
                // This generation may be a deletion that left objects.
                spent.clear();
                continue;
            }
        };
        if generations.last() != Some(generation) {
            spent.push(*generation);
        }
        if named.record.state == NameState::Deleted {
            let spent = std::mem::take(&mut spent);
            deleted.push(Deleted { name: name.clone(), named, spent });
        }
    }
    deleted
}

/// Reads a generation; after a failure of the store again, with growing pauses.
pub(crate) async fn read_patiently(
    context: &ServerContext,
    name: &DatasetName,
    generation: u32,
) -> Result<Named, Error> {
    let mut pauses = PAUSES.iter();
    loop {
        match (read(context, name, generation).await, pauses.next()) {
            (Err(error), Some(pause)) if error.kind.is_retryable() => {
                context.clock.sleep(*pause).await;
            }
            (read, _) => return read,
        }
    }
}

impl Deleted {
    /// Removes the spent generations, once no server can be at work with them.
    pub(crate) async fn tidy(&self, context: &ServerContext) -> Result<(), Error> {
        let age = context.clock.now().duration_since(self.named.record.created.time());
        if age.is_ok_and(|age| age > SPENT_AFTER) {
            // In order: as long as a generation is left, the deletion is found again.
            for generation in &self.spent {
                let object = key(name_key(&self.name, *generation));
                context.store.delete(&object).await.storing("remove a name of", &self.name)?;
            }
        }
        Ok(())
    }
}

/// Makes a generation. False when another server was faster.
pub(crate) async fn create(
    context: &ServerContext,
    name: &DatasetName,
    generation: u32,
    record: &NameRecord,
) -> Result<bool, Error> {
    let object = key(name_key(name, generation));
    let created = context.store.create(&object, record.encode().into()).await;
    is_created(created, "write the name of dataset", name)
}

/// A generation after its creation has settled: a store with two-step creates may take a generation from two
/// servers, and the last write holds.
pub(crate) async fn held(
    context: &ServerContext,
    name: &DatasetName,
    generation: u32,
) -> Result<Named, Error> {
    context.clock.sleep(context.limits.read_back_delay).await;
    read(context, name, generation).await
}

/// Makes a generation durable: its server may have died before.
pub(crate) async fn make_durable(
    context: &ServerContext,
    name: &DatasetName,
    generation: u32,
) -> Result<(), Error> {
    let object = key(name_key(name, generation));
    context.store.make_durable(&[object]).await.storing("make durable the name of dataset", name)
}

/// Names and generations, in order.
async fn list(context: &ServerContext, prefix: &Prefix) -> Result<Vec<(DatasetName, u32)>, Error> {
    let objects =
        context.store.list_sorted(prefix).await.storing("list the names of", "datasets")?;
    let generations = objects.iter().filter_map(|object| parse_name_key(object.key.as_str()));
    Ok(generations.collect())
}

async fn read(
    context: &ServerContext,
    name: &DatasetName,
    generation: u32,
) -> Result<Named, Error> {
    let object = key(name_key(name, generation));
    let bytes = context.store.read_all(&object).await.storing(READ, name)?;
    let record = NameRecord::decode(&bytes).map_err(|error| {
        let unless = if error.is_unsupported() { "if no newer version wrote it, " } else { "" };
        let why = format!(
            "{error}; {unless}{object} in the chunk store is damaged; put it back from a copy, or, as long \
             as the metadata has the dataset, remove it and run `dlcmd recover dl://{name}`"
        );
        Error::new(Kind::Corrupt, READ, name, why)
    })?;
    Ok(Named { generation, record })
}

/// The nearest of `names` to a typed name: a third of the letters may differ, or the end is missing. Of
/// several such names, the name with the longest common beginning.
pub(crate) fn nearest<'a>(
    typed: &DatasetName,
    names: impl Iterator<Item = &'a DatasetName>,
) -> Option<&'a DatasetName> {
    let typed = typed.as_str().to_ascii_lowercase();
    let near = names.filter_map(|name| {
        let letters = name.as_str().to_ascii_lowercase();
        let distance = strsim::osa_distance(&typed, &letters);
        let begins = typed.bytes().zip(letters.bytes()).take_while(|(a, b)| a == b).count();
        let most = (typed.len().max(letters.len()) / 3).max(usize::from(begins > 0));
        let goes_on = typed.len() >= 3 && letters.starts_with(&typed);
        let is_near = distance <= most || goes_on;
        is_near.then_some((distance, Reverse(begins), name))
    });
    near.min().map(|(_, _, name)| name)
}

#[cfg(test)]
mod tests;
