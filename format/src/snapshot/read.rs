//! Reading a snapshot in place.
//!
//! Must hold: [`Snapshot::open`] checks that every section lies inside the bytes and has the length
//! given by the counts. The contents of sections are checked where they are used, and all at once
//! by [`Snapshot::verify`].

use std::ops::Range;

use crate::checksum::Crc32c;
use crate::decode::{Cursor, check_version};
use crate::entry::{Attributes, Extent};
use crate::error::DecodeError;
use crate::id::{ChunkId, DatasetId, Stamp};
use crate::layout::SNAPSHOT_MAGIC;
use crate::shape::ChunkShape;
use crate::version::Version;

use super::columns::{Columns, Fields};
use super::index::{Bucket, home, home_buckets};
use super::names::is_at;
use super::section::{HEAD_LEN, SnapshotSection, snapshot_padding};
use super::write::{SnapshotChunk, SnapshotOf, snapshot_hash};
use crate::layout::{
    SNAPSHOT_BLOCK_FILES, SNAPSHOT_BUCKET_LEN, SNAPSHOT_CHECKSUM_OFFSET, SNAPSHOT_CHUNK_LEN,
    SNAPSHOT_DIRECTORY_LEN, SNAPSHOT_EXTENT_LEN, SNAPSHOT_PRELUDE_LEN, SNAPSHOT_RECORD_PAD,
    SNAPSHOT_RUN_LEN, SNAPSHOT_SECTION_LEN,
};

/// The number of a live file in one snapshot: files are numbered from 0, chunk by chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileNumber(pub u32);

/// The record of a file in a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SnapshotFile {
    /// The number of its chunk in the snapshot.
    pub chunk: u32,
    /// The chunk.
    pub holder: SnapshotChunk,
    /// Offset of its bytes, or of its last part, in the chunk.
    pub offset: u32,
    /// Bytes of the file.
    pub length: u64,
    /// Checksum of all its bytes.
    pub crc: Crc32c,
    /// The owner's attributes.
    pub attributes: Attributes,
    /// The stamp of its put.
    pub stamp: Stamp,
}

/// A snapshot over bytes of any owner: a mapped file, or memory.
#[derive(Debug, Clone)]
pub struct Snapshot<B> {
    bytes: B,
    of: SnapshotOf,
    files: u32,
    chunks: u32,
    pub(super) directories: u32,
    pub(super) runs: u32,
    file_bytes: u64,
    fields: Fields,
    pub(super) home_buckets: u64,
    sections: [(Range<usize>, Crc32c); SnapshotSection::ALL.len()],
}

impl SnapshotOf {
    /// Bytes of the beginning of a snapshot, with the complete section table.
    pub const HEAD_LENGTH: usize = HEAD_LEN;

    /// The identity of a snapshot of `length` bytes, read only from its beginning.
    ///
    /// # Errors
    /// The first wrong field.
    pub fn read(beginning: &[u8], length: u64) -> Result<Self, DecodeError> {
        begin(beginning, length).map(|(of, _)| of)
    }
}

/// Size of a cache line of the processor.
const LINE: usize = 64;

/// Paths looked up together: more than the processor's concurrent memory accesses.
const BATCH_SIZE: usize = 32;

/// Checks the beginning of a snapshot of `length` bytes; the cursor stands at the counts.
fn begin(bytes: &[u8], length: u64) -> Result<(SnapshotOf, Cursor<'_>), DecodeError> {
    let mut cursor = Cursor::new(bytes, 0);
    if cursor.array("snapshot magic")? != SNAPSHOT_MAGIC {
        return Err(DecodeError::new("snapshot magic", 0, "this is no snapshot"));
    }
    check_version(&mut cursor)?;
    cursor.zero::<2>("reserved")?;
    let count_at = cursor.offset();
    let count = cursor.u32("section count")? as usize;
    if count != SnapshotSection::ALL.len() {
        return Err(DecodeError::new("section count", count_at, "not what this version has"));
    }
    let table_len = count.saturating_mul(SNAPSHOT_SECTION_LEN);
    let (prelude, table) = bytes
        .split_at_checked(SNAPSHOT_PRELUDE_LEN)
        .and_then(|(prelude, rest)| Some((prelude, rest.get(..table_len)?)))
        .ok_or(DecodeError::new("section table", bytes.len(), "the bytes end here"))?;
    let (checked, crc) = prelude.split_at(SNAPSHOT_CHECKSUM_OFFSET);
    if crc != Crc32c::of_two(checked, table).value().to_le_bytes() {
        let at = SNAPSHOT_CHECKSUM_OFFSET;
        return Err(DecodeError::new("prelude checksum", at, "does not match the bytes"));
    }
    let dataset = DatasetId::from_bytes(cursor.array("dataset id")?);
    let version = Version::from_bytes(&cursor.array::<{ Version::LENGTH }>("version")?)?;
    let shape_at = cursor.offset();
    let shape = ChunkShape::new(cursor.u32("chunk size")?, cursor.u32("alignment")?);
    let shape = shape.map_err(|_| {
        DecodeError::new("chunk size", shape_at, "no dataset has chunks of this shape")
    })?;
    let length_at = cursor.offset();
    if cursor.u64("snapshot length")? != length {
        return Err(DecodeError::new("snapshot length", length_at, "not that of the bytes"));
    }
    Ok((SnapshotOf { dataset, version, shape }, cursor))
}

impl<B: AsRef<[u8]>> Snapshot<B> {
    /// Checks the beginning of a snapshot and the positions of its sections.
    ///
    /// # Errors
    /// The first wrong field.
    pub fn open(bytes: B) -> Result<Self, DecodeError> {
        let all = bytes.as_ref();
        let (of, mut cursor) = begin(all, all.len() as u64)?;
        let files = cursor.u32("files")?;
        let chunks = cursor.u32("chunks")?;
        let directories = cursor.u32("directories")?;
        let runs = cursor.u32("runs")?;
        let file_bytes = cursor.u64("file bytes")?;
        let columns = Columns::read(&mut cursor)?;
        let mut opened = Self {
            of,
            files,
            chunks,
            directories,
            runs,
            file_bytes,
            fields: columns.fields(),
            home_buckets: home_buckets(files),
            sections: Default::default(),
            bytes,
        };
        opened.sections = opened.table()?;
        Ok(opened)
    }

    /// The positions of the sections, if valid.
    fn table(&self) -> Result<[(Range<usize>, Crc32c); SnapshotSection::ALL.len()], DecodeError> {
        let all = self.bytes.as_ref();
        let mut sections: [(Range<usize>, Crc32c); SnapshotSection::ALL.len()] = Default::default();
        let table = all.get(SNAPSHOT_PRELUDE_LEN..).unwrap_or_default();
        let mut cursor = Cursor::new(table, SNAPSHOT_PRELUDE_LEN);
        let mut next = HEAD_LEN as u64;
        for (place, section) in sections.iter_mut().zip(SnapshotSection::ALL) {
            let at = cursor.offset();
            let wrong = |problem| DecodeError::new("section table", at, problem);
            if cursor.u32("section type")? != section as u32 {
                return Err(wrong("the sections are not in their order"));
            }
            let crc = Crc32c::from_value(cursor.u32("section checksum")?);
            let [offset, length] = [cursor.u64("section offset")?, cursor.u64("section length")?];
            cursor.zero::<8>("reserved")?;
            if self.length_of(section).is_some_and(|wanted| wanted != u128::from(length)) {
                return Err(wrong("the section is not as long as the counts say"));
            }
            if offset != next {
                return Err(wrong("the section is not where the one before it ends"));
            }
            let end = offset.checked_add(length);
            let behind = end.and_then(|end| end.checked_add(snapshot_padding(length) as u64));
            let behind = behind.filter(|behind| *behind <= all.len() as u64);
            next = behind.ok_or(wrong("the section lies outside of the snapshot"))?;
            *place = (offset as usize..end.unwrap_or(offset) as usize, crc);
        }
        if next != all.len() as u64 {
            let at = SNAPSHOT_PRELUDE_LEN;
            return Err(DecodeError::new("section table", at, "bytes follow the last section"));
        }
        Ok(sections)
    }

    /// Bytes of a section, if determined by the counts.
    fn length_of(&self, section: SnapshotSection) -> Option<u128> {
        let of = |count: u64, length: usize, more: usize| {
            Some(u128::from(count).wrapping_mul(length as u128).wrapping_add(more as u128))
        };
        let files = u64::from(self.files);
        match section {
            SnapshotSection::Chunks => of(self.chunks.into(), SNAPSHOT_CHUNK_LEN, 0),
            SnapshotSection::Records => of(files, self.fields.stride, SNAPSHOT_RECORD_PAD),
            SnapshotSection::Blocks => of(files.div_ceil(SNAPSHOT_BLOCK_FILES as u64), 8, 8),
            SnapshotSection::Directories => {
                let row = SNAPSHOT_DIRECTORY_LEN;
                of(self.directories.into(), row, row)
            }
            SnapshotSection::Runs => of(self.runs.into(), SNAPSHOT_RUN_LEN, 0),
            SnapshotSection::Names
            | SnapshotSection::Index
            | SnapshotSection::DirectoryNames
            | SnapshotSection::Stamps
            | SnapshotSection::Extents => None,
        }
    }

    #[inline]
    pub(super) fn section(&self, section: SnapshotSection) -> &[u8] {
        let place = self.sections.get(section.place()).map(|(place, _)| place.clone());
        self.bytes.as_ref().get(place.unwrap_or_default()).unwrap_or_default()
    }

    /// The padding behind a section, or for none behind the table.
    pub(super) fn padding(&self, section: Option<SnapshotSection>) -> &[u8] {
        let bytes = self.bytes.as_ref();
        let Some(section) = section else {
            let rows = SNAPSHOT_SECTION_LEN.saturating_mul(SnapshotSection::ALL.len());
            return bytes
                .get(SNAPSHOT_PRELUDE_LEN.saturating_add(rows)..HEAD_LEN)
                .unwrap_or_default();
        };
        let end = self.sections.get(section.place()).map_or(0, |(place, _)| place.end);
        let padding = snapshot_padding(self.section(section).len() as u64);
        bytes.get(end..end.saturating_add(padding)).unwrap_or_default()
    }

    pub(super) fn checksum(&self, section: SnapshotSection) -> Crc32c {
        self.sections.get(section.place()).map(|(_, crc)| *crc).unwrap_or_default()
    }

    /// All bytes of the snapshot.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.as_ref()
    }

    /// The dataset, version and chunk shape.
    pub fn of(&self) -> &SnapshotOf {
        &self.of
    }

    /// The number of live files.
    pub fn files(&self) -> u32 {
        self.files
    }

    /// The number of chunks with live files.
    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// The number of directories, including the root.
    pub fn directories(&self) -> u32 {
        self.directories
    }

    /// Bytes of all live files together.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Bytes of the snapshot itself.
    pub fn length(&self) -> u64 {
        self.bytes.as_ref().len() as u64
    }

    /// A chunk by its number, and the number of its first file.
    #[inline]
    pub fn chunk(&self, number: u32) -> Option<(SnapshotChunk, FileNumber)> {
        let at = (number as usize).checked_mul(SNAPSHOT_CHUNK_LEN)?;
        let row: &[u8; SNAPSHOT_CHUNK_LEN] =
            self.section(SnapshotSection::Chunks).get(at..)?.first_chunk()?;
        let (id, rest) = row.split_first_chunk()?;
        let (stamp, rest) = rest.split_first_chunk()?;
        let (first, rest) = rest.split_first_chunk()?;
        let object_length = u32::from_le_bytes(*rest.first_chunk()?);
        let stamp = Stamp::new(u64::from_le_bytes(*stamp));
        let chunk = SnapshotChunk { id: ChunkId::from_bytes(*id), stamp, object_length };
        Some((chunk, FileNumber(u32::from_le_bytes(*first))))
    }

    /// The place of a file's bytes: the number of its chunk, their offset, length and checksum.
    ///
    /// # Errors
    /// As [`file`](Self::file).
    #[inline]
    pub fn place(&self, number: FileNumber) -> Result<(u32, u32, u64, Crc32c), DecodeError> {
        let (records, at) = self.record(number);
        let row = self.fields.decode(records, at).filter(|row| row.chunk < self.chunks);
        let row = row.ok_or(DecodeError::new("snapshot record", at, "there is no such file"))?;
        Ok((row.chunk, row.offset, row.length, row.crc))
    }

    /// The length of a file in bytes, and the owner's attributes.
    ///
    /// # Errors
    /// As [`file`](Self::file).
    pub fn attributes(&self, number: FileNumber) -> Result<(u64, Attributes), DecodeError> {
        let (records, at) = self.record(number);
        let row = self.fields.decode(records, at).filter(|row| row.chunk < self.chunks);
        let row = row.ok_or(DecodeError::new("snapshot record", at, "there is no such file"))?;
        Ok((row.length, row.attributes))
    }

    /// A file by its number.
    ///
    /// # Errors
    /// For an unknown number or a damaged record.
    #[inline]
    pub fn file(&self, number: FileNumber) -> Result<SnapshotFile, DecodeError> {
        let (records, at) = self.record(number);
        let row = self.fields.decode(records, at).filter(|row| row.chunk < self.chunks);
        let row = row.ok_or(DecodeError::new("snapshot record", at, "there is no such file"))?;
        let holder = self.chunk(row.chunk).map(|(chunk, _)| chunk);
        let holder =
            holder.ok_or(DecodeError::new("snapshot record", at, "there is no such chunk"))?;
        let stamp = row.origin.checked_sub(1).map_or(Some(holder.stamp), |place| self.stamp(place));
        let stamp =
            stamp.ok_or(DecodeError::new("snapshot stamp", at, "there is no such stamp"))?;
        Ok(SnapshotFile {
            chunk: row.chunk,
            holder,
            offset: row.offset,
            length: row.length,
            crc: row.crc,
            attributes: row.attributes,
            stamp,
        })
    }

    /// All records, and the offset of a file's record.
    #[inline]
    fn record(&self, number: FileNumber) -> (&[u8], usize) {
        let at = (number.0 as usize).wrapping_mul(self.fields.stride);
        (self.section(SnapshotSection::Records), at)
    }

    fn stamp(&self, place: u32) -> Option<Stamp> {
        let at = (place as usize).checked_mul(8)?;
        let bytes = self.section(SnapshotSection::Stamps).get(at..)?.first_chunk()?;
        Some(Stamp::new(u64::from_le_bytes(*bytes)))
    }

    /// The parts of a file before the part in its chunk: none unless the file was too large for a
    /// chunk.
    ///
    /// # Errors
    /// For damaged parts.
    #[inline]
    pub fn extents(&self, number: FileNumber) -> Result<Vec<Extent>, DecodeError> {
        let parts = self.parts_of(number);
        parts.map(|part| Ok(self.part(part)?.1)).collect()
    }

    /// The number of earlier parts of all large files.
    pub fn parts(&self) -> u32 {
        (self.section(SnapshotSection::Extents).len() / SNAPSHOT_EXTENT_LEN) as u32
    }

    /// The numbers of the parts of a file: counted from 0, file by file.
    #[inline]
    pub fn parts_of(&self, number: FileNumber) -> Range<u32> {
        let (rows, _) = self.section(SnapshotSection::Extents).as_chunks::<SNAPSHOT_EXTENT_LEN>();
        if rows.is_empty() {
            return 0..0;
        }
        let file = |row: &[u8; SNAPSHOT_EXTENT_LEN]| {
            let (file, _) = row.split_first_chunk().unwrap_or((&[0; 4], &[]));
            u32::from_le_bytes(*file)
        };
        let first = rows.partition_point(|row| file(row) < number.0);
        let of_file = rows.iter().skip(first).take_while(|row| file(row) == number.0).count();
        first as u32..first.saturating_add(of_file) as u32
    }

    /// A part by its number, and its file.
    ///
    /// # Errors
    /// For a damaged or missing part.
    pub fn part(&self, number: u32) -> Result<(FileNumber, Extent), DecodeError> {
        let (rows, rest) = self.section(SnapshotSection::Extents).as_chunks();
        let at = number as usize;
        let none =
            DecodeError::new("snapshot extents", at, "there is no such part, or it is cut off");
        let row: &[u8; SNAPSHOT_EXTENT_LEN] =
            rows.get(at).filter(|_| rest.is_empty()).ok_or(none)?;
        let mut cursor = Cursor::new(row, 0);
        let file = FileNumber(cursor.u32("extent file")?);
        let length = cursor.u32("extent length")?;
        let crc = Crc32c::from_value(cursor.u32("extent checksum")?);
        cursor.zero::<4>("reserved")?;
        let part = ChunkId::from_bytes(cursor.array("extent part")?);
        Ok((file, Extent { part, length, crc }))
    }

    /// The bytes of a block of names, by its number.
    #[inline]
    pub(super) fn block(&self, number: usize) -> Option<&[u8]> {
        let blocks = self.section(SnapshotSection::Blocks);
        let ends: &[u8; 16] = blocks.get(number.checked_mul(8)?..)?.first_chunk()?;
        let (start, end) = ends.split_first_chunk::<8>()?;
        let (start, end) = (u64::from_le_bytes(*start), u64::from_le_bytes(*end.first_chunk()?));
        self.section(SnapshotSection::Names).get(start as usize..end as usize)
    }

    /// The file at a path; none if missing.
    ///
    /// # Errors
    /// For a damaged entry found through the index.
    #[inline]
    pub fn lookup(&self, path: &[u8]) -> Result<Option<FileNumber>, DecodeError> {
        self.find(path, snapshot_hash(path))
    }

    #[inline]
    fn find(&self, path: &[u8], hash: u64) -> Result<Option<FileNumber>, DecodeError> {
        self.find_counting(path, hash, &mut 0)
    }

    /// Finds a file, and adds the number of visited buckets to `looked_at`.
    #[inline]
    pub(super) fn find_counting(
        &self,
        path: &[u8],
        hash: u64,
        looked_at: &mut u64,
    ) -> Result<Option<FileNumber>, DecodeError> {
        let mut number = home(hash, self.home_buckets);
        while let Some(bucket) = self.bucket(number) {
            *looked_at = looked_at.wrapping_add(1);
            for file in bucket.candidates(hash) {
                self.touch(file);
                if self.is_named(file, path)? {
                    return Ok(Some(FileNumber(file)));
                }
            }
            if !bucket.goes_on() {
                break;
            }
            number = number.wrapping_add(1);
        }
        Ok(None)
    }

    /// Starts loading a file's record while its name is compared, because a lookup mostly needs the
    /// record next.
    #[inline]
    pub fn touch(&self, file: u32) {
        let (records, at) = self.record(FileNumber(file));
        std::hint::black_box(records.get(at).copied());
    }

    /// [`Snapshot::lookup`] of many paths, faster than one by one, because memory accesses overlap.
    /// `fetch` gets the bytes to be read soon, and may prefetch them.
    ///
    /// # Errors
    /// As [`Snapshot::lookup`].
    pub fn lookup_many<'a>(
        &self,
        paths: impl IntoIterator<Item = &'a [u8]>,
        found: &mut Vec<Option<FileNumber>>,
        fetch: impl Fn(&[u8]),
    ) -> Result<(), DecodeError> {
        let fetch_at = |bytes: &[u8], at: usize| fetch(bytes.get(at..).unwrap_or_default());
        let (records, blocks) = (SnapshotSection::Records, SnapshotSection::Blocks);
        let [records, blocks] = [records, blocks].map(|section| self.section(section));
        let mut paths = paths.into_iter().map(|path| (path, snapshot_hash(path)));
        let mut batch = [(&[][..], 0_u64, 0_usize); BATCH_SIZE];
        loop {
            let mut count = 0_usize;
            for (place, (path, hash)) in batch.iter_mut().zip(&mut paths) {
                *place = (path, hash, 0);
                count = count.wrapping_add(1);
                let bucket = self.bucket(home(hash, self.home_buckets));
                fetch(bucket.as_ref().map_or(&[], |bucket| bucket.0));
            }
            let batch = batch.get_mut(..count).unwrap_or_default();
            if batch.is_empty() {
                return Ok(());
            }
            for (_, hash, file) in &mut *batch {
                let bucket = self.bucket(home(*hash, self.home_buckets));
                let first = bucket.and_then(|bucket| bucket.candidates(*hash).next());
                *file = first.unwrap_or_default() as usize;
                fetch_at(records, file.wrapping_mul(self.fields.stride));
                fetch_at(blocks, (*file / SNAPSHOT_BLOCK_FILES).wrapping_mul(8));
            }
            for (_, _, file) in &*batch {
                let block = self.block(file / SNAPSHOT_BLOCK_FILES).unwrap_or_default();
                let about = block.len().wrapping_mul(file % SNAPSHOT_BLOCK_FILES);
                // All names of a block up to the file's name are read.
                for line in (0..=about / SNAPSHOT_BLOCK_FILES).step_by(LINE) {
                    fetch_at(block, line);
                }
            }
            for (path, hash, _) in &*batch {
                found.push(self.find(path, *hash)?);
            }
        }
    }

    #[inline]
    pub(super) fn bucket(&self, number: u64) -> Option<Bucket<'_>> {
        let at = usize::try_from(number).ok()?.checked_mul(SNAPSHOT_BUCKET_LEN)?;
        Some(Bucket(self.section(SnapshotSection::Index).get(at..)?.first_chunk()?))
    }

    #[inline]
    fn is_named(&self, file: u32, path: &[u8]) -> Result<bool, DecodeError> {
        let file = file as usize;
        let block = self.block(file / SNAPSHOT_BLOCK_FILES);
        let block = block.filter(|_| file < self.files as usize);
        let block = block.ok_or(DecodeError::new("snapshot index", file, "leads to no file"))?;
        let is_it = is_at(block, file % SNAPSHOT_BLOCK_FILES, path);
        is_it.map_err(|wrong| self.located(wrong, block))
    }
}
