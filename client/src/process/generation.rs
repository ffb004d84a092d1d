//! The number of the current process in its line of forks, in a page of memory that the kernel empties
//! in every child.
//!
//! Must hold: within one process the number never changes; a child's number differs from the numbers
//! of all its ancestors. No lock is taken, so that a fork at any moment leaves the child a page to use.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Bytes of the mapping; the kernel rounds them up to a page.
const LENGTH: usize = size_of::<AtomicU64>();

/// The word that holds this process's number, 0 until the process asks; null until the first process
/// of the line asks.
static WORD: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

/// The last number of this line. A child begins with its parent's copy, which is at least as large as
/// the number of each ancestor.
static LAST: AtomicU64 = AtomicU64::new(0);

/// Whether the kernel refused such a page; the process id is the number then.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

/// The number of the current process, never 0.
#[inline]
pub(super) fn current() -> u64 {
    let word = WORD.load(Ordering::Acquire);
    let found = match word.is_null() {
        true => 0,
        false => number_in(word).load(Ordering::Relaxed),
    };
    if found == 0 { begin() } else { found }
}

/// The first question of a process, or any question where the kernel refuses the page.
#[cold]
fn begin() -> u64 {
    let Some(word) = word() else { return u64::from(std::process::id()) };
    let next = LAST.fetch_add(1, Ordering::Relaxed) + 1;
    // Among concurrent first calls, a single thread decides.
    match word.compare_exchange(0, next, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => next,
        Err(found) => found,
    }
}

/// The word; the first caller maps its page.
fn word() -> Option<&'static AtomicU64> {
    let found = WORD.load(Ordering::Acquire);
    if !found.is_null() {
        return Some(number_in(found));
    }
    if IS_REFUSED.load(Ordering::Relaxed) {
        return None;
    }
    let Ok(mapped) = map() else {
        IS_REFUSED.store(true, Ordering::Relaxed);
        return None;
    };
    let null = std::ptr::null_mut();
    match WORD.compare_exchange(null, mapped.as_ptr(), Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(number_in(mapped.as_ptr())),
        Err(found) => {
            unmap(mapped);
            Some(number_in(found))
        }
    }
}

/// The word at an address from [`WORD`].
#[inline]
fn number_in(word: *mut AtomicU64) -> &'static AtomicU64 {
    #[expect(unsafe_code, reason = "mapped memory has no other face")]
    // SAFETY: `WORD` only holds the start of a page made by `map`, which stays mapped. Its bytes are 0
    // or were written through the type, and any bytes are an `AtomicU64`.
    unsafe {
        &*word
    }
}

/// A page of zeros; each child finds zeros again.
fn map() -> rustix::io::Result<NonNull<AtomicU64>> {
    let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    #[expect(unsafe_code, reason = "there is no safe way to map memory")]
    // SAFETY: the kernel chooses a free place, so the map replaces nothing.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), LENGTH, access, flags) }?;
    let start = NonNull::new(start.cast::<AtomicU64>()).ok_or(rustix::io::Errno::NOMEM)?;
    #[expect(unsafe_code, reason = "there is no safe way to advise on memory")]
    // SAFETY: the page was mapped just now, and holds no data for a child to miss.
    let advised = unsafe { madvise(start.as_ptr().cast(), LENGTH, Advice::LinuxWipeOnFork) };
    match advised {
        Ok(()) => Ok(start),
        Err(why) => {
            unmap(start);
            Err(why)
        }
    }
}

/// Gives back a page unknown to other threads.
fn unmap(page: NonNull<AtomicU64>) {
    #[expect(unsafe_code, reason = "unmapping is unsafe")]
    // SAFETY: `map` made the page; `WORD` never held its address, and no reference to its word
    // exists.
    let unmapped = unsafe { munmap(page.as_ptr().cast(), LENGTH) };
    debug_assert!(unmapped.is_ok());
}
