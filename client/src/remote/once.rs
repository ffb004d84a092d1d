//! What was told already: another try after a broken connection tells it again.
//!
//! Must hold: what was told is never told again; only hashes are kept, so that memory does not grow
//! with how long things are.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, RandomState};

/// Remembers the hash of each thing, 8 bytes however long it is.
#[derive(Debug, Default)]
pub(crate) struct Once {
    hasher: RandomState,
    told: HashSet<u64>,
}

impl Once {
    /// Whether it is told for the first time; from now on it was.
    pub(crate) fn is_new(&mut self, what: impl Hash) -> bool {
        self.told.insert(self.hasher.hash_one(what))
    }
}
