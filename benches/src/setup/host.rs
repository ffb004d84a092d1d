//! Memory of a virtual machine, which its host may have taken back.
//!
//! Must hold: no side of a ratio waits for memory that the side before it did not have to wait for.

use std::hint::black_box;

/// Uses as much memory as a turn with so many bytes fills, and half as much again, and frees it. A
/// virtual machine may give free memory back to its host. Its next write there waits for the host, longer
/// than the write takes.
pub(crate) fn take_from_the_host(length: usize) {
    drop(black_box(vec![1_u8; length + length / 2]));
}
