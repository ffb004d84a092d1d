//! The keys in Redis: the format "dl-meta-redis 1".
//!
//! Must hold: every key names its shard, and so its slot, in its hash tag. All keys of a dataset but its root
//! carry its epoch: keys of a dropped dataset are never taken for keys of a later dataset with the same id.
//!
//! # Keys
//!
//! | key, in the shard of | type | contents |
//! |---|---|---|
//! | `dl:{t}:identity`, first | string | the chunk store's 16 bytes |
//! | `dl:{t}:names`, first | hash | name: generation and dataset id |
//! | `dl:{t}:dropped`, first | hash | keys to be removed: `D:E`, this epoch; `D:`, all epochs but the root's, once there is a root; `D:*`, the same, and all epochs where there is no root: since when (s) |
//! | `dl:{t}:rebuild`, first | string | the server whose turn to rebuild it is; expires |
//! | `dl:{t}:mark`, each | hash | the mark of the shard. id: a copy of the identity; run: the run of the process that holds the shard, or `dropped` after Redis removed keys; time: when (s) the mark was written; life: a number, drawn by the first rebuild of this copy of the shard |
//! | `dl:{t}:ds:D`, D | hash | record, epoch, objects, tombstones, changes, retired, given, last, large, counted, version, files, bytes |
//! | `dl:{t}:log:D:E`, D | zset | object id and record |
//! | `dl:{t}:todo:D:E`, D | hash | object id: writer and time of the append; rows of the object may be missing |
//! | `dl:{t}:c:D:E:C`, C | string | the header of object C |
//! | `dl:{t}:x:D:E:C`, C | string | the bitmap of deleted entries of chunk C |
//! | `dl:{t}:task:D.T`, (D, T) | hash | training job T, expires: t: version and secret; u: end of the lease; m and 16 bytes: last heartbeat (us), a blank, the record of the member |
//! | `dl:{t}:d:D:E:B:P`, (D, P, B) | zset | rows of folder P: bucket 0, and 1 to 64 when large |

use dl_format::{ChunkId, DatasetId};

use super::slots::Shard;
use crate::TaskKey;

/// Hashed buckets of a large folder.
pub(super) const BUCKETS: u8 = 64;
/// Most rows in the first bucket of a folder; a folder with more rows continues in hashed buckets.
pub(super) const LARGE_ROWS: u64 = 2_048;

/// Letters of an epoch in a key.
const EPOCH_LETTERS: usize = 16;

/// Distinguishes the life of a dataset from earlier datasets with the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Epoch(u64);

impl Epoch {
    pub(super) fn new(drawn: u64) -> Self {
        Self(drawn)
    }

    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let text = str::from_utf8(text).ok().filter(|text| text.len() == EPOCH_LETTERS)?;
        u64::from_str_radix(text, 16).ok().map(Self)
    }
}

impl std::fmt::Display for Epoch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A key and its shard.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) shard: Shard,
    pub(super) bytes: Vec<u8>,
}

fn key(shard: Shard, rest: impl std::fmt::Display) -> Key {
    Key { shard, bytes: format!("dl:{{{}}}:{rest}", shard.tag()).into_bytes() }
}

pub(super) fn identity() -> Key {
    key(Shard::FIRST, "identity")
}

pub(super) fn names() -> Key {
    key(Shard::FIRST, "names")
}

pub(super) fn dropped() -> Key {
    key(Shard::FIRST, "dropped")
}

pub(super) fn rebuild_turn() -> Key {
    key(Shard::FIRST, "rebuild")
}

pub(super) fn shard_mark(shard: Shard) -> Key {
    key(shard, "mark")
}

/// A training job, for a single dataset.
pub(super) fn task(task: &TaskKey) -> Key {
    let TaskKey { dataset, task } = task;
    let shard = Shard::of(&[dataset.as_bytes(), task.as_bytes()]);
    key(shard, format_args!("task:{dataset}.{task}"))
}

/// A key that never exists.
pub(super) fn nothing(shard: Shard) -> Key {
    key(shard, "nothing")
}

pub(super) fn root(dataset: DatasetId) -> Key {
    key(Shard::of(&[dataset.as_bytes()]), format_args!("ds:{dataset}"))
}

/// A pattern for all keys of all datasets; also matches a few other keys.
pub(super) const OF_DATASETS: &str = "dl:{*}:*:*:*";

/// Reads the name of a key, and gives its dataset and epoch; none for a root, and for keys without a dataset.
pub(super) fn read(bytes: Vec<u8>) -> Option<(Key, Keys)> {
    let (tag, rest) = bytes.strip_prefix(b"dl:{").and_then(|rest| split(rest, b"}:"))?;
    let (_, rest) = split(rest, b":")?;
    let (dataset, rest) = split(rest, b":")?;
    let keys = Keys {
        dataset: str::from_utf8(dataset).ok()?.parse().ok()?,
        epoch: Epoch::parse(rest.get(..EPOCH_LETTERS)?)?,
    };
    Some((Key { shard: Shard::tagged(tag)?, bytes }, keys))
}

fn split<'a>(bytes: &'a [u8], at: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let found = bytes.windows(at.len()).position(|window| window == at)?;
    Some((bytes.get(..found)?, bytes.get(found + at.len()..)?))
}

/// The keys of a dataset in a single epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Keys {
    pub(super) dataset: DatasetId,
    pub(super) epoch: Epoch,
}

impl Keys {
    pub(super) fn root(self) -> Key {
        root(self.dataset)
    }

    pub(super) fn log(self) -> Key {
        key(root(self.dataset).shard, format_args!("log:{}:{}", self.dataset, self.epoch))
    }

    pub(super) fn todo(self) -> Key {
        key(root(self.dataset).shard, format_args!("todo:{}:{}", self.dataset, self.epoch))
    }

    pub(super) fn header(self, chunk: ChunkId) -> Key {
        let shard = Shard::of(&[chunk.as_bytes()]);
        key(shard, format_args!("c:{}:{}:{chunk}", self.dataset, self.epoch))
    }

    pub(super) fn deletions(self, chunk: ChunkId) -> Key {
        let shard = Shard::of(&[chunk.as_bytes()]);
        key(shard, format_args!("x:{}:{}:{chunk}", self.dataset, self.epoch))
    }

    /// Rows of the folder at `path`.
    pub(super) fn rows(self, bucket: u8, path: &[u8]) -> Key {
        self.all_rows().of(bucket, path)
    }

    /// For the keys of many folders.
    pub(super) fn all_rows(self) -> AllRows {
        AllRows { dataset: self.dataset, name: format!("}}:d:{}:{}:", self.dataset, self.epoch) }
    }
}

/// The keys of the rows of a dataset; their common part is spelled once.
#[derive(Debug)]
pub(super) struct AllRows {
    dataset: DatasetId,
    name: String,
}

impl AllRows {
    /// Rows of the folder at `path`.
    pub(super) fn of(&self, bucket: u8, path: &[u8]) -> Key {
        let mut key = Key { shard: Shard::FIRST, bytes: Vec::new() };
        self.spell(bucket, path, &mut key);
        key
    }

    /// [`AllRows::of`] into an existing key.
    pub(super) fn spell(&self, bucket: u8, path: &[u8], key: &mut Key) {
        let Key { shard, bytes } = key;
        *shard = Shard::of_joined(&[self.dataset.as_bytes(), path, &[bucket]], bytes);
        bytes.clear();
        let (tens, ones) = (b'0' + bucket / 10, b'0' + bucket % 10);
        let number: &[u8] = if bucket < 10 { &[ones, b':'] } else { &[tens, ones, b':'] };
        for part in [b"dl:{", shard.tag().as_bytes(), self.name.as_bytes(), number, path] {
            bytes.extend_from_slice(part);
        }
    }
}

/// The bucket of a name in a large folder.
pub(super) fn bucket_of(name: &[u8]) -> u8 {
    let [a, b, c, d] = dl_format::Crc32c::of(name).value().to_le_bytes();
    1 + (a ^ b ^ c ^ d) % BUCKETS
}

#[cfg(test)]
mod tests {
    use dl_format::ChunkIdMaker;

    use super::*;

    #[test]
    fn a_key_that_was_found_says_whose_it_is() {
        let keys = Keys { dataset: DatasetId::from_bytes([7; 16]), epoch: Epoch::new(0xAB) };
        let chunk = ChunkIdMaker::new([1; 9]).next(std::time::UNIX_EPOCH);
        for key in [
            keys.log(),
            keys.todo(),
            keys.header(chunk),
            keys.deletions(chunk),
            keys.rows(0, b""),
            keys.rows(64, b"a:b}:c/\xff"),
        ] {
            assert_eq!(read(key.bytes.clone()), Some((key, keys)));
        }
        for other in [identity(), names(), dropped(), shard_mark(Shard::FIRST), keys.root()] {
            assert_eq!(read(other.bytes), None);
        }
        for strange in ["", "dl:{", "dl:{0}:c:", "x:{0}:c:a:b", "dl:{none}:log:a:b"] {
            assert_eq!(read(strange.into()), None);
        }
    }
}
