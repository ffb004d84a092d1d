//! Ids of chunks, tombstones, datasets and stores, and the stamp that orders changes (paper, Table
//! 1).
//!
//! Must hold: byte order of a chunk id is time order, printed order is byte order, and different
//! makers never create the same id. Stamps, not ids, decide which of two writes wins.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::alphabet::Alphabet;
use base64::engine::{GeneralPurpose, general_purpose::NO_PAD};

/// In ASCII order, unlike the usual alphabets, so that sorting names sorts ids.
const ORDERED: Alphabet =
    match Alphabet::new("-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz") {
        Ok(alphabet) => alphabet,
        Err(_) => unreachable!(),
    };
const PRINTED: GeneralPurpose = GeneralPurpose::new(&ORDERED, NO_PAD);

/// A text other than 22 characters of the id alphabet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an id is 22 characters of A-Z, a-z, 0-9, - and _")]
pub struct InvalidId;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name([u8; 16]);

        impl $name {
            /// The id with these 16 bytes.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(bytes)
            }

            /// Its 16 bytes, most significant first.
            pub const fn as_bytes(&self) -> &[u8; 16] {
                &self.0
            }
        }

        /// 22 characters, safe in an object key and in a file name.
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&PRINTED.encode(self.0))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                let bytes = PRINTED.decode(text).map_err(|_| InvalidId)?;
                Ok(Self(bytes.try_into().map_err(|_| InvalidId)?))
            }
        }
    };
}

id! {
    /// The id of a chunk or a tombstone, which makes a retried write harmless.
    ///
    /// Big-endian on purpose, so that ids sort by time: seconds (4 bytes), machine (6), process
    /// (3), counter (3).
    ChunkId
}
id! {
    /// The random id of a dataset's contents. A re-created dataset has another id.
    DatasetId
}
id! {
    /// The random id of a chunk store, stored in the chunk store and in its metadata store.
    StoreId
}

id! {
    /// The id of a training job of one user: the first 16 bytes of a SHA-256. A hash prevents the
    /// construction of another job with the same id.
    TaskId
}
id! {
    /// The random id of a member of a training job.
    MemberId
}

impl ChunkId {
    /// Seal time of the object in seconds since 1970, by its writer's clock.
    pub fn seconds(self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        #[expect(clippy::big_endian_bytes, reason = "ids sort by time")]
        u32::from_be_bytes([a, b, c, d])
    }

    /// The greatest id below this id: the position to continue after, so that this id comes first.
    pub fn before(self) -> Option<Self> {
        #[expect(clippy::big_endian_bytes, reason = "ids sort by their bytes")]
        u128::from_be_bytes(self.0).checked_sub(1).map(|number| Self(number.to_be_bytes()))
    }

    /// [`ChunkId::seconds`] as a time.
    pub fn sealed_at(self) -> SystemTime {
        UNIX_EPOCH.checked_add(Duration::from_secs(self.seconds().into())).unwrap_or(UNIX_EPOCH)
    }
}

/// Orders the changes of one dataset: microseconds since 1970, never given twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Stamp(u64);

impl Stamp {
    /// The stamp with the given number.
    pub const fn new(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since 1970; zero before that.
    pub fn at(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The time of the stamp: when the change was accepted.
    pub fn time(self) -> SystemTime {
        UNIX_EPOCH.checked_add(Duration::from_micros(self.0)).unwrap_or(UNIX_EPOCH)
    }

    /// The next stamp at clock time `now`: max(now, last + 1).
    #[must_use]
    pub fn next(self, now: Self) -> Self {
        now.max(Self(self.0.saturating_add(1)))
    }
}

/// Makes chunk ids for one process. Pure: time and randomness are arguments.
#[derive(Debug)]
pub struct ChunkIdMaker {
    origin: [u8; 9],
    last: (u32, u32),
}

impl ChunkIdMaker {
    /// `origin` identifies machine and process: drawn at random once per process, and again after a
    /// fork.
    pub fn new(origin: [u8; 9]) -> Self {
        Self { origin, last: (0, 0) }
    }

    /// Whether the last id is ahead of `now` by more than `by`. The clock was wrong then, and
    /// further ids would be wrong too. Another origin may start at any time.
    pub fn is_ahead(&self, now: SystemTime, by: Duration) -> bool {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::from(self.last.0) > now.saturating_add(by).as_secs()
    }

    /// The next id. After a step back of the clock, or 16.7 million ids in one second, the next
    /// second is used early rather than repeating a pair.
    pub fn next(&mut self, now: SystemTime) -> ChunkId {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let now = u32::try_from(now).unwrap_or(u32::MAX);
        self.last = match self.last {
            (second, _) if now > second => (now, 0),
            (second, COUNTER_MAX) => (second.saturating_add(1), 0),
            (second, counter) => (second, counter.saturating_add(1)),
        };
        let (second, counter) = self.last;
        #[expect(clippy::big_endian_bytes, reason = "ids sort by time")]
        let ([s0, s1, s2, s3], [_, c0, c1, c2]) = (second.to_be_bytes(), counter.to_be_bytes());
        let [m0, m1, m2, m3, m4, m5, p0, p1, p2] = self.origin;
        ChunkId([s0, s1, s2, s3, m0, m1, m2, m3, m4, m5, p0, p1, p2, c0, c1, c2])
    }
}

const COUNTER_MAX: u32 = (1 << 24) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(second)
    }

    #[test]
    fn a_clock_that_steps_back_never_repeats_or_reorders_ids() {
        let mut maker = ChunkIdMaker::new([7; 9]);
        let ids = [at(100), at(40), at(100), at(101), at(101)].map(|now| maker.next(now));
        assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    }

    #[test]
    fn a_clock_that_was_far_ahead_is_told_from_one_that_steps_back() {
        let mut maker = ChunkIdMaker::new([7; 9]);
        let minute = Duration::from_secs(60);
        assert!(!maker.is_ahead(UNIX_EPOCH, minute), "no id was made");
        maker.next(at(1_000));
        assert!(!maker.is_ahead(at(940), minute) && !maker.is_ahead(at(5_000), minute));
        assert!(maker.is_ahead(at(939), minute));
    }

    #[test]
    fn a_full_counter_borrows_from_the_next_second() {
        let mut maker = ChunkIdMaker { origin: [1; 9], last: (100, COUNTER_MAX - 1) };
        let ids = [at(100), at(100), at(101)].map(|now| maker.next(now));
        assert_eq!(ids.map(ChunkId::seconds), [100, 101, 101]);
        assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
    }

    #[test]
    fn printed_order_is_byte_order_and_reads_back() {
        let mut maker = ChunkIdMaker::new([0xFF; 9]);
        let ids: Vec<_> = (0..5000).map(|s| maker.next(at(s * 977))).collect();
        let printed: Vec<_> = ids.iter().map(ToString::to_string).collect();
        assert!(printed.is_sorted());
        assert!(printed.iter().all(|text| text.len() == 22));
        assert!(ids.iter().zip(&printed).all(|(id, text)| text.parse() == Ok(*id)));
        assert_eq!("".parse::<ChunkId>(), Err(InvalidId));
        assert_eq!("zzzzzzzzzzzzzzzzzzzzz/".parse::<ChunkId>(), Err(InvalidId));
    }

    #[test]
    fn stamps_never_go_back() {
        let last = Stamp::new(50);
        assert_eq!(last.next(Stamp::new(40)), Stamp::new(51));
        assert_eq!(last.next(Stamp::new(60)), Stamp::new(60));
    }
}
