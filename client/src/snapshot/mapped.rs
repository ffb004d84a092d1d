//! A file mapped into memory, shared with other processes.
//!
//! Must hold: a mapped file is either a file of the cache, named after its last byte was written,
//! or a sealed file in memory. So no process writes to a mapped file or shortens it. Removal of the
//! file does no harm.

use std::fs::File;
use std::io;
use std::ptr::NonNull;

use bytes::Bytes;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes of a snapshot: mapped from a file, or in memory of the process alone.
#[derive(Debug)]
pub(crate) enum Mapped {
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
pub(crate) fn fetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    #[expect(unsafe_code, reason = "there is no safe way to prefetch")]
    // SAFETY: a prefetch reads nothing, so any address will do.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(bytes.as_ptr().cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(bytes.first().copied());
}

/// A mapped file, valid also after the file loses its name.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

impl Mapping {
    /// Maps the whole of a file, which is not empty.
    pub(crate) fn of(file: &File) -> io::Result<Self> {
        let length = usize::try_from(file.metadata()?.len()).map_err(io::Error::other)?;
        let (access, flags) = (ProtFlags::READ, MapFlags::SHARED);
        #[expect(unsafe_code, reason = "there is no safe way to map a file")]
        // SAFETY: the kernel chooses a free place, so the map replaces nothing.
        let start = unsafe { mmap(std::ptr::null_mut(), length, access, flags, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, length })
    }
}

impl AsRef<[u8]> for Mapping {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        #[expect(unsafe_code, reason = "mapped memory has no other face")]
        // SAFETY: `length` bytes from `start` on are mapped for reading until the drop, and no
        // process writes to the file (see the module).
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr(), self.length)
        }
    }
}

#[expect(unsafe_code, reason = "a pointer says nothing of threads")]
// SAFETY: the memory is only read, and belongs to the value alone.
unsafe impl Send for Mapping {}

#[expect(unsafe_code, reason = "a pointer says nothing of threads")]
// SAFETY: the memory is only read.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        #[expect(unsafe_code, reason = "unmapping is unsafe")]
        // SAFETY: the memory was mapped by `of`, and no slice of the mapping outlives the value.
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
