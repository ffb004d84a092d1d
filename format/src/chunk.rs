//! Packing: files go into one buffer behind room for the header, which is put right before them
//! when the chunk is sealed, so that no byte is moved twice (paper, 4.1, Figure 5).

use std::io;

use crate::checksum::Crc32c;
use crate::entry::{Attributes, Extent, Origin};
use crate::error::PackError;
use crate::header::ObjectKind;
use crate::id::{ChunkId, DatasetId, Stamp};
use crate::layout::{
    ALIGNMENT_DEFAULT, ALIGNMENT_MAX, CHUNK_SIZE_DEFAULT, CHUNK_SIZE_MAX, CHUNK_SIZE_MIN,
    CODEC_NONE, ENTRIES_MAX, ENTRY_LEN, EXTENT_LEN, FLAG_EXTENTS, FORMAT_VERSION, HEADER_MAX,
    KIND_CHUNK, KIND_PART, KIND_TOMBSTONE, MAGIC, PAGE, PRELUDE_LEN, SECTION_ENTRIES,
    SECTION_EXTENTS, SECTION_LEN, SECTION_NAMES, SECTION_ORIGINS, SECTION_PAYLOAD,
    SECTION_REPLACES, TYPE_FILE, round_up,
};
use crate::path::FilePath;

/// The size and alignment of a dataset's chunks: fixed when the dataset is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkShape {
    size: u32,
    alignment: u32,
}

impl ChunkShape {
    /// Chunks of at most `size` bytes, header included, with files at multiples of `alignment`.
    ///
    /// # Errors
    /// [`PackError::Shape`] for numbers outside of docs/FORMAT.md.
    pub fn new(size: u32, alignment: u32) -> Result<Self, PackError> {
        let size_fits = size.is_power_of_two() && (CHUNK_SIZE_MIN..=CHUNK_SIZE_MAX).contains(&size);
        let alignment_fits = alignment.is_power_of_two() && alignment <= ALIGNMENT_MAX;
        if size_fits && alignment_fits {
            Ok(Self { size, alignment })
        } else {
            Err(PackError::Shape)
        }
    }

    /// Most bytes of a chunk, header included.
    pub fn size(self) -> u32 {
        self.size
    }

    /// Files start at multiples of this many bytes.
    pub fn alignment(self) -> u32 {
        self.alignment
    }

    /// Most bytes of a file that is never cut: what one chunk holds beside a header for its path.
    pub fn largest_file(self, path: &FilePath) -> u64 {
        let header = head_length(2, ENTRY_LEN.saturating_add(path.as_bytes().len()));
        u64::from(self.size).saturating_sub(header as u64)
    }

    /// Bytes of a large file in each part but the last.
    pub fn part_length(self) -> u32 {
        self.size.saturating_sub(PAGE as u32)
    }
}

impl Default for ChunkShape {
    fn default() -> Self {
        Self { size: CHUNK_SIZE_DEFAULT, alignment: ALIGNMENT_DEFAULT }
    }
}

/// Where the payload begins in a packing buffer: room for the longest header.
const ROOM: usize = HEADER_MAX;

/// Packs files into one chunk.
#[derive(Debug)]
pub struct ChunkWriter {
    shape: ChunkShape,
    /// [`ROOM`] bytes for the header, then the payload.
    buffer: Vec<u8>,
    entries: Vec<u8>,
    names: Vec<u8>,
    /// One for each entry; without a section when no entry has one.
    origins: Vec<Option<Origin>>,
    rewritten: bool,
    extents: Vec<Extent>,
    count: u32,
    file_bytes: u64,
}

impl ChunkWriter {
    /// An empty chunk. `buffer` is scratch memory to use again, of any content.
    pub fn new(shape: ChunkShape, mut buffer: Vec<u8>) -> Self {
        buffer.resize(ROOM, 0);
        buffer.reserve_exact(shape.size as usize);
        Self {
            shape,
            buffer,
            entries: Vec::new(),
            names: Vec::new(),
            origins: Vec::new(),
            rewritten: false,
            extents: Vec::new(),
            count: 0,
            file_bytes: 0,
        }
    }

    /// Whether no file was added yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// How many files were added.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of the files that were added.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Whether a file of `length` bytes still has room.
    pub fn fits(&self, path: &FilePath, length: u64) -> bool {
        let names = self.names.len().saturating_add(path.as_bytes().len());
        let rows = self.entries.len().saturating_add(ENTRY_LEN);
        let origins = if self.rewritten {
            self.origins.len().saturating_mul(24).saturating_add(28)
        } else {
            0
        };
        let header = head_length(4, rows.saturating_add(names).saturating_add(origins));
        let payload = self.aligned_end().saturating_sub(ROOM) as u64;
        header <= HEADER_MAX
            && (self.count as usize) < ENTRIES_MAX
            && (header as u64).saturating_add(payload).saturating_add(length)
                <= u64::from(self.shape.size)
    }

    /// Adds a file.
    ///
    /// # Errors
    /// [`PackError::Full`] when it fits only into a fresh chunk, [`PackError::TooLarge`] when it
    /// fits into none. Nothing is added then.
    pub fn append(
        &mut self,
        path: &FilePath,
        attributes: Attributes,
        data: &[u8],
    ) -> Result<(), PackError> {
        self.make_room(path, data.len() as u64)?;
        // Before the copy: it brings the source into the cache for it.
        let crc = Crc32c::of(data);
        let start = self.begin();
        self.buffer.extend_from_slice(data);
        self.push(path, attributes, crc, start, None);
        Ok(())
    }

    /// Adds a file that an earlier chunk held, under the version it had there.
    ///
    /// # Errors
    /// As [`ChunkWriter::append`].
    pub fn rewrite(
        &mut self,
        path: &FilePath,
        attributes: Attributes,
        data: &[u8],
        origin: Origin,
    ) -> Result<(), PackError> {
        // From here on each entry needs room for its origin.
        self.rewritten = true;
        self.make_room(path, data.len() as u64)?;
        let crc = Crc32c::of(data);
        let start = self.begin();
        self.buffer.extend_from_slice(data);
        self.push(path, attributes, crc, start, Some(origin));
        Ok(())
    }

    /// Adds a file of `length` bytes that `fill` appends to the buffer it is given.
    ///
    /// # Errors
    /// The outer one is the source's. The inner ones are [`ChunkWriter::append`]'s, and
    /// [`PackError::LengthChanged`] when `fill` did not append exactly `length` bytes; nothing is
    /// added then.
    pub fn append_with(
        &mut self,
        path: &FilePath,
        attributes: Attributes,
        length: u64,
        fill: impl FnOnce(&mut Vec<u8>) -> io::Result<()>,
    ) -> io::Result<Result<(), PackError>> {
        if let Err(error) = self.make_room(path, length) {
            return Ok(Err(error));
        }
        let before = self.buffer.len();
        let start = self.begin();
        let filled = fill(&mut self.buffer);
        let got = self.buffer.len().checked_sub(start);
        if filled.is_err() || got.map(|got| got as u64) != Some(length) {
            self.buffer.truncate(before);
            return filled.map(|()| Err(PackError::LengthChanged));
        }
        let crc = Crc32c::of(self.buffer.get(start..).unwrap_or_default());
        self.push(path, attributes, crc, start, None);
        Ok(Ok(()))
    }

    /// Makes this the last chunk of a large file: `tail` are its last bytes, `extents` the parts
    /// before them, in order. The chunk holds nothing else.
    ///
    /// # Errors
    /// [`PackError::Full`] when the chunk is not empty, [`PackError::TooManyParts`] when the
    /// header can't list them, [`PackError::TooLarge`] when `tail` has no room.
    pub fn append_tail(
        &mut self,
        path: &FilePath,
        attributes: Attributes,
        extents: Vec<Extent>,
        tail: &[u8],
    ) -> Result<(), PackError> {
        if !self.is_empty() || extents.is_empty() {
            return Err(PackError::Full);
        }
        let list = extents.len().saturating_mul(EXTENT_LEN);
        let header =
            head_length(3, ENTRY_LEN.saturating_add(path.as_bytes().len()).saturating_add(list));
        if header > HEADER_MAX {
            return Err(PackError::TooManyParts);
        }
        if (header as u64).saturating_add(tail.len() as u64) > u64::from(self.shape.size) {
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
        let start = self.begin();
        self.buffer.extend_from_slice(tail);
        self.extents = extents;
        self.push(path, attributes, crc, start, None);
        Ok(())
    }

    /// Ends the chunk.
    pub fn seal(self, id: ChunkId, dataset: DatasetId) -> Sealed {
        self.seal_replacing(id, dataset, &[])
    }

    /// Ends a rewritten chunk that replaces others.
    pub fn seal_replacing(
        mut self,
        id: ChunkId,
        dataset: DatasetId,
        replaces: &[ChunkId],
    ) -> Sealed {
        let mut head = HeadWriter::new(ObjectKind::Chunk, id, dataset);
        let rows_length = self.entries.len();
        head.section(SECTION_ENTRIES, self.entries);
        head.section(SECTION_NAMES, self.names);
        if self.rewritten {
            head.section(SECTION_ORIGINS, encode_origins(&self.origins));
        }
        if !replaces.is_empty() {
            head.section(SECTION_REPLACES, replaces.iter().flat_map(|id| *id.as_bytes()).collect());
        }
        if !self.extents.is_empty() {
            head.section(SECTION_EXTENTS, encode_extents(&self.extents));
        }
        let length = head.length();
        // Entries were written as if the payload began at zero; now its place is known.
        shift_offsets(&mut head, rows_length, length);
        let start = ROOM.saturating_sub(length);
        let object_length = self.buffer.len().saturating_sub(start) as u64;
        if let Some(slot) = self.buffer.get_mut(start..ROOM) {
            head.write(slot, object_length, self.count, self.file_bytes);
        }
        Sealed { buffer: self.buffer, start }
    }

    fn make_room(&self, path: &FilePath, length: u64) -> Result<(), PackError> {
        if self.fits(path, length) {
            Ok(())
        } else if length > self.shape.largest_file(path) {
            Err(PackError::TooLarge)
        } else {
            Err(PackError::Full)
        }
    }

    fn aligned_end(&self) -> usize {
        round_up(self.buffer.len(), self.shape.alignment as usize)
    }

    /// Pads to the alignment; gives where the file's bytes begin.
    fn begin(&mut self) -> usize {
        let start = self.aligned_end();
        self.buffer.resize(start, 0);
        start
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
        self.origins.push(origin);
        self.rewritten |= origin.is_some();
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
        head.payload = Some((narrow(data.len()), crc));
        let length = head.length();
        let mut buffer = Vec::with_capacity(length.saturating_add(data.len()));
        buffer.resize(length, 0);
        head.write(&mut buffer, length.saturating_add(data.len()) as u64, 0, data.len() as u64);
        buffer.extend_from_slice(data);
        Ok((Self { buffer, start: 0 }, Extent { part: id, length: narrow(data.len()), crc }))
    }

    /// The object's bytes.
    pub fn as_slice(&self) -> &[u8] {
        self.buffer.get(self.start..).unwrap_or_default()
    }

    /// The memory, and where in it the object begins.
    pub fn into_parts(self) -> (Vec<u8>, usize) {
        (self.buffer, self.start)
    }
}

/// Collects the sections of a header and writes them with their table.
#[derive(Debug)]
pub(crate) struct HeadWriter {
    kind: ObjectKind,
    id: ChunkId,
    dataset: DatasetId,
    sections: Vec<(u32, Vec<u8>)>,
    payload: Option<(u32, Crc32c)>,
}

impl HeadWriter {
    pub(crate) fn new(kind: ObjectKind, id: ChunkId, dataset: DatasetId) -> Self {
        Self { kind, id, dataset, sections: Vec::new(), payload: None }
    }

    pub(crate) fn section(&mut self, kind: u32, body: Vec<u8>) {
        self.sections.push((kind, body));
    }

    fn rows(&self) -> usize {
        self.sections.len().saturating_add(usize::from(self.payload.is_some()))
    }

    /// Bytes of the header, padding included.
    pub(crate) fn length(&self) -> usize {
        let bodies = self.sections.iter().map(|(_, body)| body.len()).sum();
        head_length(self.rows(), bodies)
    }

    /// Fills `slot`, which has exactly [`HeadWriter::length`] bytes.
    pub(crate) fn write(
        &self,
        slot: &mut [u8],
        object_length: u64,
        entry_count: u32,
        file_bytes: u64,
    ) {
        slot.fill(0);
        let mut table = Vec::with_capacity(self.rows().saturating_mul(SECTION_LEN));
        let mut offset = PRELUDE_LEN.saturating_add(self.rows().saturating_mul(SECTION_LEN));
        for (kind, body) in &self.sections {
            let row = [*kind, narrow(offset), narrow(body.len()), Crc32c::of(body).value()];
            table.extend(row.into_iter().flat_map(u32::to_le_bytes));
            if let Some(place) = slot.get_mut(offset..offset.saturating_add(body.len())) {
                place.copy_from_slice(body);
            }
            offset = offset.saturating_add(body.len());
        }
        if let Some((length, crc)) = self.payload {
            let row = [SECTION_PAYLOAD, narrow(slot.len()), length, crc.value()];
            table.extend(row.into_iter().flat_map(u32::to_le_bytes));
        }
        let kind = match self.kind {
            ObjectKind::Chunk => KIND_CHUNK,
            ObjectKind::Part => KIND_PART,
            ObjectKind::Tombstone => KIND_TOMBSTONE,
        };
        let mut prelude = [0; 92];
        let mut put = FieldWriter(&mut prelude);
        put.field(&MAGIC);
        put.field(&FORMAT_VERSION.to_le_bytes());
        put.field(&kind.to_le_bytes());
        put.field(&[0; 8]);
        put.field(&narrow(self.rows()).to_le_bytes());
        put.field(self.id.as_bytes());
        put.field(self.dataset.as_bytes());
        put.field(&narrow(slot.len()).to_le_bytes());
        put.field(&entry_count.to_le_bytes());
        put.field(&object_length.to_le_bytes());
        put.field(&file_bytes.to_le_bytes());
        let crc = Crc32c::of(&prelude).then(Crc32c::of(&table), table.len() as u64);
        let mut put = FieldWriter(slot);
        put.field(&prelude);
        put.field(&crc.value().to_le_bytes());
        put.field(&[0; 32]);
        put.field(&table);
    }
}

/// Writes fields one after the other into memory of the right size.
#[derive(Debug)]
pub(crate) struct FieldWriter<'a>(pub(crate) &'a mut [u8]);

impl FieldWriter<'_> {
    pub(crate) fn field(&mut self, bytes: &[u8]) {
        let memory = std::mem::take(&mut self.0);
        if let Some((place, rest)) = memory.split_at_mut_checked(bytes.len()) {
            place.copy_from_slice(bytes);
            self.0 = rest;
        }
    }
}

fn head_length(sections: usize, bodies: usize) -> usize {
    let table = sections.saturating_mul(SECTION_LEN);
    round_up(PRELUDE_LEN.saturating_add(table).saturating_add(bodies), PAGE)
}

fn shift_offsets(head: &mut HeadWriter, rows_length: usize, header_length: usize) {
    let Some((SECTION_ENTRIES, rows)) = head.sections.first_mut() else { return };
    debug_assert_eq!(rows.len(), rows_length, "the first section holds the entries");
    for row in rows.chunks_exact_mut(ENTRY_LEN) {
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

/// Lengths and offsets inside an object are bounded by 64 MiB.
fn narrow(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Lengths of paths are bounded by 4,096.
fn narrow16(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}
