//! Writing headers: the only module that lays out prelude, section table and sections.
//!
//! Must hold: [`crate::Header::decode`] reads every written header. Callers keep a header within
//! [`HEADER_MAX`](crate::layout::HEADER_MAX) by calling [`head_length`] before each addition.

use crate::checksum::Crc32c;
use crate::id::{ChunkId, DatasetId};
use crate::kind::ObjectKind;
use crate::layout::{
    COMMIT_LEN, FORMAT_VERSION, MAGIC, PAGE, PRELUDE_CHECKSUM_OFFSET, PRELUDE_LEN, SECTION_LEN,
    SECTION_PAYLOAD, round_up,
};

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

    pub(crate) fn body_mut(&mut self, kind: u32) -> Option<&mut [u8]> {
        let section = self.sections.iter_mut().find(|(number, _)| *number == kind)?;
        Some(&mut section.1)
    }

    /// Notes that a single run of bytes follows the header.
    pub(crate) fn payload(&mut self, length: u32, crc: Crc32c) {
        self.payload = Some((length, crc));
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
        debug_assert_eq!(slot.len(), self.length(), "the slot is as long as the header");
        let header_length = narrow(slot.len());
        let table_length = self.rows().saturating_mul(SECTION_LEN);
        let mut table = Vec::with_capacity(table_length);
        let mut offset = PRELUDE_LEN.saturating_add(table_length);
        for (kind, body) in &self.sections {
            let row = [*kind, narrow(offset), narrow(body.len()), Crc32c::of(body).value()];
            table.extend(row.into_iter().flat_map(u32::to_le_bytes));
            offset = offset.saturating_add(body.len());
        }
        if let Some((length, crc)) = self.payload {
            let row = [SECTION_PAYLOAD, header_length, length, crc.value()];
            table.extend(row.into_iter().flat_map(u32::to_le_bytes));
        }
        let mut prelude = [0; PRELUDE_CHECKSUM_OFFSET];
        let mut put = FieldWriter(&mut prelude);
        put.field(&MAGIC);
        put.field(&FORMAT_VERSION.to_le_bytes());
        put.field(&self.kind.number().to_le_bytes());
        put.field(&[0; 8]);
        put.field(&narrow(self.rows()).to_le_bytes());
        put.field(self.id.as_bytes());
        put.field(self.dataset.as_bytes());
        put.field(&header_length.to_le_bytes());
        put.field(&entry_count.to_le_bytes());
        put.field(&object_length.to_le_bytes());
        put.field(&file_bytes.to_le_bytes());
        let crc = Crc32c::of_two(&prelude, &table);
        let mut put = FieldWriter(slot);
        put.field(&prelude);
        put.field(&crc.value().to_le_bytes());
        put.field(&[0; COMMIT_LEN]);
        put.field(&table);
        for (_, body) in &self.sections {
            put.field(body);
        }
        put.0.fill(0);
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

/// Bytes of a header with the given number of sections and bytes in their bodies.
pub(crate) fn head_length(sections: usize, bodies: usize) -> usize {
    let table = sections.saturating_mul(SECTION_LEN);
    round_up(PRELUDE_LEN.saturating_add(table).saturating_add(bodies), PAGE)
}

/// Lengths and offsets inside an object are bounded by 64 MiB.
pub(crate) fn narrow(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}
