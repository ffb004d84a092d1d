//! Damage: every changed or missing byte is detected, and each error has an offset.

use bytes::Bytes;
use dl_format::layout::HEADER_MAX;
use dl_format::snapshot::{Manifest, Snapshot};
use dl_format::{Header, IdentityRecord, Lease, NameRecord, Verified};

use crate::build::{chunk_of, committed};
use crate::entry_points::repair;
use crate::golden;

/// The checks of a whole object or record.
fn check(name: &str, bytes: &[u8]) -> Result<(), dl_format::DecodeError> {
    if name.starts_with("name") {
        NameRecord::decode(bytes).map(|_| ())
    } else if name.starts_with("identity") {
        IdentityRecord::decode(bytes).map(|_| ())
    } else if name.starts_with("snapshot") {
        Snapshot::open(bytes).and_then(|snapshot| snapshot.verify())
    } else if name.starts_with("manifest") {
        Manifest::decode(bytes).map(|_| ())
    } else if name.starts_with("lease") {
        Lease::decode(bytes).map(|_| ())
    } else {
        Verified::check(bytes.to_vec()).map(|_| ())
    }
}

/// Keeps S-03, I3: stored data is whole, or detected as damaged.
#[test]
fn any_changed_byte_of_any_object_is_found() {
    for (name, good) in golden::files() {
        assert_eq!(check(name, &good), Ok(()), "{name}");
        let mut bad = good.clone();
        for at in 0..good.len() {
            for change in [0x01, 0x80, 0xFF] {
                bad[at] = good[at] ^ change;
                let error = check(name, &bad).expect_err("a changed byte");
                assert!(error.offset <= good.len() as u64, "{name}, byte {at}: {error}");
            }
            bad[at] = good[at];
        }
    }
}

/// Keeps S-03, I3: part of an object is never taken for a whole object.
#[test]
fn any_missing_or_added_byte_of_any_object_is_found() {
    for (name, good) in golden::files() {
        for length in 0..good.len() {
            let error = check(name, &good[..length]).expect_err("bytes are missing");
            assert!(error.offset <= good.len() as u64, "{name} of {length} bytes: {error}");
        }
        for added in [&[0][..], &[1], &[0; 4_096]] {
            assert!(check(name, &[&good, added].concat()).is_err(), "{name} and {added:?}");
        }
    }
}

#[test]
fn damage_is_reported_where_it_is() {
    let good = chunk_of(1, &[b"a/b", b"second file"]);
    let header = Header::decode(&Bytes::from(good.clone())).unwrap();
    let files: Vec<usize> = header.entries().map(|entry| entry.offset as usize).collect();
    // The table has two rows: the entries lie at 160, the names at 256.
    for (at, field, offset) in [
        (0, "magic", 0),
        (8, "version", 8),
        (20, "prelude checksum", 92),
        (95, "prelude checksum", 92),
        (96, "commit block", 96),
        (127, "commit block", 96),
        (130, "prelude checksum", 92),
        (160, "section", 160),
        (260, "section", 256),
        (270, "header padding", 270),
        (files[0], "file", files[0]),
        (files[0] + 9, "padding", files[0] + 9),
        (files[1] + 30, "file", files[1]),
    ] {
        let mut bad = good.clone();
        bad[at] ^= 0x04;
        let error = Verified::check(bad).expect_err("a changed byte");
        assert_eq!((error.field, error.offset), (field, offset as u64), "byte {at}");
    }
}

/// Each line damages a field and restores all checksums.
#[test]
fn a_field_that_lies_is_named_with_its_place() {
    let good = chunk_of(1, &[b"a/b", b"second file"]);
    let lies: [(usize, &[u8], &str, u64); 33] = [
        (8, &[2, 0], "version", 8),
        (8, &[0, 0], "version", 8),
        (10, &[9], "kind", 10),
        (10, &[2], "section type", 128),
        (10, &[3], "section type", 128),
        (16, &[1], "incompatible features", 16),
        (20, &[17], "section count", 20),
        (56, &[1], "header length", 56),
        (56, &[0, 0x20], "header length", 56),
        (56, &[0; 4], "header length", 56),
        (60, &[1], "entry count", 60),
        (60, &[0, 0, 1], "entry count", 60),
        (64, &[0, 0], "object length", 64),
        (64, &[0xFF; 8], "object length", 64),
        (72, &[9], "file bytes", 72),
        (80, &[1], "reserved", 80),
        (128, &[2], "section type", 144),
        (128, &[9], "entry count", 60),
        (132, &[161], "section offset", 132),
        (136, &[0xFF; 3], "section length", 136),
        (160, &[2], "entry type", 160),
        (161, &[1], "entry codec", 161),
        (162, &[0, 0x10], "entry mode", 162),
        (166, &[2], "entry flags", 166),
        (166, &[1], "entry flags", 166),
        (168, &[1], "entry name offset", 168),
        (256, b"a//", "entry name", 256),
        (164, &[0xFF], "entry name length", 164),
        (164 + 48, &[1], "names", 260),
        (160 + 16, &[0, 0], "entry offset", 176),
        (208 + 20, &[0xFF; 4], "entry stored length", 228),
        (208 + 24, &[0], "entry length", 232),
        (208 + 40, &[1], "entry origin stamp", 248),
    ];
    for (at, bytes, field, offset) in lies {
        let mut bad = good.clone();
        bad[at..at + bytes.len()].copy_from_slice(bytes);
        repair(&mut bad);
        let error = Verified::check(bad).expect_err("a field that lies");
        assert_eq!((error.field, error.offset), (field, offset), "{bytes:?} at {at}: {error}");
    }
}

#[test]
fn only_bytes_of_a_newer_version_ask_for_an_update() {
    let good = chunk_of(1, &[b"a/b"]);
    for (at, is_newer) in [(0, false), (8, true), (10, true), (16, true), (60, false), (80, false)]
    {
        let mut bad = good.clone();
        bad[at] = 9;
        repair(&mut bad);
        let error = Verified::check(bad).expect_err("a field that lies");
        assert_eq!(error.is_unsupported(), is_newer, "byte {at}: {error}");
    }
}

#[test]
fn compatible_features_and_unknown_sections_are_passed_over() {
    let mut object = chunk_of(1, &[b"a/b"]);
    object[12] = 0xFF;
    repair(&mut object);
    let known = Verified::check(object.clone()).expect("a compatible feature");
    assert_eq!(known.header().entry_count(), 1);
    // A third row moves the sections, so it replaces the unused second row of a tombstone.
    let mut tombstone = golden::objects()
        .into_iter()
        .find_map(|(name, bytes)| (name == "tombstone.bin").then_some(bytes))
        .expect("a golden file");
    let length = u32::from_le_bytes(*tombstone[136..].first_chunk().expect("a row")) as usize;
    tombstone.copy_within(144..144 + length, 160);
    tombstone[132] += 16;
    let row = [200, 160 + length as u32, 64, 0].map(u32::to_le_bytes).concat();
    tombstone[144..160].copy_from_slice(&row);
    tombstone[20] = 2;
    repair(&mut tombstone);
    let verified = Verified::check(tombstone).expect("a section of a later version");
    assert_eq!(verified.header().deletions().count(), 4);
}

#[test]
fn how_long_a_header_is_can_be_asked_of_its_first_bytes() {
    let object = chunk_of(1, &[b"a/b"]);
    assert_eq!(Header::length(&object[..128]), Ok(4_096));
    assert!(Header::length(&object[..59]).is_err());
    let error = Header::decode(&Bytes::from(object[..4_095].to_vec())).expect_err("too short");
    assert_eq!((error.field, error.offset), ("header length", 56));
    let mut bad = object;
    bad[56..60].copy_from_slice(&(HEADER_MAX as u32 + 4_096).to_le_bytes());
    assert!(Header::length(&bad).is_err());
}

#[test]
fn only_a_committed_header_takes_part_in_the_fold() {
    let object = chunk_of(1, &[b"a/b"]);
    let header = Header::decode(&Bytes::from(object.clone())).expect("a good header");
    assert_eq!(header.committed().map(|_| ()).expect_err("no stamp").field, "stamp");
    let (committed, stored) = committed(object, 77);
    assert_eq!(committed.stamp().get(), 77);
    let header = Header::decode(&stored).expect("a good header");
    assert_eq!(header.committed().expect("a stamp").stamp().get(), 77);
}
