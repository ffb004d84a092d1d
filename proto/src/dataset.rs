//! The server's description of a dataset, with counts of its objects.
//!
//! Must hold: missing counts are marked on the wire, and their zeros are never read as counts.

use bytes::Bytes;
use dl_format::{ChunkShape, DatasetId, DatasetName, Stamp, Version};

use crate::convert::{dataset_id, id_bytes};
use crate::error::WireError;
use crate::pb;

/// The server's description of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// The name of the dataset.
    pub name: DatasetName,
    /// The id in its objects.
    pub id: DatasetId,
    /// The shape of its chunks.
    pub shape: ChunkShape,
    /// When it was created.
    pub created: Stamp,
    /// Committed chunks, parts and tombstones.
    pub objects: u64,
    /// The version: a hash of its set of objects.
    pub version: Version,
    /// The number of files and bytes.
    pub counts: Counts,
    /// Small chunks that a purge can merge; counted together with the files of a single dataset.
    pub small: SmallChunks,
}

/// Chunks of which two fit into one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SmallChunks {
    /// The number of chunks, at least.
    pub chunks: u64,
    /// Bytes of their files.
    pub bytes: u64,
}

/// The number of files and bytes of a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Counts {
    /// Not requested: a server may have to read every file's record.
    Unasked,
    /// The counts.
    Known {
        /// Files that are not deleted.
        files: u64,
        /// Bytes of these files.
        bytes: u64,
    },
    /// Counting failed, with the reason. The number of objects and the version may be missing too.
    Unknown(String),
}

/// A list of datasets, and of names without a readable record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed<T> {
    /// In the order of their names.
    pub found: Vec<T>,
    /// In their order.
    pub unread: Vec<UnreadName>,
}

/// A name without a readable record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadName {
    /// The name.
    pub name: DatasetName,
    /// The reason, and the remedy.
    pub problem: String,
}

impl From<Listed<Dataset>> for pb::ListDatasetsReply {
    fn from(listed: Listed<Dataset>) -> Self {
        let unread = listed.unread.into_iter().map(|unread| pb::UnreadName {
            name: unread.name.as_str().to_owned(),
            problem: unread.problem,
        });
        let datasets = listed.found.into_iter().map(Into::into).collect();
        Self { datasets, unread: unread.collect() }
    }
}

impl TryFrom<pb::ListDatasetsReply> for Listed<Dataset> {
    type Error = WireError;

    fn try_from(wire: pb::ListDatasetsReply) -> Result<Self, WireError> {
        let unread = wire.unread.into_iter().map(|unread| {
            let name = DatasetName::new(unread.name);
            let name = name.map_err(|why| WireError::invalid("name", why))?;
            Ok(UnreadName { name, problem: unread.problem })
        });
        let found = wire.datasets.into_iter().map(Dataset::try_from);
        Ok(Self {
            found: found.collect::<Result<_, _>>()?,
            unread: unread.collect::<Result<_, _>>()?,
        })
    }
}

impl From<Dataset> for pb::Dataset {
    fn from(dataset: Dataset) -> Self {
        let (files, bytes, uncounted) = match dataset.counts {
            Counts::Known { files, bytes } => (files, bytes, None),
            Counts::Unasked => (0, 0, Some(pb::Uncounted::default())),
            Counts::Unknown(problem) => (0, 0, Some(pb::Uncounted { problem })),
        };
        Self {
            name: dataset.name.as_str().to_owned(),
            id: id_bytes(dataset.id.as_bytes()),
            chunk_size: dataset.shape.size(),
            alignment: dataset.shape.alignment(),
            created: dataset.created.get(),
            objects: dataset.objects,
            version: Bytes::copy_from_slice(&dataset.version.to_bytes()),
            files,
            bytes,
            uncounted,
            small_chunks: dataset.small.chunks,
            small_chunk_bytes: dataset.small.bytes,
        }
    }
}

impl TryFrom<pb::Dataset> for Dataset {
    type Error = WireError;

    fn try_from(wire: pb::Dataset) -> Result<Self, WireError> {
        Ok(Self {
            name: DatasetName::new(wire.name).map_err(|why| WireError::invalid("name", why))?,
            id: dataset_id(&wire.id)?,
            shape: ChunkShape::new(wire.chunk_size, wire.alignment)
                .map_err(|why| WireError::invalid("chunk_size", why))?,
            created: Stamp::new(wire.created),
            objects: wire.objects,
            version: Version::from_bytes(&wire.version)
                .map_err(|why| WireError::invalid("version", why))?,
            counts: match wire.uncounted {
                None => Counts::Known { files: wire.files, bytes: wire.bytes },
                Some(uncounted) if uncounted.problem.is_empty() => Counts::Unasked,
                Some(uncounted) => Counts::Unknown(uncounted.problem),
            },
            small: SmallChunks { chunks: wire.small_chunks, bytes: wire.small_chunk_bytes },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset(counts: Counts) -> Dataset {
        Dataset {
            name: DatasetName::new("pets").unwrap(),
            id: DatasetId::from_bytes([9; 16]),
            shape: ChunkShape::default(),
            created: Stamp::new(1),
            objects: 3,
            version: Version::default(),
            counts,
            small: SmallChunks { chunks: 2, bytes: 7 },
        }
    }

    #[test]
    fn a_dataset_goes_over_the_wire_counted_or_not() {
        let unknown = Counts::Unknown("a row is damaged".to_owned());
        for counts in [Counts::Unasked, Counts::Known { files: 0, bytes: 0 }, unknown] {
            let sent = dataset(counts);
            assert_eq!(Dataset::try_from(pb::Dataset::from(sent.clone())).unwrap(), sent);
        }
    }
}
