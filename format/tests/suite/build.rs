//! Small objects for the tests.

use bytes::Bytes;
use dl_format::{
    Attributes, ChunkId, ChunkShape, ChunkWriter, Committed, DatasetId, FilePath, Sealed, Stamp,
    Verified,
};
use proptest::test_runner::Config as ProptestConfig;

/// Whether tests may take hours.
pub(crate) fn is_torture() -> bool {
    std::env::var_os("DIESEL_TORTURE").is_some()
}

/// Number of random cases for a property.
pub(crate) fn cases() -> ProptestConfig {
    let cases = if is_torture() { 50_000 } else { 512 };
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

/// The dataset of all objects here.
pub(crate) const DATASET: DatasetId = DatasetId::from_bytes(*b"dataset of tests");

/// Ids that differ and sort by their number.
pub(crate) fn id(number: u32) -> ChunkId {
    let mut bytes = [0x11; 16];
    #[expect(clippy::big_endian_bytes, reason = "ids sort by their bytes")]
    bytes[12..].copy_from_slice(&number.to_be_bytes());
    ChunkId::from_bytes(bytes)
}

pub(crate) fn path(bytes: impl AsRef<[u8]>) -> FilePath {
    FilePath::new(bytes.as_ref().to_vec()).expect("tests use legal paths")
}

/// The smallest chunks, so that tests fill them quickly.
pub(crate) fn small() -> ChunkShape {
    ChunkShape::new(1 << 20, 64).expect("a legal shape")
}

pub(crate) fn attributes(number: u16) -> Attributes {
    Attributes { mode: number & 0o7777, mtime: i64::from(number) * -1_234_567_891 }
}

/// Pseudo-random bytes, different for each `seed`.
pub(crate) fn data(seed: u64, length: usize) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes: Vec<u8> =
        (0..length.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()).collect();
    bytes.truncate(length);
    bytes
}

pub(crate) fn bytes_of(sealed: &Sealed) -> Vec<u8> {
    sealed.as_slice().to_vec()
}

pub(crate) fn committed(object: Vec<u8>, stamp: u64) -> (Committed, Bytes) {
    let verified = Verified::check(object).expect("tests seal good objects");
    let (committed, stored) = verified.commit(Stamp::new(stamp)).expect("the stamp is above zero");
    (committed, stored.into())
}

/// A chunk of files with contents derived from their paths.
pub(crate) fn chunk_of(number: u32, paths: &[&[u8]]) -> Vec<u8> {
    let mut writer = ChunkWriter::new(small(), Vec::new());
    for (index, name) in paths.iter().enumerate() {
        let content = data(index as u64 + 1, name.len() * 3 % 50);
        writer.append(&path(name), attributes(0o644), &content).expect("it has room");
    }
    bytes_of(&writer.seal(id(number), DATASET))
}

/// SplitMix64: the same numbers on every machine.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).expect("below a usize")
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }
}
