//! Objects assembled by hand, with valid checksums, that no writer would create.

use dl_format::layout::{
    CHUNK_SIZE_MAX, FORMAT_VERSION, HEADER_MAX, KIND_CHUNK, KIND_PART, KIND_TOMBSTONE, MAGIC, PAGE,
    SECTION_DELETIONS, SECTION_ENTRIES, SECTION_EXTENTS, SECTION_NAMES, SECTION_ORIGINS,
    SECTION_PAYLOAD,
};
use dl_format::{DecodeError, Verified};

use crate::build::{DATASET, id};
use crate::entry_points::repair;

/// The parts of an object, in the words of docs/FORMAT.md.
struct Assembly {
    kind: u16,
    entry_count: u32,
    sections: Vec<(u32, Vec<u8>)>,
    /// Pages of zeroes behind the last page of the header.
    more_pages: usize,
    /// Zeroes behind the last file.
    more_bytes: usize,
}

impl Assembly {
    fn new(kind: u16, entry_count: u32, sections: Vec<(u32, Vec<u8>)>) -> Self {
        Self { kind, entry_count, sections, more_pages: 0, more_bytes: 0 }
    }

    fn check(&self) -> Result<Verified, DecodeError> {
        let in_header = |kind: u32| kind != SECTION_PAYLOAD;
        let bodies = self.sections.iter().filter(|(kind, _)| in_header(*kind));
        let table = self.sections.len() * 16;
        let used = 128 + table + bodies.clone().map(|(_, body)| body.len()).sum::<usize>();
        let header = used.next_multiple_of(PAGE) + self.more_pages * PAGE;
        let length = header + self.more_bytes;
        let fields = [0, 0, self.sections.len() as u32].map(u32::to_le_bytes).concat();
        let lengths = [header as u32, self.entry_count].map(u32::to_le_bytes).concat();
        let mut object = [
            &MAGIC[..],
            &FORMAT_VERSION.to_le_bytes(),
            &self.kind.to_le_bytes(),
            &fields,
            id(1).as_bytes(),
            DATASET.as_bytes(),
            &lengths,
            &(length as u64).to_le_bytes(),
            &[0; 56],
        ]
        .concat();
        let mut offset = 128 + table;
        for (kind, body) in &self.sections {
            let start = if in_header(*kind) { offset } else { header };
            let row = [*kind, start as u32, body.len() as u32, 0].map(u32::to_le_bytes);
            object.extend(row.concat());
            offset += if in_header(*kind) { body.len() } else { 0 };
        }
        object.extend(bodies.flat_map(|(_, body)| body));
        object.resize(length, 0);
        repair(&mut object);
        Verified::check(object)
    }

    fn refused(&self) -> (&'static str, u64) {
        let error = self.check().map(|_| ()).expect_err("no object");
        (error.field, error.offset)
    }
}

/// A row of an empty file with a name of one byte.
fn row(number: u32, flags: u16, offset: u32, origin_stamp: u64) -> Vec<u8> {
    let mut row = vec![1, 0, 0, 0, 1, 0];
    row.extend(flags.to_le_bytes());
    row.extend([number, 0, offset, 0, 0, 0, 0, 0].map(u32::to_le_bytes).concat());
    row.extend(origin_stamp.to_le_bytes());
    row
}

const PAGE_END: u32 = PAGE as u32;

fn chunk(rows: &[Vec<u8>], more: &[(u32, Vec<u8>)]) -> Assembly {
    let names = b"abcdefgh"[..rows.len()].to_vec();
    let sections = [&[(SECTION_ENTRIES, rows.concat()), (SECTION_NAMES, names)], more].concat();
    Assembly::new(KIND_CHUNK, rows.len() as u32, sections)
}

#[test]
fn a_header_takes_no_more_pages_than_its_sections() {
    let good = chunk(&[row(0, 0, PAGE_END, 0)], &[]);
    assert!(good.check().is_ok());
    let longer = Assembly { more_pages: 1, ..chunk(&[row(0, 0, 2 * PAGE_END, 0)], &[]) };
    assert_eq!(longer.refused(), ("header length", 56));
}

#[test]
fn an_object_ends_where_its_last_file_ends() {
    let longer = Assembly { more_bytes: 64, ..chunk(&[row(0, 0, PAGE_END, 0)], &[]) };
    assert_eq!(longer.refused(), ("object length", 64));
    let tombstone = vec![(SECTION_DELETIONS, deletions(&[1]))];
    assert!(Assembly::new(KIND_TOMBSTONE, 0, tombstone.clone()).check().is_ok());
    let longer = Assembly { more_bytes: 1, ..Assembly::new(KIND_TOMBSTONE, 0, tombstone) };
    assert_eq!(longer.refused(), ("object length", 64));
}

#[test]
fn an_object_holds_what_its_kind_promises() {
    for kind in [KIND_CHUNK, KIND_PART, KIND_TOMBSTONE] {
        assert_eq!(Assembly::new(kind, 0, vec![]).refused(), ("kind", 10));
    }
    let empty = vec![(SECTION_DELETIONS, 0u32.to_le_bytes().to_vec())];
    assert_eq!(Assembly::new(KIND_TOMBSTONE, 0, empty).refused(), ("kind", 10));
    let part = Assembly::new(KIND_PART, 0, vec![(SECTION_PAYLOAD, vec![])]);
    assert!(part.check().is_ok());
    let counted = Assembly { entry_count: 1, ..part };
    assert_eq!(counted.refused(), ("entry count", 60));
}

#[test]
fn a_file_in_parts_stands_alone_and_says_so() {
    let extents = || (SECTION_EXTENTS, [vec![0; 16], vec![5], vec![0; 7]].concat());
    let mut of_five_bytes = row(0, 1, PAGE_END, 0);
    of_five_bytes[24] = 5;
    assert!(chunk(&[of_five_bytes], &[extents()]).check().is_ok());
    // Rows begin behind a table of three rows, or of two.
    let of_none = chunk(&[row(0, 1, PAGE_END, 0)], &[(SECTION_EXTENTS, vec![0; 24])]);
    assert_eq!(of_none.refused(), ("entry flags", 176 + 6));
    let silent = chunk(&[row(0, 0, PAGE_END, 0)], &[extents()]);
    assert_eq!(silent.refused(), ("entry flags", 176 + 6));
    let without = chunk(&[row(0, 1, PAGE_END, 0)], &[]);
    assert_eq!(without.refused(), ("entry flags", 160 + 6));
    let two = chunk(&[row(0, 1, PAGE_END, 0), row(1, 1, PAGE_END, 0)], &[extents()]);
    assert_eq!(two.refused(), ("entry flags", 176 + 6));
    let ragged = (SECTION_EXTENTS, vec![0; 25]);
    let ragged = chunk(&[row(0, 1, PAGE_END, 0)], &[ragged]);
    assert_eq!(ragged.refused(), ("extent part", 176 + 48 + 1 + 24));
}

/// An origins section with a single id and the given rows.
fn origins(rows: &[[u32; 2]]) -> (u32, Vec<u8>) {
    let rows = rows.iter().flatten().flat_map(|number| number.to_le_bytes());
    let head = [1u32.to_le_bytes().as_slice(), id(7).as_bytes()].concat();
    (SECTION_ORIGINS, head.into_iter().chain(rows).collect())
}

#[test]
fn an_origin_is_one_that_an_entry_can_have() {
    let fresh_and_old = [row(0, 0, PAGE_END, 0), row(1, 0, PAGE_END, 9)];
    let good = chunk(&fresh_and_old, &[origins(&[[0, 0], [0, 65_535]])]);
    let verified = good.check().expect("a rewritten chunk");
    let entry = verified.header().entry(1).expect("two entries");
    let origin = entry.origin.expect("it was rewritten");
    assert_eq!((origin.chunk, origin.entry, origin.stamp.get()), (id(7), 65_535, 9));
    assert_eq!(verified.header().entry(0).and_then(|entry| entry.origin), None);
    let section = 128 + 3 * 16 + 2 * 48 + 2;
    let rows = section + 4 + 16;
    for (origins, field, offset) in [
        (origins(&[[0, 0], [1, 0]]), "origin", rows + 8),
        (origins(&[[0, 0], [u32::MAX, 0]]), "origin", rows + 8),
        (origins(&[[0, 0], [0, 65_536]]), "origin", rows + 8),
        (origins(&[[0, 1], [0, 0]]), "origin", rows),
        (origins(&[[1, 0], [0, 0]]), "origin", rows),
        (origins(&[[0, 0]]), "origins", section),
        (origins(&[[0, 0], [0, 0], [0, 0]]), "origins", section),
        ((SECTION_ORIGINS, vec![0xFF; 4]), "origins", section),
        ((SECTION_ORIGINS, vec![]), "origins", section),
    ] {
        assert_eq!(chunk(&fresh_and_old, &[origins]).refused(), (field, offset));
    }
    assert_eq!(chunk(&fresh_and_old, &[]).refused(), ("entry origin stamp", 160 + 48 + 40));
}

/// A deletions section for entry 0 of each of the given chunks.
fn deletions(chunks: &[u32]) -> Vec<u8> {
    let mut bytes = (chunks.len() as u32).to_le_bytes().to_vec();
    for chunk in chunks {
        bytes.extend(id(*chunk).as_bytes());
        bytes.extend([1, 0, 0, 0, 1]);
    }
    bytes
}

#[test]
fn one_set_of_deletions_has_one_encoding() {
    let refused =
        |body: Vec<u8>| Assembly::new(KIND_TOMBSTONE, 0, vec![(SECTION_DELETIONS, body)]).refused();
    // The section begins at 144, its first chunk at 148, the chunk's bitmap at 168.
    assert_eq!(refused(deletions(&[2, 1])), ("deletion chunk", 169));
    assert_eq!(refused(deletions(&[1, 1])), ("deletion chunk", 169));
    let of_bitmap = |bitmap: &[u8]| {
        let length = (bitmap.len() as u32).to_le_bytes();
        [&1u32.to_le_bytes(), id(1).as_bytes().as_slice(), &length, bitmap].concat()
    };
    for bitmap in [&[][..], &[0], &[1, 0], &[1; 8_193]] {
        assert_eq!(refused(of_bitmap(bitmap)), ("deletion bitmap", 168));
    }
    let longer = [of_bitmap(&[1]), vec![0]].concat();
    assert_eq!(refused(longer), ("deletions", 169));
    let mut missing = deletions(&[1, 2]);
    missing.truncate(43);
    assert_eq!(refused(missing), ("deletion bitmap length", 144 + 41));
    let mut endless = deletions(&[1]);
    endless[..4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(refused(endless), ("deletion chunk", 169));
}

#[test]
fn counts_are_checked_against_the_bytes_before_allocation() {
    let most = Assembly { entry_count: u32::MAX, ..chunk(&[row(0, 0, PAGE_END, 0)], &[]) };
    assert_eq!(most.refused(), ("entry count", 60));
    let sections = vec![(100, vec![]); 17];
    assert_eq!(Assembly::new(KIND_CHUNK, 0, sections).refused(), ("section count", 20));
    let twice = vec![(SECTION_DELETIONS, deletions(&[1])), (100, vec![]), (100, vec![])];
    assert_eq!(Assembly::new(KIND_TOMBSTONE, 0, twice).refused(), ("section type", 160));
    let large = vec![(SECTION_PAYLOAD, vec![0; CHUNK_SIZE_MAX as usize])];
    let large =
        Assembly { more_bytes: CHUNK_SIZE_MAX as usize, ..Assembly::new(KIND_PART, 0, large) };
    assert_eq!(large.refused(), ("object length", 64));
    let huge = vec![(100, vec![0; HEADER_MAX])];
    assert_eq!(Assembly::new(KIND_TOMBSTONE, 0, huge).refused(), ("header length", 56));
}
