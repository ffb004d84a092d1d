//! The folders whose rows on the way to them this process has written: those of all folders above and
//! of their own.
//!
//! Must hold: it only saves questions. Who goes by it writes the same rows again with those of the
//! files, so that nothing depends on what others removed since.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use dl_format::Committed;

use super::keys::Keys;

/// Ways that are remembered.
const MAX: usize = 1 << 16;
/// How long, so that those which others removed are written first again.
const HOLDS: Duration = Duration::from_secs(60);

/// Hashes of datasets and folders.
#[derive(Debug, Default)]
pub(super) struct Ways {
    known: HashSet<u64>,
    hasher: RandomState,
    began: Duration,
}

impl Ways {
    /// The folders of an object's files to which the way is not known.
    pub(super) fn unknown(
        &mut self,
        keys: Keys,
        object: &Committed,
        now: Duration,
    ) -> HashSet<u64> {
        if now.saturating_sub(self.began) > HOLDS || self.known.len() > MAX {
            self.known.clear();
            self.began = now;
        }
        let (mut unknown, mut last) = (HashSet::new(), Vec::new());
        for entry in object.header().entries() {
            let path = entry.path.as_bytes();
            let end = path.iter().rposition(|byte| *byte == b'/').unwrap_or_default();
            let folder = path.get(..end).unwrap_or_default();
            if folder == last.as_slice() {
                continue;
            }
            let way = self.hasher.hash_one((keys, folder));
            if !self.known.contains(&way) {
                unknown.insert(way);
            }
            last.clear();
            last.extend_from_slice(folder);
        }
        unknown
    }

    pub(super) fn learn(&mut self, ways: HashSet<u64>) {
        self.known.extend(ways);
    }
}
