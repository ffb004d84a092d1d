//! The C library's allocator, held to what this program needs.
//!
//! Must hold: it is set up before a second thread runs.

/// Pools of free memory. By default there are eight for each processor, and what one thread has
/// freed into its pool doesn't help the others: the peak then grows with the processors and
/// not with what is in use. Large buffers are used again without going through the allocator.
const POOLS: libc::c_int = 2;

/// From this size on memory comes from the kernel and goes back to it. By default that size grows
/// with what is freed, up to 32 MiB: buffers of chunks then lie among small pieces that live on,
/// and leave holes that nothing fits into. Six clients that put and then got at once took 444 MiB
/// so, and 223 MiB with this.
const LARGE: libc::c_int = 1 << 20;

/// Lets all threads share few pools of free memory, for small pieces only.
pub(crate) fn bound() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "the C library has no safe way to say this")]
    // SAFETY: mallopt takes two numbers and is called while this is the only thread.
    unsafe {
        // Refused, it stays as it was, which costs memory and nothing else.
        let _ = libc::mallopt(libc::M_ARENA_MAX, POOLS);
        let _ = libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
    }
}
