//! Packing: files go into one buffer, behind space for the header. Sealing writes the header right
//! before the files, so no byte is moved twice (paper, 4.1, Figure 5).
//!
//! Must hold: a file is added completely or not at all, and a sealed chunk passes
//! [`Verified::check`](crate::Verified::check).

use crate::checksum::{CopyChecked, Crc32c};
use crate::encode::{FieldWriter, HeadWriter, head_length, narrow};
use crate::entry::{Attributes, Extent, Origin};
use crate::error::PackError;
use crate::id::{ChunkId, DatasetId, Stamp};
use crate::kind::ObjectKind;
use crate::layout::{
    CODEC_NONE, ENTRIES_MAX, ENTRY_LEN, EXTENT_LEN, FLAG_EXTENTS, HEADER_MAX, ID_LEN,
    ORIGIN_COUNT_LEN, ORIGIN_LEN, SECTION_ENTRIES, SECTION_EXTENTS, SECTION_NAMES, SECTION_ORIGINS,
    SECTION_REPLACES, TYPE_FILE, round_up,
};
use crate::path::FilePath;
use crate::shape::ChunkShape;

/// Offset of the payload in a packing buffer: space for the longest header.
const ROOM: usize = HEADER_MAX;

/// Packs files into one chunk.
#[derive(Debug)]
pub struct ChunkWriter {
    shape: ChunkShape,
    /// [`ROOM`] bytes for the header, then the payload.
    buffer: Vec<u8>,
    entries: Vec<u8>,
    names: Vec<u8>,
    /// Empty until the first rewritten file, then one value for each entry.
    origins: Vec<Option<Origin>>,
    replaces: Vec<ChunkId>,
    extents: Vec<Extent>,
    count: u32,
    file_bytes: u64,
    copy: Option<CopyChecked>,
}

impl ChunkWriter {
    /// An empty chunk. `buffer` is memory to reuse, with any content.
    pub fn new(shape: ChunkShape, mut buffer: Vec<u8>) -> Self {
        // Old bytes in the header space are overwritten when the chunk is sealed.
        buffer.truncate(ROOM);
        let whole = Self::buffer_length(shape);
        buffer.reserve_exact(whole.saturating_sub(buffer.len()));
        buffer.resize(ROOM, 0);
        Self {
            shape,
            buffer,
            entries: Vec::new(),
            names: Vec::new(),
            origins: Vec::new(),
            replaces: Vec::new(),
            extents: Vec::new(),
            count: 0,
            file_bytes: 0,
            copy: None,
        }
    }

    /// Sets the function for copying files, which must return the CRC-32C of the appended bytes.
    #[must_use]
    pub fn copied_by(mut self, copy: Option<CopyChecked>) -> Self {
        self.copy = copy;
        self
    }

    /// The memory for packing a chunk, in bytes.
    pub fn buffer_length(shape: ChunkShape) -> usize {
        ROOM.saturating_add(shape.size() as usize)
    }

    /// Whether the chunk has no file yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The number of added files.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of the added files.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// The used share of the chunk's bytes or of the longest header, in thousandths: the larger share.
    pub fn fill(&self) -> u64 {
        let header = self.header_length(0, 0, !self.origins.is_empty(), 0) as u64;
        let payload = self.buffer.len().saturating_sub(ROOM) as u64;
        let share = |used: u64, of: u64| used.saturating_mul(1_000).checked_div(of).unwrap_or(0);
        let of_bytes = share(header.saturating_add(payload), self.shape.size().into());
        of_bytes.max(share(header, HEADER_MAX as u64))
    }

    /// Whether there is room for a file of `length` bytes.
    pub fn fits(&self, path: &FilePath, length: u64) -> bool {
        self.has_room(path, length, false)
    }

    /// Adds a file.
    ///
    /// # Errors
    /// [`PackError::Full`] if the file fits only into a fresh chunk, [`PackError::TooLarge`] if it
    /// fits into no chunk. Nothing is added then.
    pub fn append(
        &mut self,
        path: &FilePath,
        attributes: Attributes,
        data: &[u8],
    ) -> Result<(), PackError> {
        self.make_room(path, data.len() as u64, false)?;
        self.add(path, attributes, data, None);
        Ok(())
    }

    /// Adds a file of an earlier chunk, under its earlier version.
    ///
    /// # Errors
    /// As [`ChunkWriter::append`], and [`PackError::Origin`] for a version impossible in a
    /// committed chunk.
    pub fn rewrite(
        &mut self,
        path: &FilePath,
        attributes: Attributes,
        data: &[u8],
        origin: Origin,
    ) -> Result<(), PackError> {
        if origin.stamp == Stamp::default() || origin.entry as usize >= ENTRIES_MAX {
            return Err(PackError::Origin);
        }
        self.make_room(path, data.len() as u64, true)?;
        self.add(path, attributes, data, Some(origin));
        Ok(())
    }

    /// Records an earlier chunk whose files are copied into this chunk and its siblings.
    ///
    /// # Errors
    /// [`PackError::Full`] if the header has no room for the id. Nothing is added then.
    pub fn replace(&mut self, chunk: ChunkId) -> Result<(), PackError> {
        let replaces = self.replaces.len().saturating_add(1);
        let header = self.header_length(0, 0, !self.origins.is_empty(), replaces);
        if !self.holds(header, self.buffer.len(), 0) {
            return Err(PackError::Full);
        }
        self.replaces.push(chunk);
        Ok(())
    }

    /// Makes this the last chunk of a large file: `tail` are its last bytes, `extents` the parts
    /// before them, in order. The chunk has no other file.
    ///
    /// # Errors
    /// [`PackError::Full`] if the chunk is not empty, [`PackError::Empty`] if the parts have no
    /// bytes, [`PackError::TooManyParts`] if the header can't list them. [`PackError::TooLarge`] if
    /// `tail` has no room beside them: then make the tail a part too, and end with an empty tail.
    pub fn append_tail(
        &mut self,
        path: &FilePath,
        attributes: Attributes,
        extents: Vec<Extent>,
        tail: &[u8],
    ) -> Result<(), PackError> {
        if !self.is_empty() || !self.replaces.is_empty() {
            return Err(PackError::Full);
        }
        if !extents.is_empty() && extents.iter().all(|extent| extent.length == 0) {
            return Err(PackError::Empty);
        }
        if extents.is_empty() {
            self.make_room(path, tail.len() as u64, false)?;
        }
        let list = extents.len().saturating_mul(EXTENT_LEN);
        let header =
            head_length(3, ENTRY_LEN.saturating_add(path.as_bytes().len()).saturating_add(list));
        if header > HEADER_MAX {
            return Err(PackError::TooManyParts);
        }
        if (header as u64).saturating_add(tail.len() as u64) > u64::from(self.shape.size()) {
            return Err(PackError::TooLarge);
        }
        let own = Crc32c::of(tail);
        let mut crc = None;
        for extent in &extents {
            crc = Some(
                crc.map_or(extent.crc, |crc: Crc32c| crc.then(extent.crc, extent.length.into())),
            );
        }
        let crc = crc.map_or(own, |crc| crc.then(own, tail.len() as u64));
        let start = self.begin(tail.len());
        self.buffer.extend_from_slice(tail);
        self.extents = extents;
        self.push(path, attributes, crc, start, None);
        Ok(())
    }

    /// Ends the chunk. A chunk without files is no object: check [`ChunkWriter::is_empty`] first.
    pub fn seal(mut self, id: ChunkId, dataset: DatasetId) -> Sealed {
        let mut head = HeadWriter::new(ObjectKind::Chunk, id, dataset);
        head.section(SECTION_ENTRIES, self.entries);
        head.section(SECTION_NAMES, self.names);
        if !self.origins.is_empty() {
            head.section(SECTION_ORIGINS, encode_origins(&self.origins));
        }
        if !self.replaces.is_empty() {
            let ids = self.replaces.iter().flat_map(|id| *id.as_bytes()).collect();
            head.section(SECTION_REPLACES, ids);
        }
        if !self.extents.is_empty() {
            head.section(SECTION_EXTENTS, encode_extents(&self.extents));
        }
        let length = head.length();
        // Offsets in entries assumed a payload at zero; now its offset is known.
        if let Some(rows) = head.body_mut(SECTION_ENTRIES) {
            shift_offsets(rows, length);
        }
        let start = ROOM.saturating_sub(length);
        let object_length = self.buffer.len().saturating_sub(start) as u64;
        if let Some(slot) = self.buffer.get_mut(start..ROOM) {
            head.write(slot, object_length, self.count, self.file_bytes);
        }
        Sealed { buffer: self.buffer, start }
    }

    /// Bytes of the header with another row and its name, if `row` is not zero.
    fn header_length(&self, row: usize, name: usize, rewritten: bool, replaces: usize) -> usize {
        let mut sections = 2usize;
        let mut bodies = self.entries.len().saturating_add(row);
        let rows = bodies / ENTRY_LEN;
        bodies = bodies.saturating_add(self.names.len()).saturating_add(name);
        if rewritten {
            sections = sections.saturating_add(1);
            // At worst each file comes from another chunk.
            let each = rows.saturating_mul(ORIGIN_LEN.saturating_add(ID_LEN));
            bodies = bodies.saturating_add(ORIGIN_COUNT_LEN).saturating_add(each);
        }
        if replaces > 0 {
            sections = sections.saturating_add(1);
            bodies = bodies.saturating_add(replaces.saturating_mul(ID_LEN));
        }
        head_length(sections, bodies)
    }

    /// Whether the chunk has room for `more` bytes behind `end` of the buffer with the given
    /// header.
    fn holds(&self, header: usize, end: usize, more: u64) -> bool {
        let payload = end.saturating_sub(ROOM) as u64;
        header <= HEADER_MAX
            && (header as u64).saturating_add(payload).saturating_add(more)
                <= u64::from(self.shape.size())
    }

    fn has_room(&self, path: &FilePath, length: u64, rewrite: bool) -> bool {
        let rewritten = rewrite || !self.origins.is_empty();
        let name = path.as_bytes().len();
        let header = self.header_length(ENTRY_LEN, name, rewritten, self.replaces.len());
        self.extents.is_empty()
            && (self.count as usize) < ENTRIES_MAX
            && self.holds(header, self.start_of(length), length)
    }

    fn make_room(&self, path: &FilePath, length: u64, rewrite: bool) -> Result<(), PackError> {
        if length > self.shape.largest_file(path) {
            Err(PackError::TooLarge)
        } else if self.has_room(path, length, rewrite) {
            Ok(())
        } else {
            Err(PackError::Full)
        }
    }

    /// Offset in the buffer for a file of `length` bytes.
    fn start_of(&self, length: u64) -> usize {
        round_up(self.buffer.len(), self.shape.alignment_of(length) as usize)
    }

    /// Pads to the alignment; returns the offset of the file's bytes.
    fn begin(&mut self, length: usize) -> usize {
        let start = self.start_of(length as u64);
        self.buffer.resize(start, 0);
        start
    }

    fn add(
        &mut self,
        path: &FilePath,
        attributes: Attributes,
        data: &[u8],
        origin: Option<Origin>,
    ) {
        let start = self.begin(data.len());
        let crc = match self.copy {
            Some(copy) => Crc32c::from_value(copy(data, &mut self.buffer)),
            None => Crc32c::of_copied(data, &mut self.buffer),
        };
        self.push(path, attributes, crc, start, origin);
    }

    fn push(
        &mut self,
        path: &FilePath,
        attributes: Attributes,
        crc: Crc32c,
        start: usize,
        origin: Option<Origin>,
    ) {
        let name = path.as_bytes();
        let stored = self.buffer.len().saturating_sub(start);
        let earlier: u64 = self.extents.iter().map(|extent| u64::from(extent.length)).sum();
        let flags = if self.extents.is_empty() { 0 } else { FLAG_EXTENTS };
        let mut row = [0; ENTRY_LEN];
        let mut put = FieldWriter(&mut row);
        put.field(&[TYPE_FILE, CODEC_NONE]);
        put.field(&(attributes.mode & 0o7777).to_le_bytes());
        put.field(&narrow16(name.len()).to_le_bytes());
        put.field(&flags.to_le_bytes());
        put.field(&narrow(self.names.len()).to_le_bytes());
        put.field(&crc.value().to_le_bytes());
        put.field(&narrow(start.saturating_sub(ROOM)).to_le_bytes());
        put.field(&narrow(stored).to_le_bytes());
        put.field(&earlier.saturating_add(stored as u64).to_le_bytes());
        put.field(&attributes.mtime.to_le_bytes());
        put.field(&origin.map_or(Stamp::default(), |origin| origin.stamp).get().to_le_bytes());
        self.entries.extend_from_slice(&row);
        self.names.extend_from_slice(name);
        if origin.is_some() || !self.origins.is_empty() {
            self.origins.resize(self.count as usize, None);
            self.origins.push(origin);
        }
        self.count = self.count.saturating_add(1);
        self.file_bytes = self.file_bytes.saturating_add(stored as u64);
    }
}

/// A finished chunk, not yet committed.
#[derive(Debug)]
pub struct Sealed {
    buffer: Vec<u8>,
    start: usize,
}

impl Sealed {
    /// A part of a large file: at most [`ChunkShape::part_length`] bytes.
    ///
    /// # Errors
    /// [`PackError::TooLarge`] for more.
    pub fn part(
        shape: ChunkShape,
        id: ChunkId,
        dataset: DatasetId,
        data: &[u8],
    ) -> Result<(Self, Extent), PackError> {
        if data.len() > shape.part_length() as usize {
            return Err(PackError::TooLarge);
        }
        let crc = Crc32c::of(data);
        let mut head = HeadWriter::new(ObjectKind::Part, id, dataset);
        head.payload(narrow(data.len()), crc);
        let length = head.length();
        let mut buffer = Vec::with_capacity(length.saturating_add(data.len()));
        buffer.resize(length, 0);
        head.write(&mut buffer, length.saturating_add(data.len()) as u64, 0, data.len() as u64);
        buffer.extend_from_slice(data);
        Ok((Self { buffer, start: 0 }, Extent { part: id, length: narrow(data.len()), crc }))
    }

    /// The bytes of the object.
    pub fn as_slice(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }

    /// The memory, and the offset of the object.
    pub fn into_parts(self) -> (Vec<u8>, usize) {
        (self.buffer, self.start)
    }
}

fn shift_offsets(rows: &mut [u8], header_length: usize) {
    for row in rows.as_chunks_mut::<ENTRY_LEN>().0 {
        if let Some(field) = row.get_mut(16..20).and_then(|field| field.first_chunk_mut::<4>()) {
            let offset = u32::from_le_bytes(*field).saturating_add(narrow(header_length));
            *field = offset.to_le_bytes();
        }
    }
}

fn encode_origins(origins: &[Option<Origin>]) -> Vec<u8> {
    let mut ids: Vec<ChunkId> = origins.iter().flatten().map(|origin| origin.chunk).collect();
    ids.sort_unstable();
    ids.dedup();
    let mut bytes = Vec::new();
    bytes.extend(narrow(ids.len()).to_le_bytes());
    bytes.extend(ids.iter().flat_map(|id| *id.as_bytes()));
    for origin in origins {
        let index = origin.map_or(0, |origin| ids.binary_search(&origin.chunk).unwrap_or_default());
        bytes.extend(narrow(index).to_le_bytes());
        bytes.extend(origin.map_or(0, |origin| origin.entry).to_le_bytes());
    }
    bytes
}

fn encode_extents(extents: &[Extent]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(extents.len().saturating_mul(EXTENT_LEN));
    for extent in extents {
        bytes.extend(extent.part.as_bytes());
        bytes.extend(extent.length.to_le_bytes());
        bytes.extend(extent.crc.value().to_le_bytes());
    }
    bytes
}

/// Lengths of paths are bounded by 4,096.
fn narrow16(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}
