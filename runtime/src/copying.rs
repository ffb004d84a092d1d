//! Copying bytes and taking their CRC-32C in one pass, through the registers of x86-64 processors
//! that multiply without carries in 64 bytes at once (Gopal et al., "Fast CRC Computation for
//! Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009).
//!
//! Must hold: the results equal a plain copy and its checksum.

/// Appends bytes to a buffer and gives their CRC-32C.
type CopyChecked = fn(&[u8], &mut Vec<u8>) -> u32;

/// The function that appends bytes to a buffer and gives their CRC-32C in a single pass; `None` for a
/// processor without the instructions.
pub fn copy_checked() -> Option<CopyChecked> {
    #[cfg(target_arch = "x86_64")]
    {
        wide::copy_checked()
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        None
    }
}

#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "instructions that not every processor has")]
mod wide {
    use std::arch::x86_64::{
        __m128i, __m512i, _mm_clmulepi64_si128, _mm_crc32_u8, _mm_crc32_u64, _mm_cvtsi32_si128,
        _mm_cvtsi128_si64, _mm_extract_epi64, _mm_set_epi64x, _mm_xor_si128,
        _mm512_broadcast_i32x4, _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32,
        _mm512_loadu_si512, _mm512_storeu_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512,
        _mm512_zextsi128_si512,
    };
    use std::mem::MaybeUninit;

    use super::CopyChecked;

    /// Bytes of a register.
    const LINE: usize = 64;
    /// Registers that sum side by side, without waiting for each other.
    const SIDE_BY_SIDE: usize = 4;
    /// Castagnoli's polynomial, without its highest term.
    const POLYNOMIAL: u32 = 0x1EDC_6F41;
    /// Factors that move a sum ahead by 16, by 64 and by 256 bytes.
    const BY_LANE: [i64; 2] = ahead(128);
    const BY_LINE: [i64; 2] = ahead(512);
    const BY_GROUP: [i64; 2] = ahead(2_048);

    pub(super) fn copy_checked() -> Option<CopyChecked> {
        let able = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("sse4.2");
        able.then_some(append as CopyChecked)
    }

    /// Only for [`copy_checked`], which checks the processor first.
    fn append(data: &[u8], to: &mut Vec<u8>) -> u32 {
        to.reserve(data.len());
        let whole = to.len().saturating_add(data.len());
        let Some(place) = to.spare_capacity_mut().get_mut(..data.len()) else {
            unreachable!("room was reserved")
        };
        // SAFETY: `copy_checked` gives the function only on a processor with the instructions.
        let crc = unsafe { copy(data, place) };
        // SAFETY: there is room for `whole` bytes, and `copy` has filled all of `place`.
        unsafe { to.set_len(whole) };
        crc
    }

    /// Fills `place`, which is as long as `data`.
    #[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.2")]
    fn copy(data: &[u8], place: &mut [MaybeUninit<u8>]) -> u32 {
        let (lines, tail) = data.as_chunks::<LINE>();
        let (places, tail_place) = place.as_chunks_mut::<LINE>();
        let (groups, lines) = lines.as_chunks::<SIDE_BY_SIDE>();
        let (group_places, places) = places.as_chunks_mut::<SIDE_BY_SIDE>();
        let mut groups = groups.iter().zip(group_places);
        let mut lines = lines.iter().zip(places);
        let begin = _mm512_zextsi128_si512(_mm_cvtsi32_si128(-1));
        let sum = match groups.next() {
            Some((group, place)) => {
                let [first, mut b, mut c, mut d] = carry_group(group, place);
                let mut a = _mm512_xor_si512(first, begin);
                let by = factors(BY_GROUP);
                for (group, place) in groups {
                    let next = carry_group(group, place);
                    a = fold(a, by, next[0]);
                    b = fold(b, by, next[1]);
                    c = fold(c, by, next[2]);
                    d = fold(d, by, next[3]);
                }
                let by = factors(BY_LINE);
                Some(fold(fold(fold(a, by, b), by, c), by, d))
            }
            None => lines.next().map(|(line, place)| _mm512_xor_si512(carry(line, place), begin)),
        };
        let crc = match sum {
            Some(mut sum) => {
                let by = factors(BY_LINE);
                for (line, place) in lines {
                    sum = fold(sum, by, carry(line, place));
                }
                reduce(sum)
            }
            None => u32::MAX,
        };
        tail_place.write_copy_of_slice(tail);
        !by_words(crc, tail)
    }

    /// The factors for the two halves of a sum that move the sum ahead by so many bits.
    const fn ahead(bits: u32) -> [i64; 2] {
        [remainder(bits + 32), remainder(bits - 32)]
    }

    /// x to the power of `exponent` modulo the polynomial, its bits in the order of the data.
    const fn remainder(exponent: u32) -> i64 {
        let mut value: u32 = 1;
        let mut step = 0;
        while step < exponent {
            let carried = value >> 31 == 1;
            value <<= 1;
            if carried {
                value ^= POLYNOMIAL;
            }
            step += 1;
        }
        (value.reverse_bits() as i64) << 1
    }

    #[target_feature(enable = "avx512f")]
    fn factors([low, high]: [i64; 2]) -> __m512i {
        _mm512_broadcast_i32x4(_mm_set_epi64x(high, low))
    }

    #[target_feature(enable = "avx512f")]
    fn carry_group(
        [a, b, c, d]: &[[u8; LINE]; SIDE_BY_SIDE],
        [to_a, to_b, to_c, to_d]: &mut [[MaybeUninit<u8>; LINE]; SIDE_BY_SIDE],
    ) -> [__m512i; SIDE_BY_SIDE] {
        [carry(a, to_a), carry(b, to_b), carry(c, to_c), carry(d, to_d)]
    }

    /// Copies a line, and gives its bytes.
    #[target_feature(enable = "avx512f")]
    fn carry(line: &[u8; LINE], place: &mut [MaybeUninit<u8>; LINE]) -> __m512i {
        // SAFETY: 64 bytes are read, which need not be aligned.
        let held = unsafe { _mm512_loadu_si512(line.as_ptr().cast()) };
        // SAFETY: 64 bytes are written, which need not be aligned.
        unsafe { _mm512_storeu_si512(place.as_mut_ptr().cast(), held) };
        held
    }

    /// The sum moved ahead, with the next line.
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn fold(sum: __m512i, by: __m512i, there: __m512i) -> __m512i {
        let low = _mm512_clmulepi64_epi128::<0x00>(sum, by);
        let high = _mm512_clmulepi64_epi128::<0x11>(sum, by);
        _mm512_ternarylogic_epi64::<0x96>(low, high, there)
    }

    /// The checksum, not yet inverted, of a message with the sum.
    #[target_feature(enable = "avx512f,pclmulqdq,sse4.2")]
    fn reduce(sum: __m512i) -> u32 {
        let by = _mm_set_epi64x(BY_LANE[1], BY_LANE[0]);
        let join = |sum: __m128i, next: __m128i| {
            let low = _mm_clmulepi64_si128::<0x00>(sum, by);
            let high = _mm_clmulepi64_si128::<0x11>(sum, by);
            _mm_xor_si128(_mm_xor_si128(low, high), next)
        };
        let lane = _mm512_extracti32x4_epi32::<0>(sum);
        let lane = join(lane, _mm512_extracti32x4_epi32::<1>(sum));
        let lane = join(lane, _mm512_extracti32x4_epi32::<2>(sum));
        let lane = join(lane, _mm512_extracti32x4_epi32::<3>(sum));
        let crc = _mm_crc32_u64(0, _mm_cvtsi128_si64(lane).cast_unsigned());
        _mm_crc32_u64(crc, _mm_extract_epi64::<1>(lane).cast_unsigned()) as u32
    }

    /// The checksum, not yet inverted, with some more bytes.
    #[target_feature(enable = "sse4.2")]
    fn by_words(crc: u32, bytes: &[u8]) -> u32 {
        let (words, rest) = bytes.as_chunks::<8>();
        let crc = words
            .iter()
            .fold(u64::from(crc), |crc, word| _mm_crc32_u64(crc, u64::from_le_bytes(*word)));
        rest.iter().fold(crc as u32, |crc, byte| _mm_crc32_u8(crc, *byte))
    }
}
