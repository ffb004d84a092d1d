//! Settings of the C library's allocator for programs with large buffers.
//!
//! Must hold: the settings are made before a second thread runs.

/// Pools of free memory. By default there are eight for each processor, and threads can't use each
/// other's pools: the peak grows with the processors, not with the memory in use. Large buffers do not go
/// through the allocator.
#[cfg(target_env = "gnu")]
const POOLS: libc::c_int = 2;

/// Memory of at least so many bytes comes from the kernel and goes back to the kernel. By default the
/// threshold grows with freed memory, up to 32 MiB: freed buffers of chunks then leave holes between small
/// pieces. Six clients with puts and gets at once took 444 MiB of a server by default, and 223 MiB with the
/// setting.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 1 << 20;

/// Free memory kept at the end of a pool. By default the memory goes back to the kernel with every other
/// freed message, and each page costs a fault when used again: 180,000 faults in a client that read 200,000
/// files of 4 KiB, and 13,000 with the setting.
#[cfg(target_env = "gnu")]
const KEPT: libc::c_int = 16 << 20;

/// Lets all threads share few pools of free memory, for small pieces only.
///
/// For the first line of a program's `main`.
pub fn bound() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "the C library has no safe call for the settings")]
    // SAFETY: mallopt takes two numbers, and the program has a single thread.
    unsafe {
        // A refused setting costs memory and nothing else.
        let _ = libc::mallopt(libc::M_ARENA_MAX, POOLS);
        let _ = libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
        let _ = libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
    }
}
