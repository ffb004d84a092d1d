//! What dataset names point to: small objects `names/<name>/<generation>` in the chunk store, of
//! which the highest generation holds. The truth about which datasets live; the metadata store
//! only indexes it.

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

use crate::error::Error;
use crate::parts::{Parts, key, prefix};
pub(crate) use crate::roll::{Named, Names};

const READ: &str = "read the name of dataset";

/// Names that are read at once.
const READS_AT_ONCE: usize = 64;

/// A server that began to create or write something before a deletion has ended it by then.
const SPENT_AFTER: Duration = Duration::from_secs(60 * 60);

/// Between the tries to read what much hangs on.
pub(crate) const PAUSES: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_secs(3), Duration::from_secs(9)];

/// For hints, and for what to keep in the fast store, names may be so old.
const RECENT: Duration = Duration::from_secs(1);

/// What every name points to now. Of many who ask at once, all share one reading that began after
/// they asked, so that clients who ask for what isn't there don't keep the chunk store busy.
pub(crate) async fn shared(parts: &Parts) -> Result<Arc<Names>, Error> {
    shared_since(parts, parts.clock.monotonic()).await
}

/// What every name pointed to a moment ago.
pub(crate) async fn recent(parts: &Parts) -> Result<Arc<Names>, Error> {
    shared_since(parts, parts.clock.monotonic().saturating_sub(RECENT)).await
}

/// What was read since `began`. While the chunk store does not answer, those that wait fail with
/// the reading that goes on: nobody waits for one time-out after the other, nor for longer than
/// the patience of a request.
async fn shared_since(parts: &Parts, began: Duration) -> Result<Arc<Names>, Error> {
    const ACTION: &str = "read the names of";
    let patience = parts.limits.patience;
    let deadline = Deadline::after(&*parts.clock, patience);
    loop {
        if let Some(names) = parts.roll.since(began) {
            return Ok(names);
        }
        let reading = parts.roll.reading(parts.clock.monotonic(), || {
            let parts = parts.clone();
            async move { all_but(&parts, parts.roll.last().as_deref()).await }
        });
        match deadline.bound(&*parts.clock, reading).await {
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

/// What `name` points to; none when it was never used.
pub(crate) async fn newest(parts: &Parts, name: &DatasetName) -> Result<Option<Named>, Error> {
    match newest_generation(parts, name).await? {
        Some(generation) => Ok(Some(read(parts, name, generation).await?)),
        None => Ok(None),
    }
}

/// The generation that holds, whether it can be read or not; none when the name was never used.
pub(crate) async fn newest_generation(
    parts: &Parts,
    name: &DatasetName,
) -> Result<Option<u32>, Error> {
    let found = list(parts, &prefix(name_prefix(name))).await?;
    Ok(found.into_iter().next_back().map(|(_, generation)| generation))
}

/// Whether a name ever stood for a dataset, as far as its generations are still there.
pub(crate) async fn stood_for(
    parts: &Parts,
    name: &DatasetName,
    id: DatasetId,
) -> Result<bool, Error> {
    for (name, generation) in list(parts, &prefix(name_prefix(name))).await?.into_iter().rev() {
        match read(parts, &name, generation).await {
            Ok(named) if named.record.dataset == id => return Ok(true),
            // Removed since, as nothing is left of what it stood for.
            Err(error) if error.kind == Kind::NotFound => {}
            Ok(_) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// What every name points to, read anew.
pub(crate) async fn all(parts: &Parts) -> Result<Names, Error> {
    all_but(parts, None).await
}

/// What every name points to. A generation that was read before is not read again: names of deleted
/// datasets stay for ever. But for young live ones, which a store that creates in two steps may have taken
/// from two servers, it never changes, unless a recovery puts it right.
async fn all_but(parts: &Parts, known: Option<&Names>) -> Result<Names, Error> {
    let found = list(parts, &prefix(dl_format::NAMES_PREFIX.to_owned())).await?;
    // In order: the last generation of a name stays.
    let newest: BTreeMap<_, _> = found.into_iter().collect();
    let now = parts.clock.now();
    let is_final = move |named: &Named| {
        let age = now.duration_since(named.record.created.time());
        named.record.state == NameState::Deleted || age.is_ok_and(|age| age > SPENT_AFTER)
    };
    let read = stream::iter(newest).map(|(name, generation)| async move {
        let known = known.and_then(|known| known.of(&name)).filter(|known| is_final(known));
        let named = match known.filter(|known| known.generation == generation) {
            Some(known) => Ok(*known),
            None => read(parts, &name, generation).await,
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
    part_copies(&mut names);
    Ok(names)
}

/// Of names that stand for one dataset no more than one is right, and nothing says which: none of them is
/// taken for read, but for one that says that the dataset is deleted. Others that stand for it are not named,
/// as not everybody may know of them.
fn part_copies(names: &mut Names) {
    let mut stand: HashMap<DatasetId, (u32, bool)> = HashMap::new();
    for (_, named) in &names.read {
        let (count, is_deleted) = stand.entry(named.record.dataset).or_default();
        *count += 1;
        *is_deleted |= named.record.state == NameState::Deleted;
    }
    for (name, named) in std::mem::take(&mut names.read) {
        let (count, is_deleted) = stand.get(&named.record.dataset).copied().unwrap_or_default();
        if count < 2 || named.record.state == NameState::Deleted {
            names.read.push((name, named));
            continue;
        }
        let object = name_key(&name, named.generation);
        let whose = match is_deleted {
            true => "a dataset that another name says is deleted, so it is a copy: remove it",
            false => {
                "the same dataset as another name, so one is a copy of the other: remove that one"
            }
        };
        let why = format!(
            "{object} in the chunk store stands for {whose}; and put back what was there before, or, as \
             long as the metadata has the dataset, run `dlcmd recover dl://{name}`"
        );
        names.unread.push((name.clone(), Error::new(Kind::Corrupt, READ, &name, why)));
    }
    names.unread.sort_by(|(name, _), (other, _)| name.cmp(other));
}

/// Whether a dataset has any object but snapshots; `what` it is called in errors.
pub(crate) async fn has_objects(
    parts: &Parts,
    what: impl Display,
    id: DatasetId,
) -> Result<bool, Error> {
    let objects = prefix(dataset_prefix(id));
    let mut objects = parts.store.list(&objects);
    loop {
        let next = objects.try_next().await;
        let next =
            next.map_err(|error| Error::store("list the objects of dataset", &what, error))?;
        match next {
            Some(object) if parse_snapshot_key(object.key.as_str()).is_some() => {}
            next => return Ok(next.is_some()),
        }
    }
}

/// A deletion of which something may be left.
#[derive(Debug)]
pub(crate) struct Deleted {
    pub(crate) name: DatasetName,
    pub(crate) named: Named,
    /// The generations since the deletion before it, which has those before for itself; and itself
    /// unless it is the one that holds.
    spent: Vec<u32>,
}

/// What there is of deletions.
#[derive(Debug, Default)]
pub(crate) struct Deletions {
    pub(crate) found: Vec<Deleted>,
    /// Names that were used more than once, each with the generation that holds: what they stood for
    /// before is deleted, whether that can be read or not.
    pub(crate) used_again: Vec<(DatasetName, u32)>,
}

/// Which deletions are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Past {
    /// Those that were not tidied up, also of names that were used again. One listing, and a reading
    /// for each name that has several generations: a name that has one is live, or all of its past
    /// is gone.
    Untidied,
    /// Besides, those of names that were not used again, with a reading for each name: who wrote
    /// something and died behind the tidying has left it there.
    All,
}

/// Deletions of which something may be left.
pub(crate) async fn deleted(parts: &Parts, past: Past) -> Result<Deletions, Error> {
    let found = list(parts, &prefix(dl_format::NAMES_PREFIX.to_owned())).await?;
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
        let read = stream::iter(&generations).then(|one| read_patiently(parts, &name, *one));
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
                // It may say that something is deleted that is still there.
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

/// Reads a generation; once more after a pause, and again, while the store fails.
pub(crate) async fn read_patiently(
    parts: &Parts,
    name: &DatasetName,
    generation: u32,
) -> Result<Named, Error> {
    let mut pauses = PAUSES.iter();
    loop {
        match (read(parts, name, generation).await, pauses.next()) {
            (Err(error), Some(pause)) if error.kind.is_retryable() => {
                parts.clock.sleep(*pause).await;
            }
            (read, _) => return read,
        }
    }
}

impl Deleted {
    /// Removes the generations that say nothing any more, once nobody can be at work with them.
    pub(crate) async fn tidy(&self, parts: &Parts) -> Result<(), Error> {
        let age = parts.clock.now().duration_since(self.named.record.created.time());
        if age.is_ok_and(|age| age > SPENT_AFTER) {
            // In order: as long as one is left, the deletion is found again.
            for generation in &self.spent {
                let object = key(name_key(&self.name, *generation));
                let removed = parts.store.delete(&object).await;
                removed.map_err(|error| Error::store("remove a name of", &self.name, error))?;
            }
        }
        Ok(())
    }
}

/// Makes a generation. False when it is taken: somebody else was faster, look again.
pub(crate) async fn create(
    parts: &Parts,
    name: &DatasetName,
    generation: u32,
    record: &NameRecord,
) -> Result<bool, Error> {
    let object = key(name_key(name, generation));
    match parts.store.create(&object, record.encode().into()).await {
        Ok(()) => Ok(true),
        Err(error) if error.kind == dl_store::Kind::Exists => Ok(false),
        Err(error) => Err(Error::store("write the name of dataset", name, error)),
    }
}

/// A generation as it stays: a store that creates in two steps may have taken it from two servers, of
/// which the last one holds.
pub(crate) async fn held(
    parts: &Parts,
    name: &DatasetName,
    generation: u32,
) -> Result<Named, Error> {
    parts.clock.sleep(parts.limits.settle).await;
    read(parts, name, generation).await
}

/// Makes a generation that was found outlast a power cut; whoever made it may have died first.
pub(crate) async fn settle(
    parts: &Parts,
    name: &DatasetName,
    generation: u32,
) -> Result<(), Error> {
    let settled = parts.store.settle(&[key(name_key(name, generation))]).await;
    settled.map_err(|error| Error::store("settle the name of dataset", name, error))
}

/// Names and generations, in order.
async fn list(parts: &Parts, prefix: &Prefix) -> Result<Vec<(DatasetName, u32)>, Error> {
    let objects = parts.store.list_sorted(prefix).await;
    let objects = objects.map_err(|error| Error::store("list the names of", "datasets", error))?;
    let generations = objects.iter().filter_map(|object| parse_name_key(object.key.as_str()));
    Ok(generations.collect())
}

async fn read(parts: &Parts, name: &DatasetName, generation: u32) -> Result<Named, Error> {
    let object = key(name_key(name, generation));
    let bytes = parts.store.read_all(&object).await;
    let bytes = bytes.map_err(|error| Error::store(READ, name, error))?;
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

/// The one of `names` that is nearest to what somebody typed, when it is near at all: at most a
/// third of its letters are others, or one letter where they begin alike, or it goes on where at least
/// three letters were typed. Of several, the one that begins like it for longest.
pub(crate) fn nearest<'a>(
    typed: &DatasetName,
    names: impl Iterator<Item = &'a DatasetName>,
) -> Option<&'a DatasetName> {
    let typed = typed.as_str().to_ascii_lowercase();
    let near = names.filter_map(|name| {
        let letters = name.as_str().to_ascii_lowercase();
        let distance = distance(typed.as_bytes(), letters.as_bytes());
        let begins = typed.bytes().zip(letters.bytes()).take_while(|(a, b)| a == b).count();
        let most = (typed.len().max(letters.len()) / 3).max(usize::from(begins > 0));
        let goes_on = typed.len() >= 3 && letters.starts_with(&typed);
        let is_near = distance <= most || goes_on;
        is_near.then_some((distance, Reverse(begins), name))
    });
    near.min().map(|(_, _, name)| name)
}

/// Letters to change, add, leave out or swap with the next one, none of them twice
/// (Damerau-Levenshtein, restricted).
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut before = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let changed = above[j] + usize::from(x != y);
            let mut least = changed.min(above[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *x == b[j - 1] && a[i - 1] == *y {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
    }
    above.last().copied().unwrap_or(a.len())
}

#[cfg(test)]
mod tests;
