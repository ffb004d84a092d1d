//! The folders whose rows on the way to them this process has written: those of all folders above and
//! of their own.
//!
//! Must hold: it only saves questions. Who goes by it writes the same rows again with those of the
//! files, so that nothing depends on what others removed since.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dl_format::Entry;

use super::keys::Keys;

/// Ways that are remembered.
const MAX: usize = 1 << 16;
/// How long, so that those which others removed are written first again.
const HOLDS: Duration = Duration::from_secs(60);

/// Hashes of datasets and folders.
#[derive(Debug, Default)]
pub(super) struct Ways {
    hasher: RandomState,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    ways: HashSet<u64>,
    began: Duration,
}

impl Ways {
    /// The folders of files to which the way is not known.
    pub(super) fn unknown(&self, keys: Keys, files: &[Entry], now: Duration) -> HashSet<u64> {
        let (mut wanted, mut last) = (HashSet::new(), None);
        for entry in files {
            let folder = entry.path.parent();
            if last.as_ref() != Some(&folder) {
                wanted.insert(self.hasher.hash_one((keys, folder.as_bytes())));
                last = Some(folder);
            }
        }
        let mut known = self.known();
        if now.saturating_sub(known.began) > HOLDS || known.ways.len() > MAX {
            *known = Known { ways: HashSet::new(), began: now };
        }
        wanted.retain(|way| !known.ways.contains(way));
        wanted
    }

    pub(super) fn learn(&self, ways: HashSet<u64>) {
        self.known().ways.extend(ways);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use dl_format::DatasetId;

    use super::super::keys::Epoch;
    use super::*;
    use crate::conformance::history::Maker;

    #[test]
    fn a_way_is_known_for_a_while_to_the_life_of_the_dataset_that_has_it() {
        let dataset = DatasetId::from_bytes([1; 16]);
        let keys = |epoch| Keys { dataset, epoch: Epoch::new(epoch) };
        let mut maker = Maker::new(dataset, 1);
        let [first, second] = [[&b"a/b/1"[..], b"2"], [b"a/b/3", b"a/c/4"]].map(|paths| {
            maker.chunk(paths.map(|path| (path, 1))).header().entries().collect::<Vec<_>>()
        });
        let (ways, now) = (Ways::default(), Duration::from_secs(100));
        let unknown = ways.unknown(keys(1), &first, now);
        assert_eq!(unknown.len(), 2);
        assert_eq!(ways.unknown(keys(1), &first, now).len(), 2, "nothing was written yet");
        ways.learn(unknown);
        assert_eq!(ways.unknown(keys(1), &first, now + HOLDS).len(), 0);
        assert_eq!(ways.unknown(keys(1), &second, now).len(), 1);
        assert_eq!(ways.unknown(keys(2), &first, now).len(), 2);
        assert_eq!(ways.unknown(keys(1), &first, now + 2 * HOLDS).len(), 2);
    }
}
