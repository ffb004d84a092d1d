//! Keys of objects in the chunk store: `<dataset id>/<hash byte>/<id>.c` or `.t`,
//! `<dataset id>/snapshots/<version>/<part>`, `manifest` or `lease-<until>-<task>`,
//! `names/<dataset name>/<generation>`, and `identity`.
//!
//! Must hold: each parser accepts only keys of its own kind.

use xxhash_rust::xxh3::xxh3_64;

use crate::id::{ChunkId, DatasetId, Stamp, TaskId};
use crate::kind::ObjectKind;
use crate::name::DatasetName;
use crate::version::Version;

/// The key of the identity object.
pub const IDENTITY_KEY: &str = "identity";
/// The folder of the name objects.
pub const NAMES_PREFIX: &str = "names";

/// The byte that spreads the objects of a dataset over 256 folders.
pub fn hash_byte(id: ChunkId) -> u8 {
    let [hash, ..] = xxh3_64(id.as_bytes()).to_le_bytes();
    hash
}

/// The key of an object.
pub fn object_key(dataset: DatasetId, id: ChunkId, kind: ObjectKind) -> String {
    let hash = hash_byte(id);
    let ending = match kind {
        ObjectKind::Chunk | ObjectKind::Part => 'c',
        ObjectKind::Tombstone => 't',
    };
    format!("{dataset}/{hash:02x}/{id}.{ending}")
}

/// The folder of a dataset's objects.
pub fn dataset_prefix(dataset: DatasetId) -> String {
    dataset.to_string()
}

/// The folder of a dataset's objects with the given hash byte.
pub fn hash_prefix(dataset: DatasetId, hash: u8) -> String {
    format!("{dataset}/{hash:02x}")
}

/// The dataset and id of a key, and whether it is a tombstone's; `None` for a key never returned by
/// [`object_key`].
pub fn parse_object_key(key: &str) -> Option<(DatasetId, ChunkId, bool)> {
    let (dataset, rest) = key.split_once('/')?;
    let (_, file) = rest.split_once('/')?;
    let (id, ending) = file.split_once('.')?;
    let (dataset, id) = (dataset.parse().ok()?, id.parse().ok()?);
    let (kind, is_tombstone) = match ending {
        "c" => (ObjectKind::Chunk, false),
        "t" => (ObjectKind::Tombstone, true),
        _ => return None,
    };
    (object_key(dataset, id, kind) == key).then_some((dataset, id, is_tombstone))
}

/// The kind of an object of a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SnapshotObject {
    /// The manifest, written last.
    Manifest,
    /// A part of its bytes, counted from 0.
    Part(u32),
    /// The lease of a training job on the version; not data of the snapshot.
    Lease {
        /// The end of the lease.
        until: Stamp,
        /// The job.
        task: TaskId,
    },
}

/// The folder of snapshots, within the folder of a dataset.
const SNAPSHOTS: &str = "snapshots";
const MANIFEST: &str = "manifest";
const LEASE: &str = "lease-";

/// The folder of a dataset's snapshots.
pub fn snapshots_prefix(dataset: DatasetId) -> String {
    format!("{dataset}/{SNAPSHOTS}")
}

/// The key of an object of a snapshot.
pub fn snapshot_key(dataset: DatasetId, version: Version, object: SnapshotObject) -> String {
    match object {
        SnapshotObject::Manifest => format!("{dataset}/{SNAPSHOTS}/{version}/{MANIFEST}"),
        SnapshotObject::Part(number) => format!("{dataset}/{SNAPSHOTS}/{version}/{number:08x}"),
        SnapshotObject::Lease { until, task } => {
            let until = until.get();
            format!("{dataset}/{SNAPSHOTS}/{version}/{LEASE}{until:016x}-{task}")
        }
    }
}

/// The fields of a snapshot object's key; `None` for a key never returned by [`snapshot_key`].
pub fn parse_snapshot_key(key: &str) -> Option<(DatasetId, Version, SnapshotObject)> {
    let (dataset, rest) = key.split_once('/')?;
    let (version, object) = rest.strip_prefix(SNAPSHOTS)?.strip_prefix('/')?.split_once('/')?;
    let (dataset, version) = (dataset.parse().ok()?, version.parse().ok()?);
    let object = match object {
        MANIFEST => SnapshotObject::Manifest,
        other => match other.strip_prefix(LEASE) {
            Some(lease) => {
                let (until, task) = lease.split_once('-')?;
                let until = Stamp::new(u64::from_str_radix(until, 16).ok()?);
                SnapshotObject::Lease { until, task: task.parse().ok()? }
            }
            None => SnapshotObject::Part(u32::from_str_radix(other, 16).ok()?),
        },
    };
    (snapshot_key(dataset, version, object) == key).then_some((dataset, version, object))
}

/// The folder of the generations of a dataset's name.
pub fn name_prefix(name: &DatasetName) -> String {
    format!("{NAMES_PREFIX}/{name}")
}

/// The key of a generation of a dataset's name. The highest generation is valid.
pub fn name_key(name: &DatasetName, generation: u32) -> String {
    format!("{NAMES_PREFIX}/{name}/{generation:08x}")
}

/// The name and generation of a key; `None` for a key never returned by [`name_key`].
pub fn parse_name_key(key: &str) -> Option<(DatasetName, u32)> {
    let (name, generation) = key.strip_prefix(NAMES_PREFIX)?.strip_prefix('/')?.split_once('/')?;
    let name = DatasetName::new(name).ok()?;
    let generation = u32::from_str_radix(generation, 16).ok()?;
    (name_key(&name, generation) == key).then_some((name, generation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_reads_back_and_nothing_else_does() {
        let (dataset, id) = (DatasetId::from_bytes([3; 16]), ChunkId::from_bytes([9; 16]));
        let chunk = object_key(dataset, id, ObjectKind::Chunk);
        assert_eq!(parse_object_key(&chunk), Some((dataset, id, false)));
        assert!(chunk.starts_with(&format!("{}/", hash_prefix(dataset, hash_byte(id)))));
        let tombstone = object_key(dataset, id, ObjectKind::Tombstone);
        assert_eq!(parse_object_key(&tombstone), Some((dataset, id, true)));
        let name = DatasetName::new("a.b").expect("legal");
        assert_eq!(parse_name_key(&name_key(&name, 17)), Some((name, 17)));
        let mut version = Version::default();
        version.add(id, Stamp::new(7));
        let lease =
            SnapshotObject::Lease { until: Stamp::new(77), task: TaskId::from_bytes([5; 16]) };
        let part = SnapshotObject::Part;
        for object in [SnapshotObject::Manifest, part(0), part(300), lease] {
            let key = snapshot_key(dataset, version, object);
            assert_eq!(parse_snapshot_key(&key), Some((dataset, version, object)));
            assert!(key.starts_with(&format!("{}/", snapshots_prefix(dataset))));
            assert!(key.starts_with(&format!("{}/", dataset_prefix(dataset))));
            assert_eq!((parse_object_key(&key), parse_name_key(&key)), (None, None));
            for other in [key.replace("snapshots", "00"), format!("{key}0"), key.replace('-', "")] {
                assert_eq!(parse_snapshot_key(&other), None, "{other}");
            }
        }
        for other in ["", "identity", "names/a/1", "names/-/00000001", "a/b/c.c", "x/00/y", &chunk]
        {
            assert_eq!(parse_object_key(other).is_some(), other == chunk, "{other}");
            assert_eq!(parse_name_key(other), None, "{other}");
            assert_eq!(parse_snapshot_key(other), None, "{other}");
        }
        assert_eq!(parse_object_key(&chunk.replace(".c", ".d")), None);
    }
}
