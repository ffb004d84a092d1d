//! Which objects the fast store holds a copy of, and which of them go when it is full.
//!
//! Must hold: a copy of an earlier process is served only once its object was seen, and none after
//! its object was deleted through this layer. No copy is made that would exceed the quota, with all
//! others that are made or still to be removed; each is removed by one task. What a read costs does
//! not grow with the number of copies. What is known of a copy is not taken for known of the next
//! one of the same object.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound::{Included, Unbounded};
use std::time::Duration;

use super::copy::{self, Cut, PAGE};
use super::marks::{Marks, Slot};
use crate::range::Span;
use crate::{ByteRange, Key, ObjectInfo, ObjectRange, Prefix};

/// A copy that was read within this time stays: a job reads all of its dataset again and again,
/// so that giving up what is read for what was just read would leave nothing to find. What a
/// finished job has read goes when nobody has read it for this long.
pub(super) const KEPT: Duration = Duration::from_secs(15 * 60);

/// Objects on their way or waiting for it; further ones are asked for again when they are read.
const BROUGHT_AT_ONCE: usize = 256;

/// A copy counts as read again only so much later: readers would move it about all the time.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// Copies that one call looks at, or moves, at most.
pub(super) const STEPS: usize = 256;

/// Where a range is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// From a copy, as it lies there: its pages were found whole lately.
    Trusted,
    /// From the copy with this number, with what it takes to check it.
    Unchecked {
        number: u64,
        cut: Cut,
    },
    /// In the fast store, if the slow one still has the object.
    Unproven,
    Slow,
}

/// How to read some ranges.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Where each of them is to be read.
    pub(super) places: Vec<Place>,
    /// What to read of copies, in the same order: one range for those that are trusted, two for
    /// those that are not.
    pub(super) near: Vec<ObjectRange>,
    /// When it was made.
    pub(super) now: Duration,
}

impl Plan {
    /// All from the slow store.
    pub(super) fn slow(ranges: usize) -> Self {
        Self { places: vec![Place::Slow; ranges], ..Self::default() }
    }

    fn add(&mut self, copy: &Copy, range: ByteRange, marks: &Marks) {
        let place = copy.place(range, marks, self.now);
        let near = |range| ObjectRange { key: copy.name.clone(), range };
        match place {
            Place::Trusted => self.near.push(near(range)),
            Place::Unchecked { cut, .. } => self.near.extend(cut.to_check().map(near)),
            Place::Unproven | Place::Slow => {}
        }
        self.places.push(place);
    }
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
    /// Somebody removes it.
    Removing,
}

#[derive(Debug)]
struct Copy {
    state: State,
    /// Its name in the fast store.
    name: Key,
    /// Counts all copies there ever were, so that a later one of the same object is another one.
    number: u64,
    size: u64,
    /// Of the object.
    length: u64,
    /// Nothing for one that nobody has read.
    read_at: Duration,
    slot: Slot,
    /// Whether it is only brought because others of its group are read.
    along: bool,
}

impl Copy {
    fn place(&self, range: ByteRange, marks: &Marks, now: Duration) -> Place {
        let Span::Exact { start, end } = range.0 else { return Place::Slow };
        // Past the end: the slow store says so.
        match (self.state, Cut::new(start, end, self.length)) {
            (State::Whole, Some(cut)) if marks.has(self.slot, self.number, cut.pages(), now) => {
                Place::Trusted
            }
            (State::Whole, Some(cut)) => Place::Unchecked { number: self.number, cut },
            (State::Unproven, _) => Place::Unproven,
            _ => Place::Slow,
        }
    }
}

/// When copies were last read.
type Ages = BTreeSet<(Duration, Key)>;

#[derive(Debug)]
pub(super) struct Index {
    quota: u64,
    used: u64,
    copies: HashMap<Key, Copy>,
    /// Those that may be given up, the one not read for longest first.
    by_age: Ages,
    /// Those that are kept and came up when room was made. They are not looked at again.
    aside: Ages,
    /// Those that were kept, on their way back, a few with each call.
    returning: Ages,
    going: BTreeSet<Key>,
    coming: usize,
    last_number: u64,
    marks: Marks,
    /// What lies below these is not given up for others. By their text with its `/`; none lies
    /// below another.
    kept: BTreeMap<String, Prefix>,
}

impl Index {
    pub(super) fn new(quota: u64) -> Self {
        Self {
            quota,
            used: 0,
            copies: HashMap::new(),
            by_age: Ages::new(),
            aside: Ages::new(),
            returning: Ages::new(),
            going: BTreeSet::new(),
            coming: 0,
            last_number: 0,
            marks: Marks::default(),
            kept: BTreeMap::new(),
        }
    }

    /// Gives up nothing for others that lies below these prefixes, and is known to exist.
    pub(super) fn keep(&mut self, prefixes: Vec<Prefix>) {
        let kept = prefixes.into_iter().map(|prefix| (prefix.to_string(), prefix));
        let kept = kept.collect();
        if self.kept == kept {
            return;
        }
        self.kept = kept;
        let aside = std::mem::take(&mut self.aside);
        if self.returning.is_empty() {
            self.returning = aside;
        } else {
            self.returning.extend(aside);
        }
    }

    fn is_kept(&self, key: &Key) -> bool {
        let before = self.kept.range::<str, _>((Unbounded, Included(key.as_str()))).next_back();
        before.is_some_and(|(_, prefix)| prefix.contains(key))
    }

    /// Some of those that were kept may be given up again.
    fn bring_back(&mut self) {
        for _ in 0..STEPS {
            let Some(copy) = self.returning.pop_first() else { break };
            self.by_age.insert(copy);
        }
    }

    /// Where a copy stands by its age.
    fn ages(&mut self, age: &(Duration, Key)) -> &mut Ages {
        if self.aside.contains(age) {
            &mut self.aside
        } else if self.returning.contains(age) {
            &mut self.returning
        } else {
            &mut self.by_age
        }
    }

    fn forget_age(&mut self, read_at: Duration, key: &Key) {
        let age = (read_at, key.clone());
        self.ages(&age).remove(&age);
    }

    /// Whether a copy is there that can be served.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.copies.get(key).is_some_and(|copy| copy.state == State::Whole)
    }

    /// Whether there is a copy, on its way here or out as well.
    pub(super) fn knows(&self, key: &Key) -> bool {
        self.copies.contains_key(key)
    }

    /// A copy that an earlier process left, or that is known already. False when it is none: no
    /// copy has so many bytes.
    pub(super) fn found(&mut self, object: ObjectInfo, name: Key) -> bool {
        let Some(length) = copy::object_length(object.size) else { return false };
        if self.copies.contains_key(&object.key) {
            return true;
        }
        self.used = self.used.saturating_add(object.size);
        let copy = Copy { size: object.size, length, ..self.numbered(name, State::Unproven) };
        self.by_age.insert((copy.read_at, object.key.clone()));
        self.copies.insert(object.key, copy);
        true
    }

    fn numbered(&mut self, name: Key, state: State) -> Copy {
        self.last_number += 1;
        let (number, read_at) = (self.last_number, Duration::ZERO);
        Copy { state, name, number, size: 0, length: 0, read_at, slot: 0, along: false }
    }

    /// Where to read ranges, at `now`.
    pub(super) fn plan(&mut self, wanted: &[ObjectRange], now: Duration) -> Plan {
        let (places, near) = (Vec::with_capacity(wanted.len()), Vec::with_capacity(wanted.len()));
        let mut plan = Plan { places, near, now };
        for ranges in wanted.chunk_by(|one, next| one.key == next.key) {
            let Some(key) = ranges.first().map(|range| &range.key) else { continue };
            let Some(copy) = self.copies.get_mut(key) else {
                plan.places.extend(ranges.iter().map(|_| Place::Slow));
                continue;
            };
            for range in ranges {
                plan.add(copy, range.range, &self.marks);
            }
            let is_read = copy.state == State::Whole;
            if is_read && now.saturating_sub(copy.read_at) >= READ_AGAIN {
                let before = (std::mem::replace(&mut copy.read_at, now), key.clone());
                let ages = self.ages(&before);
                ages.remove(&before);
                ages.insert((now, before.1));
            }
        }
        plan
    }

    /// These bytes of the copy with this number were read at `now`, and found whole.
    pub(super) fn is_whole(&mut self, key: &Key, number: u64, cut: Cut, now: Duration) {
        if let Some(copy) = self.copies.get_mut(key)
            && copy.number == number
        {
            let pages = (cut.pages(), copy.length.div_ceil(PAGE));
            copy.slot = self.marks.set(copy.slot, number, pages, now);
        }
    }

    /// What was checked of this copy is to be checked again.
    pub(super) fn doubt(&mut self, key: &Key) {
        if let Some(copy) = self.copies.get(key) {
            self.marks.forget(copy.slot, copy.number);
        }
    }

    /// Whatever was checked is to be checked again.
    pub(super) fn distrust(&mut self) {
        self.marks.clear();
    }

    /// Whether a copy ends before its object, of which bytes up to `end` were read.
    pub(super) fn is_cut_off(&self, key: &Key, end: u64) -> bool {
        let copy = self.copies.get(key);
        copy.is_some_and(|copy| copy.state == State::Whole && copy.length < end)
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
        if let Some(copy) = self.copies.get_mut(key) {
            // Somebody asked for it by now.
            copy.along = false;
            return false;
        }
        if self.coming >= BROUGHT_AT_ONCE {
            return false;
        }
        self.coming += 1;
        let copy = self.numbered(name, State::Coming);
        self.copies.insert(key.clone(), copy);
        true
    }

    /// The same for one that nobody asked for: no copy is given up for it, and it is the first to go.
    pub(super) fn begin_along(&mut self, key: &Key, name: Key) -> bool {
        let begins = self.begin(key, name);
        if let Some(copy) = self.copies.get_mut(key).filter(|_| begins) {
            copy.along = true;
        }
        begins
    }

    /// An object is on its way no more, whether it arrived or not.
    pub(super) fn end(&mut self) {
        self.coming = self.coming.saturating_sub(1);
    }

    /// Whether there is room for so many bytes without giving up any copy.
    pub(super) fn has_free(&self, size: u64) -> bool {
        self.used.checked_add(size).is_some_and(|used| used <= self.quota)
    }

    /// Makes room for an object that is coming. Gives the copies that the caller has to remove
    /// first, and nobody else does; none when it can't have room now, or is not wanted any more.
    pub(super) fn reserve(&mut self, key: &Key, size: u64, now: Duration) -> Option<Vec<Key>> {
        let goal = self.quota.checked_sub(size)?;
        let length = copy::object_length(size)?;
        self.bring_back();
        let is_to_keep = self.is_kept(key);
        let size_of = |key: &Key| self.copies.get(key).map_or(0, |copy| copy.size);
        // What others remove is there until they have done it.
        let mut left = self.used - self.going.iter().map(size_of).sum::<u64>();
        if left > goal && self.copies.get(key).is_some_and(|copy| copy.along) {
            return None;
        }
        let (mut given_up, mut aside) = (Vec::new(), Vec::new());
        for (read_at, other) in self.by_age.iter().take(STEPS) {
            let is_read = *read_at != Duration::ZERO && now.saturating_sub(*read_at) < KEPT;
            if left <= goal || (is_read && !is_to_keep) {
                break;
            }
            if self.has(other) && self.is_kept(other) {
                aside.push((*read_at, other.clone()));
                continue;
            }
            left -= size_of(other);
            given_up.push(other.clone());
        }
        for copy in aside {
            self.by_age.remove(&copy);
            self.aside.insert(copy);
        }
        if left > goal {
            return None;
        }
        self.copies.get(key).filter(|copy| copy.state == State::Coming)?;
        for other in given_up {
            self.give_up(&other);
        }
        let mut claimed: Vec<Key> = self.going.iter().cloned().collect();
        claimed.retain(|key| self.claim(key));
        if let Some(copy) = self.copies.get_mut(key) {
            copy.size = size;
            copy.length = length;
            self.used += size;
        }
        Some(claimed)
    }

    /// The copy is there. False when its object was deleted meanwhile: remove it.
    pub(super) fn arrive(&mut self, key: &Key, now: Duration) -> bool {
        let Some(copy) = self.copies.get_mut(key) else { return false };
        copy.read_at = if copy.along { Duration::ZERO } else { now };
        if copy.state == State::Coming {
            copy.state = State::Whole;
            self.by_age.insert((copy.read_at, key.clone()));
            return true;
        }
        copy.state = State::Going;
        self.going.insert(key.clone());
        false
    }

    /// The copy does not come. It may be there all the same if it was being written.
    pub(super) fn fail(&mut self, key: &Key, was_written: bool) {
        let Some(copy) = self.copies.get_mut(key) else { return };
        if was_written {
            copy.state = State::Going;
            self.going.insert(key.clone());
        } else {
            self.used -= copy.size;
            self.copies.remove(key);
        }
    }

    /// Stops to serve a copy. True when it was served, or might have been.
    pub(super) fn give_up(&mut self, key: &Key) -> bool {
        let Some(copy) = self.copies.get_mut(key) else { return false };
        match copy.state {
            State::Coming | State::Doomed => {
                copy.state = State::Doomed;
                false
            }
            State::Unproven | State::Whole => {
                copy.state = State::Going;
                let read_at = copy.read_at;
                self.forget_age(read_at, key);
                self.going.insert(key.clone());
                true
            }
            State::Going | State::Removing => false,
        }
    }

    /// A copy beyond the quota, which was larger when it was made; the caller removes it.
    pub(super) fn beyond(&mut self) -> Option<Key> {
        let (_, oldest) = self.by_age.first().filter(|_| self.used > self.quota)?;
        let oldest = oldest.clone();
        (self.give_up(&oldest) && self.claim(&oldest)).then_some(oldest)
    }

    /// Whether the caller is to remove a copy; nobody else does then.
    pub(super) fn claim(&mut self, key: &Key) -> bool {
        match self.copies.get_mut(key) {
            Some(copy) if copy.state == State::Going => {
                copy.state = State::Removing;
                self.going.remove(key);
                true
            }
            _ => false,
        }
    }

    /// A copy that was claimed is still there.
    pub(super) fn stays(&mut self, key: &Key) {
        if let Some(copy) = self.copies.get_mut(key)
            && copy.state == State::Removing
        {
            copy.state = State::Going;
            self.going.insert(key.clone());
        }
    }

    /// A copy that was claimed is gone from the fast store.
    pub(super) fn removed(&mut self, key: &Key) {
        if let Some(copy) = self.copies.get(key)
            && copy.state == State::Removing
        {
            self.used -= copy.size;
            self.copies.remove(key);
        }
    }

    /// Whether copies are on their way, here or out.
    #[cfg(test)]
    pub(super) fn is_busy(&self) -> bool {
        let is_removing = |copy: &Copy| copy.state == State::Removing;
        self.coming > 0 || self.copies.values().any(is_removing)
    }

    /// Copies that a call that makes room may look at.
    #[cfg(test)]
    pub(super) fn candidates(&self) -> usize {
        self.by_age.len()
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }
}
