//! Memory and threads of this machine.
//!
//! Must hold: no side of a ratio waits for memory that the other side got without a wait. The host of
//! a virtual machine may take free memory back.

use std::hint::black_box;
use std::thread;

use anyhow::{Result, bail};

/// Works on each item in a thread of its own.
pub(crate) fn in_threads<T: Send>(
    items: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> Result<()> + Sync,
) -> Result<()> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> =
            items.into_iter().map(|item| scope.spawn(move || work(item))).collect();
        let mut ended = threads.into_iter().map(|thread| thread.join());
        ended.try_for_each(|ended| ended.unwrap_or_else(|_| bail!("a thread panicked")))
    })
}

/// Uses and frees the memory of a turn of `length` bytes, and half as much again. A virtual machine
/// may give free memory back to its host. The next write there waits for the host, longer than the
/// write takes.
pub(crate) fn take_from_the_host(length: usize) {
    drop(black_box(vec![1_u8; length + length / 2]));
}
