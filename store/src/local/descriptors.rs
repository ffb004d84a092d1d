//! Open files, kept for the next read.
//!
//! Must hold: at most `bound` files are open. A descriptor may outlive its object: callers check that the
//! object's name still belongs to the file.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use dl_runtime::locked;

use crate::Key;

/// A bounded set of open files. A full set is emptied: no order of reads is kept, and a file that is read
/// again is opened again.
#[derive(Debug)]
pub(super) struct Descriptors<F> {
    files: Mutex<HashMap<Key, Arc<F>>>,
    bound: usize,
}

impl<F> Descriptors<F> {
    pub(super) fn new(bound: usize) -> Self {
        Self { files: Mutex::default(), bound }
    }

    pub(super) fn get(&self, key: &Key) -> Option<Arc<F>> {
        self.lock().get(key).cloned()
    }

    /// Files are closed without the lock: closing the last descriptor of a removed file frees its blocks.
    pub(super) fn insert(&self, key: &Key, file: Arc<F>) {
        let mut files = self.lock();
        let is_full = files.len() >= self.bound && !files.contains_key(key);
        let all = if is_full { std::mem::take(&mut *files) } else { HashMap::new() };
        let old = files.insert(key.clone(), file);
        drop(files);
        drop((all, old));
    }

    pub(super) fn remove(&self, key: &Key) {
        let file = self.lock().remove(key);
        drop(file);
    }

    pub(super) fn clear(&self) {
        let files = std::mem::take(&mut *self.lock());
        drop(files);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<F>>> {
        locked(&self.files)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> Key {
        Key::new(format!("k{number}")).unwrap()
    }

    #[test]
    fn never_more_files_are_open_than_the_bound() {
        let files = Descriptors::new(4);
        let all: Vec<Arc<usize>> = (0..100).map(Arc::new).collect();
        for (number, file) in all.iter().enumerate() {
            files.insert(&key(number), Arc::clone(file));
            assert_eq!(files.get(&key(number)), Some(Arc::clone(file)));
            if number % 7 == 0 {
                files.remove(&key(number));
                assert_eq!(files.get(&key(number)), None);
            }
            assert!(all.iter().filter(|file| Arc::strong_count(file) > 1).count() <= 4);
        }
        files.clear();
        assert!(all.iter().all(|file| Arc::strong_count(file) == 1));
    }
}
