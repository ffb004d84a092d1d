//! Open files, kept for the next read.
//!
//! Must hold: never more than the bound. A descriptor here may outlive its object; whoever
//! takes one checks that the object's name still is that of its file.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::Key;

/// A bounded set of open files. When it is full, a hand goes round and takes the place of the
/// first that nobody has read since it last came by (the clock algorithm): as good as least
/// recently used here, with no list to reorder on each read.
#[derive(Debug)]
pub(super) struct Descriptors<F> {
    ring: Mutex<Ring<F>>,
    bound: usize,
}

#[derive(Debug)]
struct Ring<F> {
    places: Vec<Place<F>>,
    index: HashMap<Key, usize>,
    hand: usize,
}

#[derive(Debug)]
struct Place<F> {
    key: Key,
    file: Option<Arc<F>>,
    used: bool,
}

impl<F> Descriptors<F> {
    pub(super) fn new(bound: usize) -> Self {
        let ring = Ring { places: Vec::new(), index: HashMap::new(), hand: 0 };
        Self { ring: Mutex::new(ring), bound }
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<F>> {
        let mut ring = self.lock();
        let place = *ring.index.get(key)?;
        let place = ring.places.get_mut(place)?;
        place.used = true;
        place.file.clone()
    }

    /// Files leave their places after the lock is released, as closing the last descriptor of a
    /// removed file frees its blocks.
    pub(super) fn insert(&self, key: &Key, file: Arc<F>) {
        let mut ring = self.lock();
        let fresh = Place { key: key.clone(), file: Some(file), used: false };
        let place = match ring.index.get(key) {
            Some(place) => *place,
            None if ring.places.len() < self.bound => {
                let place = ring.places.len();
                ring.places.push(Place { key: key.clone(), file: None, used: false });
                place
            }
            None => ring.victim(),
        };
        let Some(old) = ring.places.get_mut(place) else { return };
        let old = std::mem::replace(old, fresh);
        // One whose file was removed may have come back in another place.
        if ring.index.get(&old.key) == Some(&place) {
            ring.index.remove(&old.key);
        }
        ring.index.insert(key.clone(), place);
        drop(ring);
        drop(old);
    }

    pub(super) fn remove(&self, key: &Key) {
        let mut ring = self.lock();
        let place = ring.index.remove(key);
        let file = place.and_then(|place| ring.places.get_mut(place)).and_then(|place| {
            place.used = false;
            place.file.take()
        });
        drop(ring);
        drop(file);
    }

    pub(super) fn clear(&self) {
        let mut ring = self.lock();
        ring.index.clear();
        let places = std::mem::take(&mut ring.places);
        drop(ring);
        drop(places);
    }

    fn lock(&self) -> MutexGuard<'_, Ring<F>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<F> Ring<F> {
    /// The next place that was not used since the hand last passed; a full round clears all
    /// marks, so there is one.
    fn victim(&mut self) -> usize {
        loop {
            let place = self.hand;
            self.hand = if place + 1 < self.places.len() { place + 1 } else { 0 };
            match self.places.get_mut(place) {
                Some(place) if place.used => place.used = false,
                Some(_) | None => return place,
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
    fn what_is_read_stays_and_what_is_not_makes_room() {
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
