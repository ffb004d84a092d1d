//! Which objects the fast store holds a copy of, and which of them go when it is full.
//!
//! Must hold: a copy is served only while its object is known to exist; the bytes of all copies,
//! those being made and those still to be removed included, never exceed the quota.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use crate::{Key, ObjectInfo, Prefix};

/// A copy that was read within this time stays: a job reads all of its dataset again and again,
/// so that giving up what is read for what was just read would leave nothing to find. What a
/// finished job has read goes when nobody has read it for this long.
pub(super) const KEPT: Duration = Duration::from_secs(15 * 60);

/// Objects on their way or waiting for it; further ones are asked for again when they are read.
const BROUGHT_AT_ONCE: usize = 256;

/// A copy counts as read again only so much later: readers would move it about all the time.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// Where a range is to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// From this copy.
    Fast(Key),
    /// In the fast store, if the slow one still has the object.
    Unproven,
    Slow,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Was there when the store was opened; its object may have been deleted since it was made.
    Unproven,
    Whole,
    Coming,
    /// Coming, and deleted meanwhile.
    Doomed,
    /// Not served any more, and still to be removed.
    Going,
}

#[derive(Debug)]
struct Copy {
    state: State,
    /// Its name in the fast store.
    name: Key,
    size: u64,
    read_at: Duration,
}

#[derive(Debug)]
pub(super) struct Index {
    quota: u64,
    used: u64,
    copies: HashMap<Key, Copy>,
    /// Those that may be given up, the one not read for longest first.
    by_age: BTreeSet<(Duration, Key)>,
    going: BTreeSet<Key>,
    coming: usize,
    /// What lies below these is not given up for others.
    kept: Vec<Prefix>,
}

impl Index {
    pub(super) fn new(quota: u64) -> Self {
        Self {
            quota,
            used: 0,
            copies: HashMap::new(),
            by_age: BTreeSet::new(),
            going: BTreeSet::new(),
            coming: 0,
            kept: Vec::new(),
        }
    }

    /// Gives up nothing for others that lies below these prefixes, and is known to exist.
    pub(super) fn keep(&mut self, prefixes: Vec<Prefix>) {
        self.kept = prefixes;
    }

    fn is_kept(&self, key: &Key) -> bool {
        self.kept.iter().any(|prefix| prefix.contains(key))
    }

    /// Whether a copy is there that can be served.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.copies.get(key).is_some_and(|copy| copy.state == State::Whole)
    }

    /// A copy that an earlier process left, or that is known already.
    pub(super) fn found(&mut self, object: ObjectInfo, name: Key) {
        if self.copies.contains_key(&object.key) {
            return;
        }
        self.used = self.used.saturating_add(object.size);
        let (state, read_at) = (State::Unproven, Duration::ZERO);
        let copy = Copy { state, name, size: object.size, read_at };
        self.by_age.insert((copy.read_at, object.key.clone()));
        self.copies.insert(object.key, copy);
    }

    pub(super) fn place(&mut self, key: &Key, now: Duration) -> Place {
        match self.copies.get_mut(key) {
            Some(copy) if copy.state == State::Whole => {
                if now.saturating_sub(copy.read_at) >= READ_AGAIN {
                    self.by_age.remove(&(copy.read_at, key.clone()));
                    copy.read_at = now;
                    self.by_age.insert((now, key.clone()));
                }
                Place::Fast(copy.name.clone())
            }
            Some(copy) if copy.state == State::Unproven => Place::Unproven,
            _ => Place::Slow,
        }
    }

    /// The slow store has the object of this copy.
    pub(super) fn prove(&mut self, key: &Key) {
        if let Some(copy) = self.copies.get_mut(key)
            && copy.state == State::Unproven
        {
            copy.state = State::Whole;
        }
    }

    /// Whether to bring an object over; it is coming then.
    pub(super) fn begin(&mut self, key: &Key, name: Key) -> bool {
        if self.coming >= BROUGHT_AT_ONCE || self.copies.contains_key(key) {
            return false;
        }
        self.coming += 1;
        let copy = Copy { state: State::Coming, name, size: 0, read_at: Duration::ZERO };
        self.copies.insert(key.clone(), copy);
        true
    }

    /// An object is on its way no more, whether it arrived or not.
    pub(super) fn end(&mut self) {
        self.coming = self.coming.saturating_sub(1);
    }

    /// Makes room for an object that is coming. Gives the copies to remove first; none when it
    /// can't have room, or is not wanted any more.
    pub(super) fn reserve(&mut self, key: &Key, size: u64, now: Duration) -> Option<Vec<Key>> {
        let goal = self.quota.checked_sub(size)?;
        let is_to_keep = self.is_kept(key);
        let size_of = |key: &Key| self.copies.get(key).map_or(0, |copy| copy.size);
        let mut kept = self.used - self.going.iter().map(size_of).sum::<u64>();
        let mut given_up = Vec::new();
        for (read_at, other) in &self.by_age {
            let is_read = *read_at != Duration::ZERO && now.saturating_sub(*read_at) < KEPT;
            if kept <= goal || (is_read && !is_to_keep) {
                break;
            }
            if self.has(other) && self.is_kept(other) {
                continue;
            }
            kept -= size_of(other);
            given_up.push(other.clone());
        }
        if kept > goal {
            return None;
        }
        for other in given_up {
            self.give_up(&other);
        }
        let copy = self.copies.get_mut(key).filter(|copy| copy.state == State::Coming)?;
        copy.size = size;
        self.used += size;
        Some(self.going.iter().cloned().collect())
    }

    /// The copy is there. False when its object was deleted meanwhile: remove it.
    pub(super) fn arrive(&mut self, key: &Key, now: Duration) -> bool {
        let Some(copy) = self.copies.get_mut(key) else { return false };
        copy.read_at = now;
        if copy.state == State::Coming {
            copy.state = State::Whole;
            self.by_age.insert((now, key.clone()));
            return true;
        }
        copy.state = State::Going;
        self.going.insert(key.clone());
        false
    }

    /// The copy does not come. It may be there all the same if it was being written.
    pub(super) fn fail(&mut self, key: &Key, was_written: bool) {
        if !was_written {
            self.removed(key);
        } else if let Some(copy) = self.copies.get_mut(key) {
            copy.state = State::Going;
            self.going.insert(key.clone());
        }
    }

    /// Stops to serve a copy. Whether there is one to remove.
    pub(super) fn give_up(&mut self, key: &Key) -> bool {
        let Some(copy) = self.copies.get_mut(key) else { return false };
        match copy.state {
            State::Coming | State::Doomed => {
                copy.state = State::Doomed;
                false
            }
            State::Unproven | State::Whole | State::Going => {
                self.by_age.remove(&(copy.read_at, key.clone()));
                copy.state = State::Going;
                self.going.insert(key.clone());
                true
            }
        }
    }

    /// The copy is gone from the fast store.
    pub(super) fn removed(&mut self, key: &Key) {
        if let Some(copy) = self.copies.remove(key) {
            self.used -= copy.size;
            self.by_age.remove(&(copy.read_at, key.clone()));
            self.going.remove(key);
        }
    }

    /// Whether objects are on their way.
    #[cfg(test)]
    pub(super) fn is_busy(&self) -> bool {
        self.coming > 0
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }
}
