//! Memory of a virtual machine, whose host may take free memory back.
//!
//! Must hold: no side of a ratio waits for memory that the other side got without a wait.

use std::hint::black_box;

/// Uses and frees the memory of a turn of `length` bytes, and half as much again. A virtual machine
/// may give free memory back to its host. The next write there waits for the host, longer than the
/// write takes.
pub(crate) fn take_from_the_host(length: usize) {
    drop(black_box(vec![1_u8; length + length / 2]));
}
