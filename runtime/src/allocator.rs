//! The C library's allocator, held to what programs that move large pieces of memory need.
//!
//! Must hold: it is set up before a second thread runs.

/// Pools of free memory. By default there are eight for each processor, and what one thread has
/// freed into its pool doesn't help the others: the peak then grows with the processors and
/// not with what is in use. Large buffers are used again without going through the allocator.
#[cfg(target_env = "gnu")]
const POOLS: libc::c_int = 2;

/// From this size on memory comes from the kernel and goes back to it. By default that size grows
/// with what is freed, up to 32 MiB: buffers of chunks then lie among small pieces that live on,
/// and leave holes that nothing fits into. Six clients that put and then got at once took 444 MiB
/// of a server so, and 223 MiB with this.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 1 << 20;

/// So much free memory at the end of a pool is kept. By default it goes back to the kernel with
/// every other message that is freed, and each page of it costs a fault when it is taken again:
/// 180,000 of them in a client that got 200,000 files of 4 KiB, and 13,000 with this.
#[cfg(target_env = "gnu")]
const KEPT: libc::c_int = 16 << 20;

/// Lets all threads share few pools of free memory, for small pieces only.
///
/// For the first line of a program's `main`.
pub fn bound() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "the C library has no safe way to say this")]
    // SAFETY: mallopt takes two numbers and is called while this is the only thread.
    unsafe {
        // Refused, it stays as it was, which costs memory and nothing else.
        let _ = libc::mallopt(libc::M_ARENA_MAX, POOLS);
        let _ = libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        let _ = libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
    }
}
