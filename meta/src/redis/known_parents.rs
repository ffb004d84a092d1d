//! The parents of files whose rows this process wrote a short time ago, with the rows of all folders above.
//!
//! Must hold: the list only saves questions. An append writes the rows of parents together with the rows of
//! its files, so removals by other processes do no harm.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use dl_format::Entry;
use dl_runtime::locked;

use super::keys::Keys;

/// Most folders that are remembered.
const MAX: usize = 1 << 16;
/// How long folders are remembered: other processes may remove them.
const HOLDS: Duration = Duration::from_secs(60);

/// Hashes of (dataset, folder).
#[derive(Debug, Default)]
pub(super) struct KnownParents {
    hasher: RandomState,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    folders: HashSet<u64>,
    began: Duration,
}

impl KnownParents {
    /// The parents of files whose rows this process did not write lately.
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
        if now.saturating_sub(known.began) > HOLDS || known.folders.len() > MAX {
            *known = Known { folders: HashSet::new(), began: now };
        }
        wanted.retain(|folder| !known.folders.contains(folder));
        wanted
    }

    pub(super) fn learn(&self, folders: HashSet<u64>) {
        self.known().folders.extend(folders);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        locked(&self.known)
    }
}

#[cfg(test)]
mod tests {
    use dl_format::DatasetId;

    use super::super::keys::Epoch;
    use super::*;
    use crate::conformance::history::Maker;

    #[test]
    fn parents_are_known_for_a_while_and_in_one_epoch() {
        let dataset = DatasetId::from_bytes([1; 16]);
        let keys = |epoch| Keys { dataset, epoch: Epoch::new(epoch) };
        let mut maker = Maker::new(dataset, 1);
        let [first, second] = [[&b"a/b/1"[..], b"2"], [b"a/b/3", b"a/c/4"]].map(|paths| {
            maker.chunk(paths.map(|path| (path, 1))).header().entries().collect::<Vec<_>>()
        });
        let (folders, now) = (KnownParents::default(), Duration::from_secs(100));
        let unknown = folders.unknown(keys(1), &first, now);
        assert_eq!(unknown.len(), 2);
        assert_eq!(folders.unknown(keys(1), &first, now).len(), 2, "nothing was written yet");
        folders.learn(unknown);
        assert_eq!(folders.unknown(keys(1), &first, now + HOLDS).len(), 0);
        assert_eq!(folders.unknown(keys(1), &second, now).len(), 1);
        assert_eq!(folders.unknown(keys(2), &first, now).len(), 2);
        assert_eq!(folders.unknown(keys(1), &first, now + 2 * HOLDS).len(), 2);
    }
}
