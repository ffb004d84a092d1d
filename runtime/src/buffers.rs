//! Memory that is used again and again: fresh memory costs more than what is done in it.
//!
//! Must hold: no more is kept than the bound; what is lent comes back when nobody holds it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Memory that waits to be used again, at most some pieces of it.
#[derive(Debug)]
pub struct Buffers {
    idle: Mutex<Vec<Vec<u8>>>,
    most: usize,
}

/// Lent as bytes; comes back when nobody holds them.
struct Lent {
    buffer: Vec<u8>,
    home: Arc<Buffers>,
}

impl Buffers {
    /// Keeps up to `most` pieces.
    pub fn new(most: usize) -> Self {
        Self { idle: Mutex::default(), most }
    }

    /// Memory of any length and content; none when none waits.
    pub fn take(&self) -> Vec<u8> {
        self.idle().pop().unwrap_or_default()
    }

    /// Hands out `buffer` from `start` on; it comes back when the last slice of it is gone.
    pub fn lend(self: &Arc<Self>, buffer: Vec<u8>, start: usize) -> Bytes {
        let length = buffer.len();
        let bytes = Bytes::from_owner(Lent { buffer, home: Arc::clone(self) });
        bytes.slice(start.min(length)..)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut idle = self.home.idle();
        if idle.len() < self.home.most {
            idle.push(std::mem::take(&mut self.buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_when_the_last_slice_is_gone() {
        let buffers = Arc::new(Buffers::new(1));
        let bytes = buffers.lend(vec![7; 1000], 10);
        let slice = bytes.slice(5..9);
        drop(bytes);
        assert_eq!((&slice[..], buffers.take().capacity()), (&[7; 4][..], 0));
        drop(slice);
        assert!(buffers.take().capacity() >= 1000);
    }

    #[test]
    fn no_more_memory_is_kept_than_can_be_used() {
        let buffers = Arc::new(Buffers::new(1));
        let lent: Vec<_> = (0..9).map(|_| buffers.lend(vec![0; 8], 0)).collect();
        drop(lent);
        assert_eq!(buffers.idle().len(), 1);
    }
}
