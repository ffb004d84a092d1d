//! Domain types of the requests and answers, with checked conversion to and from the wire.
//!
//! Must hold: ids have 16 bytes, paths are valid, files fit into a chunk, and the number of items
//! is bounded. Otherwise the error names the field, and the whole request is refused.

use bytes::Bytes;
use dl_format::layout::CHUNK_SIZE_MAX;
use dl_format::{
    Attributes, ChunkId, Crc32c, DatasetId, DatasetName, Deletions, DirPath, EntrySet,
    EntryVersion, Extent, FilePath, FileRecord, Stamp,
};

use crate::error::WireError;
use crate::kind::Kind;
use crate::limits::{READ_ITEMS_MAX, STAT_PATHS_MAX};
use crate::pb;

/// The first message of PutChunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PutHead {
    /// The dataset of the object.
    pub dataset: DatasetId,
    /// Bytes of the object.
    pub length: u64,
}

impl TryFrom<&pb::PutChunkRequest> for PutHead {
    type Error = WireError;

    fn try_from(wire: &pb::PutChunkRequest) -> Result<Self, WireError> {
        if wire.length == 0 {
            return Err(WireError::Missing("length"));
        }
        Ok(Self { dataset: dataset_id(&wire.dataset)?, length: wire.length })
    }
}

/// The entries to delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeleteRequest {
    /// The dataset.
    pub dataset: DatasetId,
    /// The id of the new tombstone.
    pub tombstone: ChunkId,
    /// The versions seen by the caller.
    pub deletions: Deletions,
}

impl From<DeleteRequest> for pb::DeleteRequest {
    fn from(request: DeleteRequest) -> Self {
        let deletions = request.deletions.iter().map(|(chunk, entries)| pb::ChunkDeletions {
            chunk: id_bytes(chunk.as_bytes()),
            entries: Bytes::copy_from_slice(entries.bits()),
        });
        Self {
            dataset: id_bytes(request.dataset.as_bytes()),
            tombstone: id_bytes(request.tombstone.as_bytes()),
            deletions: deletions.collect(),
        }
    }
}

impl TryFrom<pb::DeleteRequest> for DeleteRequest {
    type Error = WireError;

    fn try_from(wire: pb::DeleteRequest) -> Result<Self, WireError> {
        let mut deletions = Deletions::default();
        for deletion in wire.deletions {
            let entries = EntrySet::from_bits(&deletion.entries)
                .map_err(|why| WireError::invalid("entries", why))?;
            deletions.add(chunk_id(&deletion.chunk)?, &entries);
        }
        if deletions.is_empty() {
            return Err(WireError::Missing("deletions"));
        }
        let tombstone = chunk_id(&wire.tombstone)?;
        Ok(Self { dataset: dataset_id(&wire.dataset)?, tombstone, deletions })
    }
}

/// The files to read.
#[derive(Debug, Clone)]
pub struct ReadRequest {
    /// The dataset.
    pub dataset: DatasetId,
    /// At most [`READ_ITEMS_MAX`].
    pub items: Vec<ReadItem>,
    /// Whether to read the objects themselves, and to drop their copies in a fast store.
    pub pass_copies: bool,
    /// Whether a file with a damaged object header counts as corrupt.
    pub check_headers: bool,
}

impl ReadRequest {
    /// Bytes of all paths.
    pub fn path_bytes(&self) -> usize {
        let bytes = |item: &ReadItem| match &item.source {
            ReadSource::Path(path) => path.as_bytes().len(),
            ReadSource::File(_) => 0,
        };
        self.items.iter().map(bytes).sum()
    }
}

/// A file, or a range of a file.
#[derive(Debug, Clone)]
pub struct ReadItem {
    /// The file.
    pub source: ReadSource,
    /// Bytes to skip.
    pub offset: u64,
    /// Most bytes to return; `None`: to the end.
    pub length: Option<u64>,
}

/// The way to name a file.
#[derive(Debug, Clone)]
pub enum ReadSource {
    /// By its path: the live version.
    Path(FilePath),
    /// By its record in an earlier answer.
    File(FileRecord),
}

impl From<ReadRequest> for pb::ReadRequest {
    fn from(request: ReadRequest) -> Self {
        let items = request.items.into_iter().map(|item| pb::ReadItem {
            source: Some(match item.source {
                ReadSource::Path(path) => pb::read_item::Source::Path(path.into_bytes()),
                ReadSource::File(file) => pb::read_item::Source::File(file_to_wire(&file)),
            }),
            offset: item.offset,
            length: item.length.unwrap_or(0),
        });
        Self {
            dataset: id_bytes(request.dataset.as_bytes()),
            items: items.collect(),
            check_copies: false,
            pass_copies: request.pass_copies,
            check_headers: request.check_headers,
        }
    }
}

impl TryFrom<pb::ReadRequest> for ReadRequest {
    type Error = WireError;

    fn try_from(wire: pb::ReadRequest) -> Result<Self, WireError> {
        if wire.items.len() > READ_ITEMS_MAX {
            return Err(WireError::invalid("items", format!("more than {READ_ITEMS_MAX}")));
        }
        let mut items = Vec::with_capacity(wire.items.len());
        for item in wire.items {
            let source = match item.source.ok_or(WireError::Missing("source"))? {
                pb::read_item::Source::Path(path) => ReadSource::Path(file_path(path)?),
                pb::read_item::Source::File(file) => ReadSource::File(file_from_wire(&file)?),
            };
            let length = (item.length > 0).then_some(item.length);
            items.push(ReadItem { source, offset: item.offset, length });
        }
        Ok(Self {
            dataset: dataset_id(&wire.dataset)?,
            items,
            pass_copies: wire.pass_copies,
            check_headers: wire.check_headers,
        })
    }
}

/// Bytes of an item, or the reason for their absence.
#[derive(Debug, Clone)]
pub struct ReadPiece {
    /// The index of the item in the request.
    pub item: u32,
    /// The next bytes; or the kind of failure, and the reason in words.
    pub data: Result<Bytes, (Kind, String)>,
    /// Whether the piece is the last of its item.
    pub last: bool,
    /// Bytes of the whole file; in the last piece.
    pub length: u64,
    /// Checksum of the whole file; in the last piece.
    pub crc: Crc32c,
    /// The part of a large file that ends with these bytes.
    pub extent: Option<Extent>,
}

impl From<ReadPiece> for pb::ReadPiece {
    fn from(piece: ReadPiece) -> Self {
        let (status, problem, data) = match piece.data {
            Ok(data) => (pb::ItemStatus::Ok, String::new(), data),
            Err((kind, problem)) => (item_status(kind), problem, Bytes::new()),
        };
        let extent = piece.extent.map(|extent| pb::Extent {
            part: id_bytes(extent.part.as_bytes()),
            length: extent.length,
            crc: extent.crc.value(),
        });
        Self {
            item: piece.item,
            status: status.into(),
            problem,
            data,
            last: piece.last,
            length: piece.length,
            crc: piece.crc.value(),
            extent,
        }
    }
}

impl TryFrom<pb::ReadPiece> for ReadPiece {
    type Error = WireError;

    fn try_from(wire: pb::ReadPiece) -> Result<Self, WireError> {
        let kind = failure_of(wire.status());
        let extent = |wire: pb::Extent| {
            let (part, crc) = (chunk_id(&wire.part)?, Crc32c::from_value(wire.crc));
            Ok::<_, WireError>(Extent { part, length: wire.length, crc })
        };
        Ok(Self {
            item: wire.item,
            extent: wire.extent.map(extent).transpose()?,
            data: kind.map_or(Ok(wire.data), |kind| Err((kind, wire.problem))),
            last: wire.last,
            length: wire.length,
            crc: Crc32c::from_value(wire.crc),
        })
    }
}

pub(crate) fn item_status(kind: Kind) -> pb::ItemStatus {
    match kind {
        Kind::NotFound => pb::ItemStatus::NotFound,
        Kind::Conflict => pb::ItemStatus::IsFolder,
        Kind::Corrupt => pb::ItemStatus::Corrupt,
        Kind::Invalid => pb::ItemStatus::Invalid,
        Kind::Denied => pb::ItemStatus::Denied,
        Kind::NeedsRecovery => pb::ItemStatus::NeedsRecovery,
        Kind::Full | Kind::Unavailable | Kind::TimedOut | Kind::Cancelled | Kind::Internal => {
            pb::ItemStatus::Unavailable
        }
    }
}

/// The kind of failure of an item or a range; none for success.
pub(crate) fn failure_of(status: pb::ItemStatus) -> Option<Kind> {
    match status {
        pb::ItemStatus::Ok => None,
        pb::ItemStatus::NotFound => Some(Kind::NotFound),
        pb::ItemStatus::IsFolder => Some(Kind::Conflict),
        pb::ItemStatus::Corrupt => Some(Kind::Corrupt),
        pb::ItemStatus::Unavailable => Some(Kind::Unavailable),
        pb::ItemStatus::Invalid => Some(Kind::Invalid),
        pb::ItemStatus::Denied => Some(Kind::Denied),
        pb::ItemStatus::NeedsRecovery => Some(Kind::NeedsRecovery),
    }
}

/// The paths to look up.
#[derive(Debug, Clone)]
pub struct StatRequest {
    /// The dataset.
    pub dataset: DatasetId,
    /// At most [`STAT_PATHS_MAX`].
    pub paths: Vec<FilePath>,
}

impl From<StatRequest> for pb::StatRequest {
    fn from(request: StatRequest) -> Self {
        Self {
            dataset: id_bytes(request.dataset.as_bytes()),
            paths: request.paths.into_iter().map(FilePath::into_bytes).collect(),
        }
    }
}

impl TryFrom<pb::StatRequest> for StatRequest {
    type Error = WireError;

    fn try_from(wire: pb::StatRequest) -> Result<Self, WireError> {
        if wire.paths.len() > STAT_PATHS_MAX {
            return Err(WireError::invalid("paths", format!("more than {STAT_PATHS_MAX}")));
        }
        let paths = wire.paths.into_iter().map(file_path).collect::<Result<_, _>>()?;
        Ok(Self { dataset: dataset_id(&wire.dataset)?, paths })
    }
}

/// The entry at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StatItem {
    /// A file.
    File(FileRecord),
    /// A folder.
    Folder,
    /// Nothing.
    Missing,
}

impl From<StatItem> for pb::StatItem {
    fn from(item: StatItem) -> Self {
        let found = match item {
            StatItem::File(file) => Some(pb::stat_item::Found::File(file_to_wire(&file))),
            StatItem::Folder => Some(pb::stat_item::Found::Folder(true)),
            StatItem::Missing => None,
        };
        Self { found }
    }
}

impl TryFrom<pb::StatItem> for StatItem {
    type Error = WireError;

    fn try_from(wire: pb::StatItem) -> Result<Self, WireError> {
        Ok(match wire.found {
            Some(pb::stat_item::Found::File(file)) => Self::File(file_from_wire(&file)?),
            Some(pb::stat_item::Found::Folder(_)) => Self::Folder,
            None => Self::Missing,
        })
    }
}

/// The entries to list.
#[derive(Debug, Clone)]
pub struct ListRequest {
    /// The dataset.
    pub dataset: DatasetId,
    /// The folder.
    pub dir: DirPath,
    /// All files below, instead of the direct files and folders.
    pub recursive: bool,
    /// Start behind this path; a folder's path ends in a slash.
    pub after: Option<Bytes>,
    /// Only paths, without records.
    pub names_only: bool,
}

impl From<ListRequest> for pb::ListRequest {
    fn from(request: ListRequest) -> Self {
        Self {
            dataset: id_bytes(request.dataset.as_bytes()),
            dir: Bytes::copy_from_slice(request.dir.as_bytes()),
            recursive: request.recursive,
            after: request.after.unwrap_or_default(),
            names_only: request.names_only,
        }
    }
}

impl TryFrom<pb::ListRequest> for ListRequest {
    type Error = WireError;

    fn try_from(wire: pb::ListRequest) -> Result<Self, WireError> {
        Ok(Self {
            dataset: dataset_id(&wire.dataset)?,
            dir: DirPath::new(wire.dir).map_err(|why| WireError::invalid("dir", why))?,
            recursive: wire.recursive,
            after: (!wire.after.is_empty()).then_some(wire.after),
            names_only: wire.names_only,
        })
    }
}

/// An entry of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListEntry {
    /// A file; without its record if only names were requested.
    File(FilePath, Option<FileRecord>),
    /// A folder.
    Folder(FilePath),
}

impl From<ListEntry> for pb::ListEntry {
    fn from(entry: ListEntry) -> Self {
        match entry {
            ListEntry::File(path, file) => {
                Self { path: path.into_bytes(), file: file.as_ref().map(file_to_wire) }
            }
            ListEntry::Folder(path) => {
                let mut bytes = path.as_bytes().to_vec();
                bytes.push(b'/');
                Self { path: bytes.into(), file: None }
            }
        }
    }
}

impl TryFrom<pb::ListEntry> for ListEntry {
    type Error = WireError;

    fn try_from(wire: pb::ListEntry) -> Result<Self, WireError> {
        if let Some(folder) = wire.path.strip_suffix(b"/") {
            return Ok(Self::Folder(file_path(wire.path.slice_ref(folder))?));
        }
        let file = wire.file.as_ref().map(file_from_wire).transpose()?;
        Ok(Self::File(file_path(wire.path)?, file))
    }
}

/// The metadata to rebuild.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoverRequest {
    /// One dataset; `None`: every dataset found in the chunk store.
    pub dataset: Option<DatasetName>,
    /// Check only objects sealed since this time.
    pub since: Option<Stamp>,
}

impl From<RecoverRequest> for pb::RecoverRequest {
    fn from(request: RecoverRequest) -> Self {
        Self {
            dataset: request.dataset.map_or(String::new(), |name| name.as_str().to_owned()),
            since: request.since.unwrap_or_default().get(),
        }
    }
}

impl TryFrom<pb::RecoverRequest> for RecoverRequest {
    type Error = WireError;

    fn try_from(wire: pb::RecoverRequest) -> Result<Self, WireError> {
        let dataset = match wire.dataset.as_str() {
            "" => None,
            name => Some(DatasetName::new(name).map_err(|why| WireError::invalid("dataset", why))?),
        };
        Ok(Self { dataset, since: (wire.since > 0).then_some(Stamp::new(wire.since)) })
    }
}

fn file_to_wire(file: &FileRecord) -> pb::File {
    let origin = (file.version != file.holder).then(|| pb::Origin {
        chunk: id_bytes(file.version.chunk.as_bytes()),
        stamp: file.version.stamp.get(),
        entry: file.version.entry,
    });
    pb::File {
        chunk: id_bytes(file.holder.chunk.as_bytes()),
        stamp: file.holder.stamp.get(),
        entry: file.holder.entry,
        offset: file.offset,
        stored: file.stored,
        length: file.length,
        crc: file.crc.value(),
        mtime: file.attributes.mtime,
        mode: file.attributes.mode.into(),
        has_extents: file.has_extents,
        origin,
    }
}

fn file_from_wire(wire: &pb::File) -> Result<FileRecord, WireError> {
    let holder = EntryVersion {
        stamp: Stamp::new(wire.stamp),
        chunk: chunk_id(&wire.chunk)?,
        entry: wire.entry,
    };
    let version = match &wire.origin {
        None => holder,
        Some(origin) => EntryVersion {
            stamp: Stamp::new(origin.stamp),
            chunk: chunk_id(&origin.chunk)?,
            entry: origin.entry,
        },
    };
    let mode = u16::try_from(wire.mode).map_err(|why| WireError::invalid("mode", why))?;
    let end = u64::from(wire.offset) + u64::from(wire.stored);
    if end > u64::from(CHUNK_SIZE_MAX) || u64::from(wire.stored) > wire.length {
        return Err(WireError::invalid("file", "it lies outside of what a chunk can hold"));
    }
    if wire.has_extents != (wire.length > u64::from(wire.stored)) {
        return Err(WireError::invalid("file", "its length is not that of its parts"));
    }
    Ok(FileRecord {
        version,
        holder,
        attributes: Attributes { mode, mtime: wire.mtime },
        length: wire.length,
        crc: Crc32c::from_value(wire.crc),
        offset: wire.offset,
        stored: wire.stored,
        has_extents: wire.has_extents,
    })
}

pub(crate) fn id_bytes(id: &[u8; 16]) -> Bytes {
    Bytes::copy_from_slice(id)
}

pub(crate) fn dataset_id(bytes: &[u8]) -> Result<DatasetId, WireError> {
    let id = bytes.try_into().map_err(|_| WireError::invalid("dataset", "an id has 16 bytes"))?;
    Ok(DatasetId::from_bytes(id))
}

pub(crate) fn chunk_id(bytes: &[u8]) -> Result<ChunkId, WireError> {
    let id = bytes.try_into().map_err(|_| WireError::invalid("chunk", "an id has 16 bytes"))?;
    Ok(ChunkId::from_bytes(id))
}

fn file_path(bytes: Bytes) -> Result<FilePath, WireError> {
    FilePath::new(bytes).map_err(|why| WireError::invalid("path", why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_exceeds_its_chunk_only_with_extents() {
        let file = |has_extents, stored, length| pb::File {
            chunk: id_bytes(&[7; 16]),
            offset: 4096,
            stored,
            length,
            has_extents,
            ..pb::File::default()
        };
        for (has_extents, stored, length) in [(false, 5, 5), (false, 0, 0), (true, 0, 1)] {
            let record = file_from_wire(&file(has_extents, stored, length)).unwrap();
            assert_eq!((record.stored, record.length), (stored, length));
        }
        for (has_extents, stored, length) in
            [(true, 0, 0), (true, 5, 5), (true, 5, 4), (false, 5, 6), (false, 5, 4)]
        {
            assert!(file_from_wire(&file(has_extents, stored, length)).is_err());
        }
    }
}
