//! Large buffers that are used again: the first write to fresh memory costs more than the copying, and an
//! allocator gives freed memory out as fresh memory.
//!
//! Must hold: idle and lent memory together never exceed the memory that was lent at some moment.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;

use crate::locked;

/// Idle buffers.
#[derive(Default)]
pub struct Buffers {
    idle: Mutex<Vec<Vec<u8>>>,
}

/// A buffer lent as bytes, which comes back after the last slice.
struct Lent {
    buffer: Vec<u8>,
    pool: Arc<Buffers>,
}

impl Buffers {
    /// A buffer with any content, with room for at least `least` bytes and for less than twice as many.
    /// Without an idle buffer of the size, as many bytes of other sizes are freed.
    pub fn take(&self, least: usize) -> Vec<u8> {
        let mut passed_over = Vec::new();
        {
            let mut idle = self.idle();
            let fits = |buffer: &Vec<u8>| {
                let capacity = buffer.capacity();
                capacity >= least && capacity / 2 < least
            };
            // The last buffer in is the likeliest to be in a processor's cache.
            if let Some(index) = idle.iter().rposition(fits) {
                return idle.swap_remove(index);
            }
            let mut freed = 0;
            while freed < least
                && let Some(buffer) = idle.pop()
            {
                freed += buffer.capacity();
                passed_over.push(buffer);
            }
        }
        drop(passed_over);
        Vec::with_capacity(least)
    }

    /// Takes memory back.
    pub fn give_back(&self, buffer: Vec<u8>) {
        self.idle().push(buffer);
    }

    /// Lends `buffer` from `start` on; the buffer comes back after the last slice.
    pub fn lend(self: &Arc<Self>, buffer: Vec<u8>, start: usize) -> Bytes {
        let length = buffer.len();
        let bytes = Bytes::from_owner(Lent { buffer, pool: Arc::clone(self) });
        bytes.slice(start.min(length)..)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        locked(&self.idle)
    }
}

impl fmt::Debug for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").field("idle", &self.idle().len()).finish()
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_when_the_last_slice_is_gone() {
        let buffers = Arc::new(Buffers::default());
        let bytes = buffers.lend(vec![7; 1000], 10);
        let slice = bytes.slice(5..9);
        drop(bytes);
        assert_eq!((&slice[..], buffers.idle().len()), (&[7; 4][..], 0));
        drop(slice);
        assert_eq!(buffers.take(900), vec![7; 1000]);
    }

    #[test]
    fn buffers_of_another_size_make_room() {
        let buffers = Buffers::default();
        for capacity in [100, 100, 100, 4000] {
            buffers.give_back(Vec::with_capacity(capacity));
        }
        assert_eq!(buffers.take(200).capacity(), 200);
        let left: Vec<_> = buffers.idle().iter().map(Vec::capacity).collect();
        assert_eq!(left, [100, 100, 100], "the large one went, not all");
        assert_eq!(buffers.take(250).capacity(), 250);
        assert!(buffers.idle().is_empty());
    }
}
