//! Domain types of a snapshot's download, with checked conversion to and from the wire.
//!
//! Must hold: a message is either a wait, the head or bytes, distinguished by its fields;
//! combinations are refused. A version is absent or complete.

use bytes::Bytes;
use dl_format::{DatasetId, Version};

use crate::convert::{dataset_id, id_bytes};
use crate::error::WireError;
use crate::pb;

/// The snapshot and the bytes to return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetSnapshotRequest {
    /// The dataset.
    pub dataset: DatasetId,
    /// The version; `None`: the newest.
    pub version: Option<Version>,
    /// Bytes to skip.
    pub offset: u64,
    /// Return only the head.
    pub head_only: bool,
}

impl From<GetSnapshotRequest> for pb::GetSnapshotRequest {
    fn from(request: GetSnapshotRequest) -> Self {
        let version = request.version.map(|version| Bytes::copy_from_slice(&version.to_bytes()));
        Self {
            dataset: id_bytes(request.dataset.as_bytes()),
            version: version.unwrap_or_default(),
            offset: request.offset,
            head_only: request.head_only,
        }
    }
}

impl TryFrom<pb::GetSnapshotRequest> for GetSnapshotRequest {
    type Error = WireError;

    fn try_from(wire: pb::GetSnapshotRequest) -> Result<Self, WireError> {
        let version = match wire.version.is_empty() {
            true => None,
            false => Some(version(&wire.version)?),
        };
        let dataset = dataset_id(&wire.dataset)?;
        Ok(Self { dataset, version, offset: wire.offset, head_only: wire.head_only })
    }
}

/// A message of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnapshotPiece {
    /// The snapshot is still being built.
    Waiting,
    /// The version and the total number of bytes; sent once, before all bytes.
    Head {
        /// The version.
        version: Version,
        /// Bytes.
        length: u64,
    },
    /// The next bytes.
    Data(Bytes),
}

impl From<SnapshotPiece> for pb::GetSnapshotReply {
    fn from(piece: SnapshotPiece) -> Self {
        match piece {
            SnapshotPiece::Waiting => Self::default(),
            SnapshotPiece::Head { version, length } => {
                let version = Bytes::copy_from_slice(&version.to_bytes());
                Self { version, length, data: Bytes::new() }
            }
            SnapshotPiece::Data(data) => Self { data, ..Self::default() },
        }
    }
}

impl TryFrom<pb::GetSnapshotReply> for SnapshotPiece {
    type Error = WireError;

    fn try_from(wire: pb::GetSnapshotReply) -> Result<Self, WireError> {
        match (wire.version.is_empty(), wire.data.is_empty()) {
            (true, true) => Ok(Self::Waiting),
            (true, false) => Ok(Self::Data(wire.data)),
            (false, true) => {
                Ok(Self::Head { version: version(&wire.version)?, length: wire.length })
            }
            (false, false) => Err(WireError::invalid("data", "it comes with the head")),
        }
    }
}

pub(crate) fn version(bytes: &[u8]) -> Result<Version, WireError> {
    Version::from_bytes(bytes).map_err(|why| WireError::invalid("version", why))
}

#[cfg(test)]
mod tests {
    use dl_format::{ChunkId, Stamp};

    use super::*;

    #[test]
    fn requests_and_pieces_survive_the_wire_and_nonsense_does_not() {
        let mut version = Version::default();
        for version in [None, Some(version), {
            version.add(ChunkId::from_bytes([3; 16]), Stamp::new(4));
            Some(version)
        }] {
            let dataset = DatasetId::from_bytes([9; 16]);
            for head_only in [false, true] {
                let request = GetSnapshotRequest { dataset, version, offset: 77, head_only };
                let wire = pb::GetSnapshotRequest::from(request);
                assert_eq!(GetSnapshotRequest::try_from(wire).unwrap(), request);
            }
        }
        let head = SnapshotPiece::Head { version, length: 5 };
        for piece in [SnapshotPiece::Waiting, head, SnapshotPiece::Data(b"abc".to_vec().into())] {
            let wire = pb::GetSnapshotReply::from(piece.clone());
            assert_eq!(SnapshotPiece::try_from(wire).unwrap(), piece);
        }
        let bytes = |length: usize| Bytes::from(vec![1; length]);
        for (dataset, version) in [(15, 0), (16, 1), (16, 25), (0, 24)] {
            let (dataset, version) = (bytes(dataset), bytes(version));
            let wire = pb::GetSnapshotRequest { dataset, version, ..Default::default() };
            assert!(GetSnapshotRequest::try_from(wire).is_err());
        }
        for (version, data) in [(23, 0), (24, 1)] {
            let (version, data) = (bytes(version), bytes(data));
            let wire = pb::GetSnapshotReply { version, data, length: 1 };
            assert!(SnapshotPiece::try_from(wire).is_err());
        }
    }
}
