//! Sealed data is read back: random files, shapes, rewrites, parts, deletions.

use std::collections::BTreeMap;

use dl_format::layout::{ENTRIES_MAX, HEADER_MAX, PAGE, PATH_MAX};
use dl_format::{
    Attributes, ChunkId, ChunkShape, ChunkWriter, Crc32c, DatasetId, Deletions, EntrySet,
    EntryVersion, Extent, FilePath, Header, PackError, Sealed, Stamp, Verified, encode_tombstone,
};
use proptest::prelude::*;

use crate::build::{DATASET, attributes, bytes_of, cases, data, id, path, small};

fn paths() -> impl Strategy<Value = FilePath> {
    let byte = prop_oneof![Just(b'/'), Just(b'.'), Just(b'a'), 1u8.., Just(0xFF)];
    prop::collection::vec(byte, 1..80).prop_filter_map("a legal path", |b| FilePath::new(b).ok())
}

fn shapes() -> impl Strategy<Value = ChunkShape> {
    // Larger shapes differ only in memory use.
    (20u32..=22, 0u32..=12).prop_map(|(size, alignment)| {
        ChunkShape::new(1 << size, 1 << alignment).expect("a legal shape")
    })
}

fn versions() -> impl Strategy<Value = EntryVersion> {
    (1..u64::MAX, 0u32..5, 0..ENTRIES_MAX as u32).prop_map(|(stamp, chunk, entry)| EntryVersion {
        stamp: Stamp::new(stamp),
        chunk: id(chunk),
        entry,
    })
}

#[derive(Debug, Clone)]
struct File {
    path: FilePath,
    attributes: Attributes,
    content: Vec<u8>,
    origin: Option<EntryVersion>,
}

fn files(longest: usize) -> impl Strategy<Value = Vec<File>> {
    let length = prop_oneof![Just(0), 0..200usize, Just(64), 0..longest];
    let attributes =
        (0u16..=0o7777, any::<i64>()).prop_map(|(mode, mtime)| Attributes { mode, mtime });
    let file = (paths(), attributes, length, any::<u64>(), prop::option::of(versions())).prop_map(
        |(path, attributes, length, seed, origin)| File {
            path,
            attributes,
            content: data(seed, length),
            origin,
        },
    );
    prop::collection::vec(file, 1..40)
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn every_file_of_a_chunk_comes_back(
        files in files(70_000),
        shape in shapes(),
        rewrites in any::<bool>(),
        replaces in prop::collection::vec(any::<u32>().prop_map(id), 0..5),
    ) {
        let mut writer = ChunkWriter::new(shape, vec![0xEE; 700_000]);
        let mut packed: Vec<&File> = Vec::new();
        let mut replaced = Vec::new();
        for chunk in replaces.iter().filter(|_| rewrites) {
            writer.replace(*chunk).unwrap();
            replaced.push(*chunk);
        }
        for file in &files {
            let File { path, attributes, content, origin } = file;
            let result = match origin.filter(|_| rewrites) {
                Some(origin) => writer.rewrite(path, *attributes, content, origin),
                None => writer.append(path, *attributes, content),
            };
            match result {
                Ok(()) => packed.push(file),
                Err(error) => prop_assert_eq!(error, PackError::Full),
            }
        }
        prop_assert_eq!(writer.count() as usize, packed.len());
        let file_bytes: usize = packed.iter().map(|file| file.content.len()).sum();
        prop_assert_eq!(writer.file_bytes(), file_bytes as u64);
        let sealed = writer.seal(id(1), DATASET);
        let object = sealed.as_slice();
        prop_assert!(object.len() <= shape.size() as usize);
        let verified = Verified::check(object.to_vec()).unwrap();
        let header = verified.header();
        prop_assert_eq!((header.id(), header.dataset(), header.stamp()), (id(1), DATASET, None));
        prop_assert_eq!(header.replaces(), replaced.as_slice());
        prop_assert_eq!(header.entry_count() as usize, packed.len());
        prop_assert_eq!(header.file_bytes(), file_bytes as u64);
        for (file, entry) in packed.into_iter().zip(header.entries()) {
            let bytes = &object[entry.offset as usize..][..entry.stored as usize];
            prop_assert_eq!(bytes, file.content.as_slice());
            prop_assert_eq!(entry.path, file.path.clone());
            prop_assert_eq!(entry.attributes, file.attributes);
            prop_assert_eq!(entry.length, file.content.len() as u64);
            prop_assert_eq!(entry.crc, Crc32c::of(bytes));
            prop_assert_eq!(entry.offset % shape.alignment_of(entry.length), 0);
            prop_assert!(entry.length < 65_536 || entry.offset % 4_096 == 0);
            prop_assert_eq!(entry.origin, file.origin.filter(|_| rewrites));
        }
        let digest = header.digest();
        let (committed, stored) = verified.commit(Stamp::new(9)).unwrap();
        let again = Header::decode(&stored.into()).unwrap();
        prop_assert_eq!((again.stamp(), again.digest()), (Some(Stamp::new(9)), digest));
        prop_assert_eq!(again.raw(), committed.header().raw());
    }

    #[test]
    fn a_large_file_is_its_parts_and_its_tail(
        lengths in prop::collection::vec(0..5_000usize, 1..6),
        tail in 0..5_000usize,
        seed in any::<u64>(),
    ) {
        let in_parts = lengths.iter().sum::<usize>();
        prop_assume!(in_parts > 0);
        let whole = data(seed, in_parts + tail);
        let (mut rest, mut extents) = (whole.as_slice(), Vec::new());
        for (number, length) in lengths.iter().enumerate() {
            let (bytes, after) = rest.split_at(*length);
            let part = Sealed::part(small(), id(number as u32), DATASET, bytes).unwrap();
            let verified = Verified::check(bytes_of(&part.0)).unwrap();
            let header = verified.header();
            prop_assert_eq!(header.part(), Some((*length as u32, Crc32c::of(bytes))));
            prop_assert_eq!(&verified.object()[header.header_length()..], bytes);
            extents.push(part.1);
            rest = after;
        }
        let mut writer = ChunkWriter::new(small(), Vec::new());
        writer.append_tail(&path("large"), attributes(1), extents.clone(), rest).unwrap();
        prop_assert!(!writer.fits(&path("b"), 0), "the file stands alone");
        prop_assert_eq!(writer.append(&path("b"), attributes(1), b""), Err(PackError::Full));
        let verified = Verified::check(bytes_of(&writer.seal(id(9), DATASET))).unwrap();
        let entry = verified.header().entry(0).unwrap();
        prop_assert_eq!(verified.header().extents(), extents.as_slice());
        prop_assert_eq!((entry.length, entry.crc), (whole.len() as u64, Crc32c::of(&whole)));
        prop_assert_eq!(entry.stored as usize, tail);
    }

    #[test]
    fn deletions_survive_their_tombstones(
        versions in prop::collection::vec(versions(), 1..200),
    ) {
        let mut deletions = Deletions::default();
        for version in &versions {
            prop_assert!(deletions.insert(version));
        }
        let object = encode_tombstone(DATASET, id(1), &deletions).unwrap();
        let verified = Verified::check(object).unwrap();
        prop_assert_eq!(verified.header().deletions(), &deletions);
        for version in versions {
            let mut sets = deletions.iter().filter(|(chunk, _)| *chunk == version.chunk);
            prop_assert!(sets.next().unwrap().1.contains(version.entry));
        }
    }
}

/// A path of exactly `length` bytes.
fn path_of(length: usize) -> FilePath {
    let mut bytes = vec![b'x'; length];
    for slash in (200..length.saturating_sub(1)).step_by(201) {
        bytes[slash] = b'/';
    }
    path(bytes)
}

#[test]
fn a_file_of_maximum_size_fits_and_can_be_rewritten() {
    let content = data(1, 1 << 20);
    let origin = EntryVersion { stamp: Stamp::new(1), chunk: id(1), entry: 0 };
    let mut buffer = Vec::new();
    for length in 1..=PATH_MAX {
        let name = path_of(length);
        let largest = small().largest_file(&name);
        let mut writer = ChunkWriter::new(small(), std::mem::take(&mut buffer));
        assert!(writer.fits(&name, largest), "path of {length} bytes");
        let more = &content[..=usize::try_from(largest).unwrap()];
        assert_eq!(writer.append(&name, attributes(1), more), Err(PackError::TooLarge));
        // The header grows by a page around here.
        if length > 3_750 && length % 8 == 0 {
            let content = &content[..usize::try_from(largest).unwrap()];
            writer.replace(id(1)).unwrap();
            assert_eq!(writer.rewrite(&name, attributes(1), content, origin), Ok(()));
            let sealed = writer.seal(id(2), DATASET);
            let verified = Verified::check(bytes_of(&sealed)).unwrap();
            assert!(verified.object().len() <= small().size() as usize);
            buffer = sealed.into_parts().0;
        } else {
            buffer = writer.seal(id(2), DATASET).into_parts().0;
        }
    }
}

#[test]
fn a_chunk_full_of_names_stays_within_the_longest_header() {
    let shape = ChunkShape::default();
    for origins in [false, true] {
        let mut writer = ChunkWriter::new(shape, Vec::new());
        let mut count = 0;
        loop {
            let name = path(format!("{count}"));
            let origin = EntryVersion { stamp: Stamp::new(1), chunk: id(count), entry: 7 };
            let result = match origins {
                true => writer.rewrite(&name, attributes(1), b"", origin),
                false => writer.append(&name, attributes(1), b""),
            };
            match result {
                Ok(()) => count += 1,
                Err(error) => break assert_eq!(error, PackError::Full),
            }
        }
        while writer.replace(id(count)).is_ok() {}
        let header = Verified::check(bytes_of(&writer.seal(id(1), DATASET))).unwrap();
        assert_eq!(header.header().entry_count(), count);
        assert!(header.header().header_length() > HEADER_MAX - 2 * PAGE);
    }
}

#[test]
fn a_failed_addition_leaves_the_chunk_as_it_was() {
    let mut writer = ChunkWriter::new(small(), Vec::new());
    writer.append(&path("a"), attributes(1), b"first").unwrap();
    let origin = EntryVersion { stamp: Stamp::default(), chunk: id(1), entry: 0 };
    let result = writer.rewrite(&path("b"), attributes(1), b"", origin);
    assert_eq!(result, Err(PackError::Origin), "no committed chunk has the stamp zero");
    let origin = EntryVersion { stamp: Stamp::new(1), ..origin };
    let result = writer.rewrite(&path("b"), attributes(1), &data(1, 1_044_450), origin);
    assert_eq!(result, Err(PackError::Full), "it needs a fresh chunk");
    writer.append(&path("c"), attributes(1), b"last").unwrap();
    let verified = Verified::check(bytes_of(&writer.seal(id(1), DATASET))).unwrap();
    let names: Vec<_> = verified.header().entries().map(|entry| entry.path).collect();
    assert_eq!(names, [path("a"), path("c")]);
    assert!(verified.header().entries().all(|entry| entry.origin.is_none()));
}

#[test]
fn the_first_rewritten_file_finds_room_for_the_origins_of_all() {
    let origin = EntryVersion { stamp: Stamp::new(1), chunk: id(1), entry: 0 };
    let mut writer = ChunkWriter::new(small(), Vec::new());
    writer.append(&path_of(3_800), attributes(1), b"").unwrap();
    let rest = data(1, (1 << 20) - PAGE);
    assert!(writer.fits(&path("x"), rest.len() as u64), "the header still has one page");
    assert_eq!(writer.rewrite(&path("x"), attributes(1), &rest, origin), Err(PackError::Full));
    writer.rewrite(&path("x"), attributes(1), &rest[..rest.len() - PAGE], origin).unwrap();
    let verified = Verified::check(bytes_of(&writer.seal(id(2), DATASET))).unwrap();
    assert_eq!(verified.object().len(), 1 << 20);
}

#[test]
fn the_chunk_that_many_files_come_from_is_named_once() {
    let mut writer = ChunkWriter::new(small(), Vec::new());
    for entry in 0..62 {
        let origin = EntryVersion { stamp: Stamp::new(1), chunk: id(1), entry };
        let name = path(format!("{entry:02}"));
        writer.rewrite(&name, attributes(1), b"", origin).unwrap();
    }
    let verified = Verified::check(bytes_of(&writer.seal(id(2), DATASET))).unwrap();
    assert_eq!(verified.header().header_length(), PAGE);
}

/// Keeps S-06, Rule 2: the same id with another digest is another put.
#[test]
fn a_digest_tells_any_two_headers_apart() {
    let sealed = |dataset, mtime, content: &[u8]| {
        let mut writer = ChunkWriter::new(small(), Vec::new());
        writer.append(&path("a"), Attributes { mode: 0, mtime }, content).unwrap();
        let verified = Verified::check(bytes_of(&writer.seal(id(1), dataset))).unwrap();
        verified.header().digest()
    };
    let one = sealed(DATASET, 1, b"x");
    assert_eq!(sealed(DATASET, 1, b"x"), one);
    assert_ne!(sealed(DATASET, 1, b"y"), one);
    assert_ne!(sealed(DATASET, 2, b"x"), one);
    // Table and sections are the same here, the prelude is not.
    assert_ne!(sealed(DatasetId::from_bytes([0; 16]), 1, b"x"), one);
}

#[test]
fn a_large_file_has_at_most_as_many_parts_as_a_header_lists() {
    let extent = Extent { part: id(1), length: 1, crc: Crc32c::of(b"x") };
    let tail = |count| {
        let mut writer = ChunkWriter::new(small(), Vec::new());
        let result =
            writer.append_tail(&path("large"), attributes(1), vec![extent; count], b"tail");
        result.map(|()| bytes_of(&writer.seal(id(2), DATASET)))
    };
    let most = (HEADER_MAX - 128 - 3 * 16 - 48 - 5) / 24;
    let verified = Verified::check(tail(most).unwrap()).unwrap();
    assert_eq!(verified.header().entry(0).unwrap().length, most as u64 + 4);
    assert_eq!(tail(most + 1), Err(PackError::TooManyParts));
    let mut writer = ChunkWriter::new(small(), Vec::new());
    let result =
        writer.append_tail(&path("l"), attributes(1), vec![extent; 400], &data(1, 1_044_480));
    assert_eq!(result, Err(PackError::TooLarge), "the list of parts needs room too");
    let mut writer = ChunkWriter::new(small(), Vec::new());
    let nothing = vec![Extent { length: 0, ..extent }];
    let result = writer.append_tail(&path("l"), attributes(1), nothing, b"tail");
    assert_eq!(result, Err(PackError::Empty), "a file that fits into one chunk is not cut");
}

/// Keeps S-19, Rule 3: `rm -r` of a million files is a few hundred bitmaps in a few objects.
#[test]
fn any_number_of_deletions_splits_into_tombstones_that_fit() {
    let mut deletions = Deletions::default();
    let full = EntrySet::from_bits(&[0xFF; ENTRIES_MAX / 8]).unwrap();
    for chunk in 0..300 {
        deletions.add(id(chunk), &full);
    }
    assert_eq!(encode_tombstone(DATASET, id(1), &deletions), Err(PackError::Full));
    assert_eq!(encode_tombstone(DATASET, id(1), &Deletions::default()), Err(PackError::Empty));
    assert!(Deletions::default().split().is_empty());
    let mut found: BTreeMap<ChunkId, EntrySet> = BTreeMap::new();
    let pieces = deletions.clone().split();
    assert!(pieces.len() <= 300 / 63 + 1, "{} pieces", pieces.len());
    for piece in pieces {
        let object = encode_tombstone(DATASET, id(1), &piece).unwrap();
        assert!(object.len() <= HEADER_MAX);
        for (chunk, entries) in Verified::check(object).unwrap().header().deletions().iter() {
            assert!(found.insert(chunk, entries.clone()).is_none(), "no chunk stands twice");
        }
    }
    let all: BTreeMap<_, _> = deletions.iter().map(|(id, set)| (id, set.clone())).collect();
    assert_eq!(found, all);
    assert_eq!(deletions.count(), 300 * ENTRIES_MAX as u64);
}

#[test]
fn an_entry_that_no_chunk_can_hold_is_never_deleted() {
    let mut deletions = Deletions::default();
    let version = EntryVersion { stamp: Stamp::new(1), chunk: id(1), entry: ENTRIES_MAX as u32 };
    assert!(!deletions.insert(&version));
    assert!(deletions.is_empty(), "not even an empty set stays behind");
}
