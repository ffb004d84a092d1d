//! Memory that processes share by a descriptor.
//!
//! Must hold: an access outside of a map fails. The agent alone writes to slots and tables, whose seals
//! refuse every later writable map; a slot is only read under a pin (see `layout`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

/// Bytes of a line of the processor's cache.
#[cfg(target_arch = "x86_64")]
const LINE_BYTES: usize = 64;

/// Shared memory of a fixed length, mapped into this process.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    start: NonNull<u8>,
    length: usize,
    is_writable: bool,
}

/// Who may write to new memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Its maker alone.
    Maker,
    /// Every process that has the descriptor.
    All,
}

impl SharedMemory {
    /// New memory full of zeros, mapped for writing, and the descriptor for other processes.
    ///
    /// # Errors
    /// When the kernel has no such memory to give, or forbids it.
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

    /// Maps memory that another process made.
    ///
    /// # Errors
    /// When the memory is shorter than `length`, or could become so, or can't be mapped.
    pub(crate) fn map(file: impl AsFd, length: usize, is_writable: bool) -> io::Result<Self> {
        let there = usize::try_from(fstat(&file)?.st_size).unwrap_or_default();
        if there < length || !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            let why = "the memory is shorter than it should be, or not sealed";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let read = ProtFlags::READ;
        Self::map_as(file, length, if is_writable { read | ProtFlags::WRITE } else { read })
    }

    fn map_as(file: impl AsFd, length: usize, access: ProtFlags) -> io::Result<Self> {
        #[expect(unsafe_code, reason = "there is no safe way to map memory")]
        // SAFETY: the kernel chooses the place, so nothing that is in use is replaced.
        let start =
            unsafe { mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, length, is_writable: access.contains(ProtFlags::WRITE) })
    }

    /// Asks the kernel for huge pages, which it may refuse.
    pub(crate) fn ask_for_huge_pages(&self) {
        #[expect(unsafe_code, reason = "there is no safe way to advise on memory")]
        // SAFETY: the whole map, which lives as long as this value; the advice changes no byte.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.length, Advice::LinuxHugepage) };
    }

    /// Has the kernel give all pages of a range at once: much cheaper than one by one at the first write.
    pub(super) fn populate(&self, offset: usize, length: usize) {
        let fits = offset.checked_add(length).is_some_and(|end| end <= self.length);
        if !fits || !self.is_writable {
            return;
        }
        #[expect(unsafe_code, reason = "there is no safe way to advise on memory")]
        // SAFETY: in the map; the advice changes no byte. A kernel that knows it not gives pages later.
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
        // SAFETY: in the map and aligned (see `at`), valid for any bytes. Processes only access it by
        // such words; without write access this process only loads.
        Some(unsafe { &*at })
    }

    /// The same of 4 bytes.
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

    /// The bytes at an offset; none where they leave the map. The caller holds a pin on the slot that
    /// they lie in for as long as it uses them.
    #[inline]
    pub(super) fn bytes(&self, offset: usize, length: usize) -> Option<&[u8]> {
        let end = offset.checked_add(length)?;
        if end > self.length {
            return None;
        }
        #[expect(unsafe_code, reason = "mapped memory has no other face")]
        // SAFETY: in the map, which lives as long as this value. Nobody writes to a pinned slot.
        Some(unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset), length) })
    }

    /// Has the processor bring some lines from an offset on, which are read soon, while it goes on.
    #[inline]
    pub(super) fn prefetch(&self, offset: usize, lines: usize) {
        #[cfg(target_arch = "x86_64")]
        for line in 0..lines {
            let at = self.start.as_ptr().wrapping_add(offset + line * LINE_BYTES);
            #[expect(unsafe_code, reason = "there is no safe way to say what is read soon")]
            // SAFETY: it reads nothing: any address will do.
            unsafe {
                use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
                _mm_prefetch::<_MM_HINT_T0>(at.cast_const().cast());
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (offset, lines);
    }

    /// Writes bytes at an offset; false where they leave the map, or the map is for reading. Nobody
    /// else accesses these bytes meanwhile: they belong to a slot without a word and without a pin.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> bool {
        let fits = offset.checked_add(bytes.len()).is_some_and(|end| end <= self.length);
        if !fits || !self.is_writable {
            return false;
        }
        #[expect(unsafe_code, reason = "mapped memory has no other face")]
        // SAFETY: in the map, which is writable; `bytes` is memory of this process, so they don't
        // overlap. No reference to these bytes exists (see above).
        unsafe {
            let to = self.start.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
        }
        true
    }

    /// Hands bytes at an offset to `write`, as to a socket that is read; none where they leave the map, or
    /// the map is for reading. Nobody else accesses these bytes meanwhile, as with [`write`](Self::write).
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
        // SAFETY: in the map, which is writable and full of valid bytes from its beginning. No other
        // reference to these bytes exists (see above), and this one ends with the call.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().add(offset), length) };
        Some(write(bytes))
    }

    /// The bytes that this process, the only writer, has written.
    pub(crate) fn written(&self, offset: usize, length: usize) -> Option<&[u8]> {
        self.bytes(offset, length).filter(|_| self.is_writable)
    }
}

#[expect(unsafe_code, reason = "a pointer says nothing of threads")]
// SAFETY: the map belongs to this value alone; its words are atomic, and its bytes follow the pins.
unsafe impl Send for SharedMemory {}

#[expect(unsafe_code, reason = "a pointer says nothing of threads")]
// SAFETY: as for `Send`.
unsafe impl Sync for SharedMemory {}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "what was mapped is unmapped")]
        // SAFETY: it is what was mapped, once, and no reference into it outlives this value.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok());
    }
}
