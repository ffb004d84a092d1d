//! Memory shared between processes by a descriptor.
//!
//! Must hold: an access outside of a map fails. Only the agent writes to slots and tables, whose
//! seals refuse later writable maps. A slot is only read under a pin (see `layout`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Shared memory of a fixed length, mapped into the process.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    start: NonNull<u8>,
    length: usize,
    is_writable: bool,
}

/// The processes with write access to new memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Only the process that made the memory.
    Maker,
    /// Every process with the descriptor.
    All,
}

impl SharedMemory {
    /// New memory full of zeros, mapped for writing, with the descriptor for other processes.
    ///
    /// # Errors
    /// Errors of the kernel, for example without enough memory.
    pub(crate) fn create(name: &str, length: usize, access: Access) -> io::Result<(Self, OwnedFd)> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, length as u64)?;
        let memory = Self::map_as(&file, length, ProtFlags::READ | ProtFlags::WRITE)?;
        let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(
            &file,
            match access {
                Access::Maker => sealed | SealFlags::FUTURE_WRITE,
                Access::All => sealed,
            },
        )?;
        Ok((memory, file))
    }

    /// Maps memory of another process.
    ///
    /// # Errors
    /// For memory shorter than `length`, or without the seal against shrinking, and for failed
    /// maps.
    pub(crate) fn map(file: impl AsFd, length: usize, is_writable: bool) -> io::Result<Self> {
        let there = usize::try_from(fstat(&file)?.st_size).unwrap_or_default();
        if there < length || !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            let why = "the memory is too short or not sealed";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let read = ProtFlags::READ;
        Self::map_as(file, length, if is_writable { read | ProtFlags::WRITE } else { read })
    }

    fn map_as(file: impl AsFd, length: usize, access: ProtFlags) -> io::Result<Self> {
        #[expect(unsafe_code, reason = "there is no safe way to map memory")]
        // SAFETY: the kernel chooses a free place, so the map replaces nothing.
        let start =
            unsafe { mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, length, is_writable: access.contains(ProtFlags::WRITE) })
    }

    /// Asks the kernel for huge pages, without a guarantee.
    pub(crate) fn ask_for_huge_pages(&self) {
        #[expect(unsafe_code, reason = "there is no safe way to advise on memory")]
        // SAFETY: the advice covers the whole map of the value, and changes no byte.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.length, Advice::LinuxHugepage) };
    }

    /// Populates all pages of a range at once, much cheaper than page by page at the first write.
    pub(super) fn populate(&self, offset: usize, length: usize) {
        let fits = offset.checked_add(length).is_some_and(|end| end <= self.length);
        if !fits || !self.is_writable {
            return;
        }
        #[expect(unsafe_code, reason = "there is no safe way to advise on memory")]
        // SAFETY: the range is in the map, and the advice changes no byte. Old kernels ignore the advice.
        let _ = unsafe {
            let start = self.start.as_ptr().add(offset);
            madvise(start.cast(), length, Advice::LinuxPopulateWrite)
        };
    }

    /// The word of 8 bytes at an offset in bytes; none outside of the map.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let at = self.at::<AtomicU64>(offset)?;
        #[expect(unsafe_code, reason = "mapped memory has no other face")]
        // SAFETY: the word is in the map and aligned (see `at`), and valid for any bytes. Processes only
        // access the memory by such words; without write access the process only loads.
        Some(unsafe { &*at })
    }

    /// The word of 4 bytes at an offset in bytes; none outside of the map.
    #[inline]
    pub(crate) fn half(&self, offset: usize) -> Option<&AtomicU32> {
        let at = self.at::<AtomicU32>(offset)?;
        #[expect(unsafe_code, reason = "mapped memory has no other face")]
        // SAFETY: as in `word`.
        Some(unsafe { &*at })
    }

    #[inline]
    fn at<T>(&self, offset: usize) -> Option<*const T> {
        let end = offset.checked_add(size_of::<T>())?;
        if end > self.length || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // The map begins at a page, so an aligned offset is an aligned address.
        Some(self.start.as_ptr().wrapping_add(offset).cast_const().cast())
    }

    /// The bytes at an offset; none outside of the map. During the use of the bytes, the caller
    /// holds a pin on their slot.
    #[inline]
    pub(super) fn bytes(&self, offset: usize, length: usize) -> Option<&[u8]> {
        let end = offset.checked_add(length)?;
        if end > self.length {
            return None;
        }
        #[expect(unsafe_code, reason = "mapped memory has no other face")]
        // SAFETY: the range is in the map of the value, and no process writes to a pinned slot.
        Some(unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), length) })
    }

    /// Prefetches cache lines from an offset on.
    #[inline]
    pub(super) fn prefetch(&self, offset: usize, lines: usize) {
        #[cfg(target_arch = "x86_64")]
        for line in 0..lines {
            let at = self.start.as_ptr().wrapping_add(offset + line * LINE_BYTES);
            #[expect(unsafe_code, reason = "there is no safe way to prefetch")]
            // SAFETY: a prefetch reads nothing, so any address will do.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(at.cast_const().cast());
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (offset, lines);
    }

    /// Writes bytes at an offset; false outside of the map, or for a read-only map. No other access
    /// happens meanwhile, for the slot of the bytes has neither word nor pin.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> bool {
        let fits = offset.checked_add(bytes.len()).is_some_and(|end| end <= self.length);
        if !fits || !self.is_writable {
            return false;
        }
        #[expect(unsafe_code, reason = "mapped memory has no other face")]
        // SAFETY: the range is in the map, which is writable. `bytes` is memory of the process, so the two
        // don't overlap, and no reference to the range exists (see above).
        unsafe {
            let to = self.start.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        true
    }

    /// Passes bytes at an offset to `write`, for example to read from a socket; none outside of the
    /// map, or for a read-only map. No other access happens meanwhile, as with
    /// [`write`](Self::write).
    pub(crate) fn write_with<T>(
        &self,
        offset: usize,
        length: usize,
        write: impl FnOnce(&mut [u8]) -> T,
    ) -> Option<T> {
        let fits = offset.checked_add(length).is_some_and(|end| end <= self.length);
        if !fits || !self.is_writable {
            return None;
        }
        #[expect(unsafe_code, reason = "mapped memory has no other face")]
        // SAFETY: the range is in the map, which is writable and initialized. The bytes have no other
        // reference (see above), and the new reference ends with the call.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset), length) };
        Some(write(bytes))
    }

    /// The bytes written by the process, the only writer.
    pub(crate) fn written(&self, offset: usize, length: usize) -> Option<&[u8]> {
        self.bytes(offset, length).filter(|_| self.is_writable)
    }
}

#[expect(unsafe_code, reason = "a pointer says nothing of threads")]
// SAFETY: the map belongs to the value alone; its words are atomic, and its bytes follow the pins.
unsafe impl Send for SharedMemory {}

#[expect(unsafe_code, reason = "a pointer says nothing of threads")]
// SAFETY: as for `Send`.
unsafe impl Sync for SharedMemory {}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "unmapping is unsafe")]
        // SAFETY: the memory was mapped by `map_as`, and no reference outlives the value.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}
