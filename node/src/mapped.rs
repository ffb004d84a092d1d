//! A file mapped into memory, shared with other processes.
//!
//! Must hold: a mapped file is either a file of the cache, named after its last byte was written,
//! or a sealed file in memory. So no process writes to a mapped file or shortens it. Removal of the
//! file does no harm.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use bytes::Bytes;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

/// Bytes of a huge page on common processors.
pub const HUGE_PAGE: usize = 2 << 20;

/// Bytes of a snapshot: mapped from a file, or in memory of the process alone.
#[derive(Debug)]
pub enum Mapped {
    /// Of a file.
    File(Mapping),
    /// For a snapshot without a file.
    Memory(Bytes),
}

impl AsRef<[u8]> for Mapped {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::File(mapping) => mapping.as_ref(),
            Self::Memory(bytes) => bytes,
        }
    }
}

/// Makes the processor prefetch the first of these bytes without waiting.
#[inline]
pub fn fetch(bytes: &[u8]) {
    prefetch(bytes.as_ptr());
}

/// Makes the processor prefetch the cache line at an address, which may be any.
#[inline]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "there is no safe way to prefetch")]
    // SAFETY: a prefetch reads nothing, so any address will do.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Advice for the kernel that changes no byte. Kernels that don't know an advice ignore the call.
#[derive(Debug, Clone, Copy)]
pub enum Advice {
    /// Use huge pages at first touches, on a machine that permits huge pages to programs that ask.
    HugePages = libc::MADV_HUGEPAGE as isize,
    /// Bring all pages into memory at once.
    Populate = libc::MADV_POPULATE_WRITE as isize,
    /// Move huge pages of the range that have a byte in memory into huge pages of the machine. Needs
    /// Linux 6.1, and memory that no file system but tmpfs holds.
    Collapse = 25,
}

/// Gives the kernel an advice on memory that begins at a page.
pub fn advise(start: *const u8, length: usize, advice: Advice) {
    // Memory without the advice is good enough.
    let _ = try_advise(start, length, advice);
}

/// The same, with the error of a kernel that refuses.
pub(crate) fn try_advise(start: *const u8, length: usize, advice: Advice) -> io::Result<()> {
    #[expect(unsafe_code, reason = "there is no safe way to advise on memory")]
    // SAFETY: no advice changes a byte, so any memory will do.
    let done = unsafe { libc::madvise(start.cast_mut().cast(), length, advice as libc::c_int) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A range of mapped memory that begins at a huge page's boundary, valid also after its file loses
/// its name.
#[derive(Debug)]
pub(crate) struct RawMap {
    pub start: NonNull<u8>,
    pub length: usize,
    /// The address space around the range.
    _reserved: Reserved,
}

/// Address space without memory. Its drop also unmaps the maps placed inside.
#[derive(Debug)]
struct Reserved {
    start: NonNull<u8>,
    length: usize,
}

impl Reserved {
    fn new(length: usize) -> io::Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        #[expect(unsafe_code, reason = "there is no safe way to reserve address space")]
        // SAFETY: the kernel chooses a free place, so the map replaces nothing.
        let start =
            unsafe { mmap_anonymous(std::ptr::null_mut(), length, ProtFlags::empty(), flags) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, length })
    }
}

impl RawMap {
    /// Maps the beginning of a file or of memory.
    pub(crate) fn of(file: impl AsFd, length: usize, access: ProtFlags) -> io::Result<Self> {
        let room = length.checked_add(HUGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        let reserved = Reserved::new(room)?;
        let address = reserved.start.addr().get();
        let start = reserved.start.as_ptr().wrapping_add(address.wrapping_neg() % HUGE_PAGE);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        #[expect(unsafe_code, reason = "there is no safe way to map memory")]
        // SAFETY: `length` bytes from `start` on are reserved: the boundary lies in the first huge
        // page of the reserved range. So the map replaces only address space of `reserved`.
        let start = unsafe { mmap(start.cast(), length, access, flags, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, length, _reserved: reserved })
    }
}

/// A mapped file.
#[derive(Debug)]
pub struct Mapping(RawMap);

impl Mapping {
    /// Maps the whole of a file, which is not empty.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn of(file: &File) -> io::Result<Self> {
        let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        Ok(Self(RawMap::of(file, length, ProtFlags::READ)?))
    }
}

impl AsRef<[u8]> for Mapping {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        #[expect(unsafe_code, reason = "mapped memory has no other face")]
        // SAFETY: `length` bytes from `start` on are mapped for reading until the drop, and no
        // process writes to the file (see the module).
        unsafe {
            std::slice::from_raw_parts(self.0.start.as_ptr(), self.0.length)
        }
    }
}

#[expect(unsafe_code, reason = "a pointer says nothing of threads")]
// SAFETY: the map belongs to the value alone. Its users read under the rules of their types.
unsafe impl Send for RawMap {}

#[expect(unsafe_code, reason = "a pointer says nothing of threads")]
// SAFETY: as for `Send`.
unsafe impl Sync for RawMap {}

impl Drop for Reserved {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "unmapping is unsafe")]
        // SAFETY: the range was mapped by `new`, and no slice of a map inside outlives the value.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_keeps_its_bytes_after_its_file_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n >> 3) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let mapping = Mapping::of(&File::open(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(mapping.as_ref() == bytes);
        std::fs::write(&path, []).unwrap();
        assert!(Mapping::of(&File::open(&path).unwrap()).is_err(), "an empty file");
    }
}
