//! The times at which stored versions were seen to be replaced by newer versions.
//!
//! Must hold: no version counts as replaced too early. Stamps don't show the time: an object may join the log
//! long after its stamp, and a purge has no stamp. So each server counts from its first sight of another
//! version; a restart begins anew.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dl_format::{DatasetId, Version};
use dl_runtime::locked;

/// The time, on the monotonic clock, at which each version was seen to be replaced.
type Since = HashMap<Version, Duration>;

/// The replaced versions seen by a server. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Replaced {
    seen: Arc<Mutex<HashMap<DatasetId, Since>>>,
}

impl Replaced {
    /// Sets the stored and replaced versions of a dataset; gives their times.
    pub(crate) fn note(
        &self,
        dataset: DatasetId,
        versions: impl Iterator<Item = Version>,
        now: Duration,
    ) -> Since {
        let mut seen = self.seen();
        let known = seen.remove(&dataset).unwrap_or_default();
        let since = |version| (version, known.get(&version).copied().unwrap_or(now));
        let all: Since = versions.map(since).collect();
        if !all.is_empty() {
            seen.insert(dataset, all.clone());
        }
        all
    }

    /// Whether any version of a dataset was seen to be replaced.
    pub(crate) fn is_any(&self, dataset: DatasetId) -> bool {
        self.seen().contains_key(&dataset)
    }

    /// Forgets all other datasets.
    pub(crate) fn retain(&self, datasets: &HashSet<DatasetId>) {
        self.seen().retain(|dataset, _| datasets.contains(dataset));
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<DatasetId, Since>> {
        locked(&self.seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_newest_twice_counts_from_its_last_replacement() {
        let (replaced, dataset) = (Replaced::default(), DatasetId::from_bytes([1; 16]));
        let at = |version: Option<Version>, now| {
            let since = replaced.note(dataset, version.into_iter(), Duration::from_secs(now));
            since.into_values().next().map(|since| since.as_secs())
        };
        let version = Some(Version::default());
        assert_eq!((at(version, 1), at(version, 2)), (Some(1), Some(1)));
        assert_eq!((at(None, 3), at(version, 4)), (None, Some(4)));
        replaced.retain(&HashSet::new());
        assert_eq!(at(version, 5), Some(5));
    }
}
