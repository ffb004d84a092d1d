//! Copies of bytes into and out of slots.
//!
//! Must hold: a copy equals `copy_from_slice`. The vector loop runs only on processors with its
//! instructions and with a slow `rep movsb` (docs/decisions/0020).

use std::mem::MaybeUninit;

use bytes::Bytes;

/// Copies bytes to a buffer of the same length.
///
/// # Panics
/// If the lengths differ, as `copy_from_slice` does.
#[inline]
pub fn copy_bytes(from: &[u8], to: &mut [u8]) {
    copy_to_new(from, as_new(to));
}

#[inline]
fn as_new(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    let (start, length) = (bytes.as_mut_ptr().cast(), bytes.len());
    #[expect(unsafe_code, reason = "there is no safe way to treat bytes as new memory")]
    // SAFETY: the slice is the same memory, and callers only write bytes with a value to the slice.
    unsafe {
        std::slice::from_raw_parts_mut(start, length)
    }
}

/// As [`copy_bytes`], to memory that may have no value yet.
///
/// # Panics
/// If the lengths differ.
#[inline]
pub fn copy_to_new(from: &[u8], to: &mut [MaybeUninit<u8>]) {
    #[cfg(target_arch = "x86_64")]
    if vectors::are_faster(from.len()) {
        return vectors::copy(from, to);
    }
    to.write_copy_of_slice(from);
}

/// A copy in memory of the process.
#[inline]
pub fn copy_of(bytes: &[u8]) -> Bytes {
    let mut copy = Vec::with_capacity(bytes.len());
    copy_to_new(bytes, &mut copy.spare_capacity_mut()[..bytes.len()]);
    #[expect(unsafe_code, reason = "there is no safe way to declare new memory written")]
    // SAFETY: the first `bytes.len()` bytes were just written.
    unsafe {
        copy.set_len(bytes.len());
    }
    copy.into()
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "instructions that not every processor has")]
mod vectors {
    use std::arch::x86_64::{__cpuid, _mm256_loadu_si256, _mm256_storeu_si256};
    use std::mem::MaybeUninit;
    use std::ops::RangeInclusive;
    use std::sync::LazyLock;

    /// Bytes of a register.
    const LINE: usize = 32;
    /// Registers that are loaded before the first of them is stored.
    const UNROLLED: usize = 4;

    /// Fewer bytes are copied without `rep movsb`, and more bytes past the processor's cache.
    const LENGTHS: RangeInclusive<usize> = 256..=16 << 20;

    /// The family of Zen 3 and Zen 4.
    const SLOW_FAMILY: u32 = 0x19;

    static IS_SLOW_PROCESSOR: LazyLock<bool> = LazyLock::new(is_slow_processor);

    #[inline]
    pub(super) fn are_faster(length: usize) -> bool {
        LENGTHS.contains(&length) && *IS_SLOW_PROCESSOR
    }

    fn is_slow_processor() -> bool {
        let (vendor, model) = (__cpuid(0), __cpuid(1));
        let name = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes);
        let family = ((model.eax >> 8) & 0xf) + ((model.eax >> 20) & 0xff);
        name.as_flattened() == b"AuthenticAMD" && family == SLOW_FAMILY && has_instructions()
    }

    pub(super) fn has_instructions() -> bool {
        is_x86_feature_detected!("avx2")
    }

    /// Copies by registers. Only for processors with the instructions.
    pub(super) fn copy(from: &[u8], to: &mut [MaybeUninit<u8>]) {
        assert_eq!(from.len(), to.len(), "both slices have the same length");
        // SAFETY: the caller has checked the processor.
        unsafe { copy_blocks(from, to) }
    }

    #[target_feature(enable = "avx2")]
    fn copy_blocks(from: &[u8], to: &mut [MaybeUninit<u8>]) {
        let (lines, rest) = from.as_chunks::<LINE>();
        let (places, rest_place) = to.as_chunks_mut::<LINE>();
        let (blocks, lines) = lines.as_chunks::<UNROLLED>();
        let (block_places, places) = places.as_chunks_mut::<UNROLLED>();
        for (block, place) in blocks.iter().zip(block_places) {
            copy_lines(block, place);
        }
        for (line, place) in lines.iter().zip(places) {
            copy_lines(std::array::from_ref(line), std::array::from_mut(place));
        }
        rest_place.write_copy_of_slice(rest);
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn copy_lines<const N: usize>(
        lines: &[[u8; LINE]; N],
        places: &mut [[MaybeUninit<u8>; LINE]; N],
    ) {
        // SAFETY: 32 bytes are read, which need not be aligned.
        let held = lines.each_ref().map(|line| unsafe { _mm256_loadu_si256(line.as_ptr().cast()) });
        for (place, held) in places.iter_mut().zip(held) {
            // SAFETY: 32 bytes are written, which need not be aligned.
            unsafe { _mm256_storeu_si256(place.as_mut_ptr().cast(), held) };
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Copy = fn(&[u8], &mut [u8]);

    /// The way of this processor, and the vector loop where its instructions exist.
    fn ways() -> Vec<Copy> {
        let mut ways: Vec<Copy> = vec![copy_bytes];
        #[cfg(target_arch = "x86_64")]
        if vectors::has_instructions() {
            ways.push(|from, to| vectors::copy(from, as_new(to)));
        }
        ways
    }

    /// Copies between offsets of pages; gives whether exactly the bytes of the place changed.
    fn is_equal(copy: Copy, length: usize, from: usize, to: usize) -> bool {
        let source: Vec<u8> = (0..from + length).map(|n| ((n * 31) >> 3) as u8 | 1).collect();
        let mut place = vec![0; to + length + 64];
        copy(&source[from..], &mut place[to..to + length]);
        let (before, rest) = place.split_at(to);
        let (copied, behind) = rest.split_at(length);
        copied == &source[from..] && before.iter().chain(behind).all(|byte| *byte == 0)
    }

    #[test]
    fn a_copy_of_any_short_length_equals_the_bytes() {
        for copy in ways() {
            assert!((0..1_100).all(|length| is_equal(copy, length, length % 67, length % 37)));
        }
    }

    proptest! {
        #[test]
        fn a_copy_equals_the_bytes(length in 0..300_000_usize, from in 0..64_usize, to in 0..64_usize) {
            prop_assert!(ways().into_iter().all(|copy| is_equal(copy, length, from, to)));
        }
    }
}
