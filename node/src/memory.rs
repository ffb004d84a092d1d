//! Memory shared between processes by a descriptor.
//!
//! Must hold: an access outside of a map fails. Only the agent writes to slots and tables, whose
//! seals refuse later writable maps. A slot is only read under a pin (see `layout`).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fs::{
    MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, fstat, ftruncate, memfd_create,
};
use rustix::mm::ProtFlags;

use super::copying::copy_to_new;
use super::mapped::{Advice, HUGE_PAGE, RawMap, advise, prefetch, try_advise};

const LINE_BYTES: usize = 64;

/// Bytes of a usual page.
const PAGE: usize = 4 << 10;

/// Shared memory of a fixed length, mapped into the process.
#[derive(Debug)]
pub struct SharedMemory {
    map: RawMap,
    is_writable: bool,
}

/// The processes with write access to new memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Only the process that made the memory.
    Maker,
    /// Every process with the descriptor.
    All,
}

impl SharedMemory {
    /// New memory full of zeros, mapped for writing, with the descriptor for other processes.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn create(name: &str, length: usize, access: Access) -> io::Result<(Self, OwnedFd)> {
        let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let file = file.map_err(|why| {
            let why = io::Error::from(why);
            io::Error::new(why.kind(), format!("make shared memory with memfd_create: {why}"))
        })?;
        ftruncate(&file, length as u64)?;
        let memory = Self::map_as(&file, length, ProtFlags::READ | ProtFlags::WRITE)?;
        if length >= HUGE_PAGE {
            advise(memory.map.start.as_ptr(), length, Advice::HugePages);
        }
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
    /// Errors of the kernel.
    pub fn map(file: impl AsFd, length: usize, is_writable: bool) -> io::Result<Self> {
        let there = usize::try_from(fstat(&file)?.st_size).unwrap_or_default();
        if there < length || !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            let why = "the memory is too short or not sealed";
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let read = ProtFlags::READ;
        Self::map_as(file, length, if is_writable { read | ProtFlags::WRITE } else { read })
    }

    fn map_as(file: impl AsFd, length: usize, access: ProtFlags) -> io::Result<Self> {
        let map = RawMap::of(file, length, access)?;
        Ok(Self { map, is_writable: access.contains(ProtFlags::WRITE) })
    }

    /// Whether a range is in the map, which is writable.
    fn may_write(&self, offset: usize, length: usize) -> bool {
        self.is_writable && offset.checked_add(length).is_some_and(|end| end <= self.map.length)
    }

    /// Populates a range, much cheaper than page by page at the first write.
    pub fn populate(&self, offset: usize, length: usize) {
        if self.may_write(offset, length) {
            let first = offset - offset % PAGE;
            let start = self.map.start.as_ptr().wrapping_add(first);
            advise(start, offset + length - first, Advice::Populate);
        }
    }

    /// The number of huge pages that lie in the map as a whole.
    pub fn huge_pages(&self) -> usize {
        self.map.length / HUGE_PAGE
    }

    /// Moves populated memory into a huge page, by its number in the map.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn collapse(&self, page: usize) -> io::Result<()> {
        if page >= self.huge_pages() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let start = self.map.start.as_ptr().wrapping_add(page * HUGE_PAGE);
        try_advise(start, HUGE_PAGE, Advice::Collapse)
    }

    /// The word of 8 bytes at an offset in bytes; none outside of the map.
    #[inline]
    pub fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let at = self.at::<AtomicU64>(offset)?;
        #[expect(unsafe_code, reason = "mapped memory has no other face")]
        // SAFETY: the word is in the map and aligned (see `at`), and valid for any bytes. Processes only
        // access the memory by such words; without write access the process only loads.
        Some(unsafe { &*at })
    }

    /// The word of 4 bytes at an offset in bytes; none outside of the map.
    #[inline]
    pub fn half(&self, offset: usize) -> Option<&AtomicU32> {
        let at = self.at::<AtomicU32>(offset)?;
        #[expect(unsafe_code, reason = "mapped memory has no other face")]
        // SAFETY: as in `word`.
        Some(unsafe { &*at })
    }

    #[inline]
    fn at<T>(&self, offset: usize) -> Option<*const T> {
        let end = offset.checked_add(size_of::<T>())?;
        if end > self.map.length || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // The map begins at a page, so an aligned offset is an aligned address.
        Some(self.map.start.as_ptr().wrapping_add(offset).cast_const().cast())
    }

    /// The bytes at an offset; none outside of the map. During the use of the bytes, the caller
    /// holds a pin on their slot.
    #[inline]
    pub fn bytes(&self, offset: usize, length: usize) -> Option<&[u8]> {
        let end = offset.checked_add(length)?;
        if end > self.map.length {
            return None;
        }
        #[expect(unsafe_code, reason = "mapped memory has no other face")]
        // SAFETY: the range is in the map of the value, and no process writes to a pinned slot.
        Some(unsafe { std::slice::from_raw_parts(self.map.start.as_ptr().add(offset), length) })
    }

    /// Prefetches cache lines from an offset on.
    #[inline]
    pub fn prefetch(&self, offset: usize, lines: usize) {
        for line in 0..lines {
            prefetch(self.map.start.as_ptr().wrapping_add(offset + line * LINE_BYTES));
        }
    }

    /// Writes bytes at an offset; false outside of the map, or for a read-only map. No other access
    /// happens meanwhile, for the slot of the bytes has neither word nor pin.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> bool {
        if !self.may_write(offset, bytes.len()) {
            return false;
        }
        #[expect(unsafe_code, reason = "mapped memory has no other face")]
        // SAFETY: the range is in the map, which is writable. `bytes` is memory of the process, so the two
        // don't overlap, and no reference to the range exists (see above).
        let to = unsafe {
            let start = self.map.start.as_ptr().add(offset);
            std::slice::from_raw_parts_mut(start.cast(), bytes.len())
        };
        copy_to_new(bytes, to);
        true
    }

    /// Passes bytes at an offset to `write`, for example to read from a socket; none outside of the
    /// map, or for a read-only map. No other access happens meanwhile, as with
    /// [`write`](Self::write).
    #[inline]
    pub fn write_with<T>(
        &self,
        offset: usize,
        length: usize,
        write: impl FnOnce(&mut [u8]) -> T,
    ) -> Option<T> {
        if !self.may_write(offset, length) {
            return None;
        }
        #[expect(unsafe_code, reason = "mapped memory has no other face")]
        // SAFETY: the range is in the map, which is writable and initialized. The bytes have no other
        // reference (see above), and the new reference ends with the call.
        let bytes =
            unsafe { std::slice::from_raw_parts_mut(self.map.start.as_ptr().add(offset), length) };
        Some(write(bytes))
    }

    /// The bytes written by the process, the only writer.
    #[inline]
    pub fn written(&self, offset: usize, length: usize) -> Option<&[u8]> {
        self.bytes(offset, length).filter(|_| self.is_writable)
    }
}
