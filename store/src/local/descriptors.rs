//! Open files, kept for the next read.
//!
//! Must hold: at most `bound` files are open. A descriptor may outlive its object: callers check that the
//! object's name still belongs to the file.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Key;

/// A bounded set of open files with the clock algorithm: a hand goes round, and evicts the first file
/// that was not read since the last round. Like LRU, but without a list to reorder at each read.
#[derive(Debug)]
pub(super) struct Descriptors<F> {
    ring: Mutex<Ring<F>>,
    bound: usize,
}

#[derive(Debug)]
struct Ring<F> {
    slots: Vec<Slot<F>>,
    index: HashMap<Key, usize>,
    hand: usize,
}

#[derive(Debug)]
struct Slot<F> {
    key: Key,
    file: Option<Arc<F>>,
    used: bool,
}

impl<F> Descriptors<F> {
    pub(super) fn new(bound: usize) -> Self {
        let ring = Ring { slots: Vec::new(), index: HashMap::new(), hand: 0 };
        Self { ring: Mutex::new(ring), bound }
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<F>> {
        let mut ring = self.lock();
        let slot = *ring.index.get(key)?;
        let slot = ring.slots.get_mut(slot)?;
        slot.used = true;
        slot.file.clone()
    }

    /// The evicted file is closed without the lock: closing the last descriptor of a removed file frees
    /// its blocks.
    pub(super) fn insert(&self, key: &Key, file: Arc<F>) {
        let mut ring = self.lock();
        let fresh = Slot { key: key.clone(), file: Some(file), used: false };
        let slot = match ring.index.get(key) {
            Some(slot) => *slot,
            None if ring.slots.len() < self.bound => {
                let slot = ring.slots.len();
                ring.slots.push(Slot { key: key.clone(), file: None, used: false });
                slot
            }
            None => ring.victim(),
        };
        let Some(old) = ring.slots.get_mut(slot) else { return };
        let old = std::mem::replace(old, fresh);
        // A key that was removed may have returned in another slot.
        if ring.index.get(&old.key) == Some(&slot) {
            ring.index.remove(&old.key);
        }
        ring.index.insert(key.clone(), slot);
        drop(ring);
        drop(old);
    }

    pub(super) fn remove(&self, key: &Key) {
        let mut ring = self.lock();
        let slot = ring.index.remove(key);
        let file = slot.and_then(|slot| ring.slots.get_mut(slot)).and_then(|slot| {
            slot.used = false;
            slot.file.take()
        });
        drop(ring);
        drop(file);
    }

    pub(super) fn clear(&self) {
        let mut ring = self.lock();
        ring.index.clear();
        let slots = std::mem::take(&mut ring.slots);
        drop(ring);
        drop(slots);
    }

    fn lock(&self) -> MutexGuard<'_, Ring<F>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F> Ring<F> {
    /// The next slot that was not used since the last round. A full round clears all marks, so that the
    /// loop ends.
    fn victim(&mut self) -> usize {
        loop {
            let slot = self.hand;
            self.hand = if slot + 1 < self.slots.len() { slot + 1 } else { 0 };
            match self.slots.get_mut(slot) {
                Some(slot) if slot.used => slot.used = false,
                Some(_) | None => return slot,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::new(format!("k{number}")).unwrap()
    }

    #[test]
    fn files_that_are_read_stay_and_others_make_room() {
        let files = Descriptors::new(3);
        for number in 0..3 {
            files.insert(&key(number), Arc::new(number));
        }
        assert_eq!(files.get(&key(0)), Some(Arc::new(0)));
        files.insert(&key(3), Arc::new(3));
        assert_eq!(files.get(&key(1)), None);
        assert!([0, 2, 3].into_iter().all(|kept| files.get(&key(kept)).is_some()));
    }

    #[test]
    fn never_more_files_are_open_than_the_bound() {
        let files = Descriptors::new(4);
        let all: Vec<Arc<usize>> = (0..100).map(Arc::new).collect();
        for (number, file) in all.iter().enumerate() {
            files.insert(&key(number), Arc::clone(file));
            files.get(&key(number / 2));
            if number % 7 == 0 {
                files.remove(&key(number));
            }
            assert!(all.iter().filter(|file| Arc::strong_count(file) > 1).count() <= 4);
        }
        files.clear();
        assert!(all.iter().all(|file| Arc::strong_count(file) == 1));
    }

    #[test]
    fn a_removed_file_is_closed_and_the_same_key_can_come_back() {
        let files = Descriptors::new(2);
        let file = Arc::new(1);
        files.insert(&key(1), Arc::clone(&file));
        files.insert(&key(1), Arc::new(2));
        assert_eq!(Arc::strong_count(&file), 1);
        files.remove(&key(1));
        assert_eq!(files.get(&key(1)), None);
        files.insert(&key(1), Arc::new(3));
        assert_eq!(files.get(&key(1)), Some(Arc::new(3)));
    }

    #[test]
    fn a_key_that_came_back_is_found_when_the_place_it_had_is_taken() {
        let files = Descriptors::new(3);
        for number in [0, 1, 2] {
            files.insert(&key(number), Arc::new(number));
        }
        files.remove(&key(1));
        files.insert(&key(1), Arc::new(1));
        files.insert(&key(3), Arc::new(3));
        assert_eq!(files.get(&key(1)), Some(Arc::new(1)));
        files.remove(&key(1));
        assert_eq!(files.get(&key(1)), None);
    }
}
