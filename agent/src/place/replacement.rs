//! The order in which keys leave a cache (HDF5 Cache VOL, replacement policies): chunks in memory, or
//! datasets on disk.
//!
//! Must hold: each key has one place in the order.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::Hash;
use std::str::FromStr;

/// Which kept chunk leaves for a chunk that is read in no order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Eviction {
    /// None: a new chunk stays only until its slot is needed.
    #[default]
    Keep,
    /// The least recently used.
    Lru,
    /// The least frequently used; of equals, the least recently used.
    Lfu,
    /// The first that came.
    Fifo,
}

impl Eviction {
    /// All policies.
    pub const ALL: [Self; 4] = [Self::Keep, Self::Lru, Self::Lfu, Self::Fifo];

    /// The name in settings and reports: `keep`, `lru`, `lfu` or `fifo`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Keep => "keep",
            Self::Lru => "lru",
            Self::Lfu => "lfu",
            Self::Fifo => "fifo",
        }
    }
}

impl fmt::Display for Eviction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name of no policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the policies are keep, lru, lfu and fifo")]
pub struct InvalidEviction;

impl FromStr for Eviction {
    type Err = InvalidEviction;

    fn from_str(text: &str) -> Result<Self, InvalidEviction> {
        Self::ALL.into_iter().find(|one| one.name() == text).ok_or(InvalidEviction)
    }
}

/// The rank of a key: the lowest leaves first.
type Rank = (u64, u64);

/// Keys in the order in which they leave.
#[derive(Debug)]
pub struct Replacement<K> {
    eviction: Eviction,
    order: BTreeSet<(Rank, K)>,
    ranks: HashMap<K, Rank>,
    /// Grows with each key and each use.
    ticks: u64,
}

impl<K: Copy + Eq + Hash + Ord> Replacement<K> {
    /// Without keys.
    pub fn new(eviction: Eviction) -> Self {
        Self { eviction, order: BTreeSet::new(), ranks: HashMap::new(), ticks: 0 }
    }

    /// Adds a key that is not there, with its first use.
    pub fn added(&mut self, key: K) {
        self.ticks += 1;
        let uses = u64::from(self.eviction == Eviction::Lfu);
        self.rank(key, (uses, self.ticks));
    }

    /// Notes uses of a key.
    pub fn used(&mut self, key: K, times: u32) {
        let Some((uses, _)) = self.ranks.get(&key).copied() else { return };
        self.ticks += 1;
        match self.eviction {
            Eviction::Keep | Eviction::Fifo => {}
            Eviction::Lru => self.rank(key, (0, self.ticks)),
            Eviction::Lfu => self.rank(key, (uses.saturating_add(times.into()), self.ticks)),
        }
    }

    /// Removes a key; false if it is not there.
    pub fn removed(&mut self, key: K) -> bool {
        let Some(rank) = self.ranks.remove(&key) else { return false };
        self.order.remove(&(rank, key))
    }

    /// The keys, the first to leave first.
    pub fn victims(&self) -> impl Iterator<Item = K> {
        self.order.iter().map(|(_, key)| *key)
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.ranks.len()
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    fn rank(&mut self, key: K, rank: Rank) {
        if let Some(before) = self.ranks.insert(key, rank) {
            self.order.remove(&(before, key));
        }
        self.order.insert((rank, key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_policy_has_its_victim() {
        for (eviction, leaves) in [
            (Eviction::Keep, [1, 2, 3]),
            (Eviction::Fifo, [1, 2, 3]),
            (Eviction::Lru, [3, 2, 1]),
            (Eviction::Lfu, [3, 1, 2]),
        ] {
            let mut keys = Replacement::new(eviction);
            [1, 2, 3].into_iter().for_each(|key| keys.added(key));
            for (key, times) in [(2, 4), (1, 2)] {
                keys.used(key, times);
            }
            assert_eq!(keys.victims().collect::<Vec<_>>(), leaves, "{eviction}");
            assert!(keys.removed(2) && !keys.removed(2));
            keys.used(2, 1);
            assert_eq!((keys.len(), keys.victims().count()), (2, 2));
        }
    }

    #[test]
    fn each_policy_has_its_name() {
        for eviction in Eviction::ALL {
            assert_eq!(eviction.name().parse(), Ok(eviction));
        }
        assert_eq!("mru".parse::<Eviction>(), Err(InvalidEviction));
    }
}
