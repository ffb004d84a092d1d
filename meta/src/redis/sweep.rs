//! Removes the keys of dropped datasets, in a background task.
//!
//! Must hold: no key of an epoch in a root is removed. The note of a drop stays until a sweep long after the
//! drop found nothing, so late writes are removed, too. Any server sweeps for any other server.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::{Duration, UNIX_EPOCH};

use dl_format::DatasetId;
use dl_runtime::Clock;
use redis::Value;

use super::Shared;
use super::address::Node;
use super::command::{Ask, bytes, list, pairs, strings};
use super::failure::Failure;
use super::keys::{self, Epoch, Keys};
use super::scripts::{REPLACE, ROOM};

/// How long after a drop writes may come: two minutes, by clocks up to half an hour apart.
const LATE: Duration = Duration::from_secs(32 * 60);
/// How often to look for notes of other servers.
const PAUSE: Duration = Duration::from_secs(300);
/// Keys of a step of a scan.
const STEP: usize = 1_000;

/// Sweeps at once, on each wake-up and after each pause, until the store is gone.
pub(super) async fn run(shared: Weak<Shared>, clock: Arc<dyn Clock>) {
    while let Some(strong) = shared.upgrade() {
        if let Err(failure) = strong.sweep().await {
            tracing::debug!(why = %failure, "could not remove what dropped datasets left");
        }
        let wake = Arc::clone(&strong.sweep_now);
        drop(strong);
        tokio::select! {
            () = wake.notified() => {}
            () = clock.sleep(PAUSE) => {}
        }
    }
}

impl Shared {
    /// Notes keys to remove, also when memory is full. The next sweep is early enough: mostly, no key is
    /// left.
    pub(super) async fn to_sweep(&self, left: Left) -> Result<(), Failure> {
        let ask = Ask::script(&ROOM, &keys::dropped(), &[]).arg("HSET");
        self.router.ask_one(ask.arg(left.to_string()).arg(self.seconds())).await?;
        Ok(())
    }

    fn seconds(&self) -> u64 {
        self.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    /// Removes the keys of the notes.
    pub(super) async fn sweep(&self) -> Result<(), Failure> {
        let dropped = pairs(self.router.ask_one(Ask::to(&keys::dropped(), "HGETALL")).await?)?;
        let (mut ended, mut doubted, mut words) = (HashSet::new(), HashMap::new(), Vec::new());
        for (field, since) in dropped {
            match Left::read(&field) {
                Some(Left::Epoch(keys)) => {
                    let epoch = self.epochs(&[keys.dataset]).await?;
                    if epoch.get(&keys.dataset) == Some(&keys.epoch) {
                        continue;
                    }
                    ended.insert(keys);
                }
                Some(Left::Others(dataset)) => {
                    doubted.entry(dataset).or_insert(false);
                }
                Some(Left::All(dataset)) => {
                    doubted.insert(dataset, true);
                }
                None => continue,
            }
            words.push((field, since));
        }
        if words.is_empty() {
            return Ok(());
        }
        let (changes, now) = (self.router.changes(), self.seconds());
        for node in self.router.primaries() {
            self.sweep_node(&node, &ended, &doubted).await?;
        }
        for (field, since) in words {
            let left = str::from_utf8(&since).ok().and_then(|since| since.parse::<u64>().ok());
            let is_late = left.is_none_or(|since| now.saturating_sub(since) > LATE.as_secs());
            if is_late && self.router.changes() == changes {
                // Unless the note was written again.
                let done = Ask::script(&REPLACE, &keys::dropped(), &[]).arg(field);
                self.router.ask_one(done.arg(since).arg("")).await?;
            }
        }
        Ok(())
    }

    /// Removes keys of a node in a single pass: keys of `ended` epochs, and keys of `doubted` datasets
    /// outside the root's epoch. The flag tells whether to remove all keys without a root.
    async fn sweep_node(
        &self,
        node: &Node,
        ended: &HashSet<Keys>,
        doubted: &HashMap<DatasetId, bool>,
    ) -> Result<(), Failure> {
        let (mut cursor, mut known) = (b"0".to_vec(), HashMap::new());
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(keys::OF_DATASETS).arg("COUNT").arg(STEP);
            let mut answer = list(self.router.ask_node(node, scan).await?, Ok)?.into_iter();
            let next = bytes(answer.next().unwrap_or(Value::Nil))?;
            let found = strings(answer.next().unwrap_or(Value::Nil))?.into_iter();
            let found: Vec<_> = found.filter_map(keys::read).collect();
            let is_odd = |keys: &Keys| {
                doubted.contains_key(&keys.dataset) && known.get(&keys.dataset) != Some(&keys.epoch)
            };
            let odd = found.iter().map(|(_, keys)| keys).filter(|keys| is_odd(keys));
            let odd: BTreeSet<DatasetId> = odd.map(|keys| keys.dataset).collect();
            // After the keys: a root has its epoch before the dataset has other keys.
            let odd: Vec<DatasetId> = odd.into_iter().collect();
            known.retain(|dataset, _| !odd.contains(dataset));
            known.extend(self.epochs(&odd).await?);
            let is_over = |keys: &Keys| match known.get(&keys.dataset) {
                _ if ended.contains(keys) => true,
                Some(live) => doubted.contains_key(&keys.dataset) && *live != keys.epoch,
                None => doubted.get(&keys.dataset) == Some(&true),
            };
            let found = found.into_iter().filter(|(_, keys)| is_over(keys));
            let unlink = found.map(|(key, _)| Ask::to(&key, "UNLINK"));
            self.router.ask(unlink.collect()).await?;
            cursor = next.ok_or_else(Failure::unexpected)?;
            if cursor == b"0" {
                return Ok(());
            }
        }
    }

    async fn epochs(&self, datasets: &[DatasetId]) -> Result<HashMap<DatasetId, Epoch>, Failure> {
        let ask = |dataset: &DatasetId| Ask::to(&keys::root(*dataset), "HGET").arg("epoch");
        let answers = self.router.ask(datasets.iter().map(ask).collect()).await?;
        let mut epochs = HashMap::new();
        for (dataset, answer) in datasets.iter().zip(answers) {
            let epoch = bytes(answer)?.as_deref().and_then(Epoch::parse);
            epochs.extend(epoch.map(|epoch| (*dataset, epoch)));
        }
        Ok(epochs)
    }
}

/// A note of keys to remove.
#[derive(Debug, Clone, Copy)]
pub(super) enum Left {
    /// A single epoch.
    Epoch(Keys),
    /// All epochs except the root's, once there is a root.
    Others(DatasetId),
    /// All epochs except the root's, if there is a root.
    All(DatasetId),
}

impl Left {
    fn read(field: &[u8]) -> Option<Self> {
        let (dataset, epoch) = str::from_utf8(field).ok()?.split_once(':')?;
        let dataset: DatasetId = dataset.parse().ok()?;
        match epoch {
            "" => Some(Self::Others(dataset)),
            "*" => Some(Self::All(dataset)),
            epoch => Some(Self::Epoch(Keys { dataset, epoch: Epoch::parse(epoch.as_bytes())? })),
        }
    }
}

/// The field of the hash of notes.
impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Epoch(Keys { dataset, epoch }) => write!(f, "{dataset}:{epoch}"),
            Self::Others(dataset) => write!(f, "{dataset}:"),
            Self::All(dataset) => write!(f, "{dataset}:*"),
        }
    }
}
