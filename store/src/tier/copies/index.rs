//! Which objects have a copy, and which copies go when the quota is full.
//!
//! Must hold: all copies together never exceed the quota, copies that are being written and copies that
//! are still to be removed included. Each copy is removed by one task. The cost of a read does not grow
//! with the number of copies.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound::{Included, Unbounded};
use std::time::Duration;

use crate::{Key, ObjectRange, Prefix};

/// A copy that was read within this time stays. A job reads all of its dataset again and again: with
/// plain LRU, a dataset larger than the quota would find none of its copies.
pub(in crate::tier) const KEPT: Duration = Duration::from_secs(15 * 60);

/// Copies that are being made or wait for memory; further objects are left out.
const PENDING_MAX: usize = 256;

/// Reads of a copy within this time count once: each counted read moves the copy in the order of ages.
const READ_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The copy is being made.
    Pending,
    /// The copy is being made, and was invalidated meanwhile.
    Cancelled,
    /// The copy is served.
    Whole,
    /// The copy is not served any more, and is still to be removed.
    Stale,
    /// A task removes the copy.
    Removing,
}

#[derive(Debug)]
struct Copy {
    state: State,
    /// Name of the copy in its store.
    name: Key,
    size: u64,
    /// Zero for a copy that was never read.
    read_at: Duration,
    /// Made ahead of any read: takes free room only, and is the first to go.
    is_prefetched: bool,
}

#[derive(Debug)]
pub(in crate::tier) struct Index {
    quota: u64,
    used: u64,
    pending: usize,
    copies: HashMap<Key, Copy>,
    /// Whole copies that may be evicted, the least recently read first.
    evictable: BTreeSet<(Duration, Key)>,
    stale: BTreeSet<Key>,
    /// Prefixes without evictions, each with the `/` at the end; none lies below another.
    kept: BTreeMap<String, Prefix>,
}

/// Where ranges are to be read.
#[derive(Debug, Default)]
pub(super) struct Located {
    /// For each range, whether a copy has it.
    pub(super) has_copy: Vec<bool>,
    /// These ranges, of the copies.
    pub(super) ranges: Vec<ObjectRange>,
}

impl Index {
    pub(super) fn new(quota: u64) -> Self {
        Self {
            quota,
            used: 0,
            pending: 0,
            copies: HashMap::new(),
            evictable: BTreeSet::new(),
            stale: BTreeSet::new(),
            kept: BTreeMap::new(),
        }
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Evicts no copy below these prefixes for others, in place of the prefixes of the last call.
    pub(in crate::tier) fn keep(&mut self, prefixes: Vec<Prefix>) {
        let kept = prefixes.into_iter().map(|prefix| (prefix.to_string(), prefix)).collect();
        if self.kept == kept {
            return;
        }
        self.kept = kept;
        let whole = self.copies.iter().filter(|(_, copy)| copy.state == State::Whole);
        let evictable = whole.filter(|(key, _)| !self.is_kept(key));
        self.evictable = evictable.map(|(key, copy)| (copy.read_at, key.clone())).collect();
    }

    fn is_kept(&self, key: &Key) -> bool {
        let before = self.kept.range::<str, _>((Unbounded, Included(key.as_str()))).next_back();
        before.is_some_and(|(_, prefix)| prefix.contains(key))
    }

    /// Whether a copy is served.
    pub(in crate::tier) fn has(&self, key: &Key) -> bool {
        self.copies.get(key).is_some_and(|copy| copy.state == State::Whole)
    }

    /// Whether a copy is served, being made or being removed.
    pub(in crate::tier) fn knows(&self, key: &Key) -> bool {
        self.copies.contains_key(key)
    }

    /// Whether a copy is served that has fewer bytes than its object.
    pub(super) fn is_cut_off(&self, key: &Key, object: u64) -> bool {
        self.copies.get(key).is_some_and(|copy| copy.state == State::Whole && copy.size < object)
    }

    /// Takes in a copy that an earlier process left.
    pub(super) fn found(&mut self, key: Key, name: Key, size: u64) {
        if self.copies.contains_key(&key) {
            return;
        }
        self.used = self.used.saturating_add(size);
        let (state, read_at) = (State::Whole, Duration::ZERO);
        let copy = Copy { state, name, size, read_at, is_prefetched: false };
        if !self.is_kept(&key) {
            self.evictable.insert((read_at, key.clone()));
        }
        self.copies.insert(key, copy);
    }

    /// Where to read ranges, at `now`. A range that begins or ends past its copy has none.
    pub(super) fn locate(&mut self, wanted: &[ObjectRange], now: Duration) -> Located {
        let mut located = Located {
            has_copy: Vec::with_capacity(wanted.len()),
            ranges: Vec::with_capacity(wanted.len()),
        };
        for run in wanted.chunk_by(|one, next| one.key == next.key) {
            let key = run.first().map(|range| &range.key);
            let copy = key.and_then(|key| Some((key, self.copies.get_mut(key)?)));
            let Some((key, copy)) = copy.filter(|(_, copy)| copy.state == State::Whole) else {
                located.has_copy.extend(run.iter().map(|_| false));
                continue;
            };
            for ObjectRange { range, .. } in run {
                let has_copy = range.exact_end().is_some_and(|end| end <= copy.size);
                located.has_copy.push(has_copy);
                if has_copy {
                    located.ranges.push(ObjectRange { key: copy.name.clone(), range: *range });
                }
            }
            if now.saturating_sub(copy.read_at) >= READ_AGAIN {
                let age = (std::mem::replace(&mut copy.read_at, now), key.clone());
                if self.evictable.remove(&age) {
                    self.evictable.insert((now, age.1));
                }
            }
        }
        located
    }

    /// Whether the caller is to make a copy.
    pub(super) fn begin(&mut self, key: &Key, name: Key, is_prefetched: bool) -> bool {
        if self.pending >= PENDING_MAX || self.copies.contains_key(key) {
            return false;
        }
        self.pending += 1;
        let (state, read_at) = (State::Pending, Duration::ZERO);
        self.copies.insert(key.clone(), Copy { state, name, size: 0, read_at, is_prefetched });
        true
    }

    /// Whether there is room for so many bytes without an eviction.
    pub(in crate::tier) fn has_free(&self, size: u64) -> bool {
        self.used.checked_add(size).is_some_and(|used| used <= self.quota)
    }

    /// Makes room for a pending copy. Gives the copies that the caller, and no other task, has to remove
    /// first; `None` when there is no room, or the copy was cancelled.
    pub(super) fn reserve(&mut self, key: &Key, size: u64, now: Duration) -> Option<Vec<Key>> {
        let goal = self.quota.checked_sub(size)?;
        let pending = self.copies.get(key).filter(|copy| copy.state == State::Pending)?;
        let (is_prefetched, is_kept) = (pending.is_prefetched, self.is_kept(key));
        let size_of = |key: &Key| self.copies.get(key).map_or(0, |copy| copy.size);
        // Copies that other tasks remove count until they are gone.
        let mut left = self.used - self.stale.iter().map(size_of).sum::<u64>();
        let mut evicted = Vec::new();
        for (read_at, other) in &self.evictable {
            let is_recent = *read_at != Duration::ZERO && now.saturating_sub(*read_at) < KEPT;
            if left <= goal || is_prefetched || (is_recent && !is_kept) {
                break;
            }
            left -= size_of(other);
            evicted.push(other.clone());
        }
        if left > goal {
            return None;
        }
        for other in &evicted {
            self.invalidate(other);
        }
        let mut claimed: Vec<Key> = self.stale.iter().cloned().collect();
        claimed.retain(|other| self.claim(other));
        self.copies.get_mut(key)?.size = size;
        self.used += size;
        Some(claimed)
    }

    /// A pending copy was written. False when it was cancelled meanwhile, and is to be removed.
    pub(super) fn written(&mut self, key: &Key, now: Duration) -> bool {
        let is_kept = self.is_kept(key);
        match self.copies.get_mut(key) {
            Some(copy) if copy.state == State::Pending => {
                copy.state = State::Whole;
                copy.read_at = if copy.is_prefetched { Duration::ZERO } else { now };
                if !is_kept {
                    self.evictable.insert((copy.read_at, key.clone()));
                }
                self.pending = self.pending.saturating_sub(1);
                true
            }
            _ => {
                self.write_failed(key);
                false
            }
        }
    }

    /// The write of a pending copy failed, and may have left a copy.
    pub(super) fn write_failed(&mut self, key: &Key) {
        self.pending = self.pending.saturating_sub(1);
        self.unclaim(key);
    }

    /// A pending copy is not made.
    pub(super) fn abandon(&mut self, key: &Key) {
        self.pending = self.pending.saturating_sub(1);
        self.removed(key);
    }

    /// Serves a copy no more. True when it was served.
    pub(super) fn invalidate(&mut self, key: &Key) -> bool {
        let Some(copy) = self.copies.get_mut(key) else { return false };
        match copy.state {
            State::Pending | State::Cancelled => copy.state = State::Cancelled,
            State::Whole => {
                copy.state = State::Stale;
                self.evictable.remove(&(copy.read_at, key.clone()));
                self.stale.insert(key.clone());
                return true;
            }
            State::Stale | State::Removing => {}
        }
        false
    }

    /// A copy to remove where the quota is smaller than in an earlier process; the caller removes it.
    pub(super) fn excess(&mut self) -> Option<Key> {
        if self.used <= self.quota {
            return None;
        }
        let oldest = self.evictable.first().map(|(_, key)| key);
        let whole = || self.copies.iter().find(|(_, copy)| copy.state == State::Whole);
        let excess = oldest.or_else(|| Some(whole()?.0))?.clone();
        (self.invalidate(&excess) && self.claim(&excess)).then_some(excess)
    }

    /// Whether the caller, and no other task, is to remove a stale copy.
    pub(super) fn claim(&mut self, key: &Key) -> bool {
        let is_stale = self.stale.remove(key);
        if let Some(copy) = self.copies.get_mut(key).filter(|_| is_stale) {
            copy.state = State::Removing;
        }
        is_stale
    }

    /// A claimed copy could not be removed: a later task tries again.
    pub(super) fn unclaim(&mut self, key: &Key) {
        if let Some(copy) = self.copies.get_mut(key) {
            copy.state = State::Stale;
            self.stale.insert(key.clone());
        }
    }

    /// A claimed copy was removed.
    pub(super) fn removed(&mut self, key: &Key) {
        self.used -= self.copies.remove(key).map_or(0, |copy| copy.size);
    }

    /// Whether copies are being made or removed.
    #[cfg(test)]
    pub(super) fn is_busy(&self) -> bool {
        let is_removing = |copy: &Copy| copy.state == State::Removing;
        self.pending > 0 || self.copies.values().any(is_removing)
    }
}
