//! Which pages of copies were found whole lately.
//!
//! Must hold: a mark counts for less than [`TRUSTED`] after its page was read, and for no other
//! copy than the one that was read. However many copies there are, all marks take at most
//! [`BYTES_MAX`]; a page that gets none is checked whenever it is read.

use std::ops::Range;
use std::time::Duration;

/// A page that was found whole is not checked again for less than this: an epoch of a job. Checking it
/// again would cost as much as reading it, and whoever reads looks at the checksums of files anyway, and
/// has a copy checked that does not match them.
pub(super) const TRUSTED: Duration = Duration::from_secs(15 * 60);

/// Marks of one such time are dropped together, when the one after the next begins.
const TURN: Duration = Duration::from_secs(TRUSTED.as_secs() / 2);

/// Memory for all marks: enough for some 25,000 copies of 4 MiB that are read within that time.
const BYTES_MAX: usize = 8 << 20;

/// Places that one call looks at for one whose marks have run out.
const LOOKED_AT: usize = 8;

/// Where the marks of a copy are, if it has any.
pub(super) type Slot = usize;

#[derive(Debug, Default)]
pub(super) struct Marks {
    places: Vec<Place>,
    /// The place that was looked at last.
    hand: usize,
    bytes: usize,
}

/// The marks of one copy.
#[derive(Debug)]
struct Place {
    /// The number of the copy, which no other ever has.
    copy: u64,
    turn: u64,
    /// A bit for each page, 64 at a time: those checked in this turn, and in the one before.
    pages: Vec<[u64; 2]>,
}

impl Place {
    fn new(copy: u64, turn: u64, pages: u64) -> Self {
        let words = usize::try_from(pages.div_ceil(64)).unwrap_or(usize::MAX);
        Self { copy, turn, pages: vec![[0; 2]; words] }
    }

    fn bytes(pages: u64) -> usize {
        let marks = pages.div_ceil(64).saturating_mul(size_of::<[u64; 2]>() as u64);
        usize::try_from(marks).unwrap_or(usize::MAX).saturating_add(size_of::<Self>())
    }

    fn size(&self) -> usize {
        Self::bytes(self.pages.len() as u64 * 64)
    }
}

fn turn(now: Duration) -> u64 {
    now.as_secs() / TURN.as_secs()
}

/// The word of a page, and its bit there.
fn bit(page: u64) -> (usize, u64) {
    (usize::try_from(page / 64).unwrap_or(usize::MAX), 1 << (page % 64))
}

impl Marks {
    /// Whether all these pages of a copy were found whole lately.
    pub(super) fn has(&self, slot: Slot, copy: u64, mut pages: Range<u64>, now: Duration) -> bool {
        let place = self.places.get(slot).filter(|place| place.copy == copy);
        let Some(place) = place else { return false };
        let is_before = match turn(now).checked_sub(place.turn) {
            Some(0) => u64::MAX,
            Some(1) => 0,
            _ => return false,
        };
        pages.all(|page| {
            let (word, bit) = bit(page);
            let word = place.pages.get(word);
            word.is_some_and(|[recent, before]| (recent | (before & is_before)) & bit != 0)
        })
    }

    /// These pages of a copy of `count` pages were read at `now`, and found whole. Gives the place
    /// of its marks from now on.
    pub(super) fn set(
        &mut self,
        slot: Slot,
        copy: u64,
        (pages, count): (Range<u64>, u64),
        now: Duration,
    ) -> Slot {
        let turn = turn(now);
        let is_its = self.places.get(slot).is_some_and(|place| place.copy == copy);
        let found = if is_its { Some(slot) } else { self.take(copy, count, turn) };
        let Some(slot) = found else { return slot };
        let Some(place) = self.places.get_mut(slot) else { return slot };
        if place.turn < turn {
            let is_next = place.turn + 1 == turn;
            for [recent, before] in &mut place.pages {
                *before = if is_next { *recent } else { 0 };
                *recent = 0;
            }
            place.turn = turn;
        }
        // What was read in a turn that is over by now is not taken for newer than it is.
        if place.turn == turn {
            for page in pages {
                let (word, bit) = bit(page);
                if let Some([recent, _]) = place.pages.get_mut(word) {
                    *recent |= bit;
                }
            }
        }
        slot
    }

    /// A place for a copy that has none.
    fn take(&mut self, copy: u64, pages: u64, turn: u64) -> Option<Slot> {
        let bytes = Place::bytes(pages);
        for _ in 0..LOOKED_AT.min(self.places.len()) {
            self.hand = if self.hand + 1 < self.places.len() { self.hand + 1 } else { 0 };
            let Some(place) = self.places.get_mut(self.hand) else { break };
            let left = self.bytes - place.size();
            if place.turn + 1 < turn && left + bytes <= BYTES_MAX {
                self.bytes = left + bytes;
                *place = Place::new(copy, turn, pages);
                return Some(self.hand);
            }
        }
        if self.bytes + bytes > BYTES_MAX {
            return None;
        }
        self.bytes += bytes;
        self.places.push(Place::new(copy, turn, pages));
        Some(self.places.len() - 1)
    }

    /// Nothing is known any more of the pages of a copy.
    pub(super) fn forget(&mut self, slot: Slot, copy: u64) {
        if let Some(place) = self.places.get_mut(slot).filter(|place| place.copy == copy) {
            place.pages.fill([0; 2]);
        }
    }

    /// Nothing is known any more of any page.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: u64 = 1024;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_mark_counts_for_its_time_at_most_and_for_its_copy_and_page_alone() {
        let half = TRUSTED.as_secs() / 2;
        for checked_at in 0..=TRUSTED.as_secs() {
            let mut marks = Marks::default();
            let slot = marks.set(0, 7, (62..66, PAGES), seconds(checked_at));
            assert!(marks.has(slot, 7, 62..66, seconds(checked_at + half)), "{checked_at}");
            assert!(!marks.has(slot, 7, 62..66, seconds(checked_at) + TRUSTED), "{checked_at}");
            assert!(!marks.has(slot, 7, 62..67, seconds(checked_at)));
            assert!(!marks.has(slot, 8, 62..66, seconds(checked_at)));
            assert!(!marks.has(slot, 7, PAGES..PAGES + 1, seconds(checked_at)));
            // One of a later turn makes it no younger.
            assert_eq!(marks.set(slot, 7, (1..2, PAGES), seconds(checked_at + half)), slot);
            assert!(!marks.has(slot, 7, 62..66, seconds(checked_at) + TRUSTED), "{checked_at}");
            // Nor does one that comes late.
            marks.set(slot, 7, (3..4, PAGES), seconds(checked_at));
            assert!(!marks.has(slot, 7, 3..4, seconds(checked_at) + TRUSTED), "{checked_at}");
            marks.forget(slot, 8);
            assert!(marks.has(slot, 7, 1..2, seconds(checked_at + half)));
            marks.forget(slot, 7);
            assert!(!marks.has(slot, 7, 1..2, seconds(checked_at + half)));
            marks.set(slot, 7, (1..2, PAGES), seconds(checked_at + half));
            marks.clear();
            assert!(!marks.has(slot, 7, 1..2, seconds(checked_at + half)));
        }
    }

    #[test]
    fn marks_are_bounded_and_those_that_ran_out_make_room() {
        let mut marks = Marks::default();
        let mut copies = 0..;
        let mut fill = |marks: &mut Marks, now| {
            let fresh = copies.by_ref().take(100_000);
            let marked = fresh.filter(|copy| {
                let slot = marks.set(0, *copy, (0..1, PAGES), now);
                marks.has(slot, *copy, 0..1, now)
            });
            marked.count()
        };
        let marked = fill(&mut marks, seconds(0));
        assert!((20_000..30_000).contains(&marked), "{marked}");
        assert_eq!(fill(&mut marks, TRUSTED - seconds(1)), 0);
        assert_eq!(fill(&mut marks, TRUSTED), marked);
        let bytes: usize = marks.places.iter().map(Place::size).sum();
        assert!(bytes == marks.bytes && bytes <= BYTES_MAX);
        let mut small = Marks::default();
        small.set(0, 1, (0..1, u64::MAX / 8), seconds(0));
        assert_eq!(small.places.len(), 0, "one of no size that there is");
    }
}
