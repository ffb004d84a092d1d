//! docs/FORMAT.md and the constants of the code agree.

use std::collections::BTreeMap;

const DOCUMENT: &str = include_str!("../../../docs/FORMAT.md");
const SOURCE: &str = include_str!("../../src/layout.rs");

/// The value as printed in the document: a number, or the bytes of a magic.
trait Printed {
    fn printed(&self) -> String;
}

impl Printed for [u8; 8] {
    fn printed(&self) -> String {
        self.map(|byte| format!("{byte:02X}")).join(" ")
    }
}

macro_rules! numbers {
    ($($kind:ty),*) => {
        $(impl Printed for $kind {
            fn printed(&self) -> String {
                self.to_string()
            }
        })*
    };
}
numbers!(u8, u16, u32, u64, usize);

macro_rules! constants {
    ($($name:ident)*) => {
        [$((stringify!($name).to_owned(), dl_format::layout::$name.printed())),*]
    };
}

fn of_the_code() -> BTreeMap<String, String> {
    BTreeMap::from(constants! {
        MAGIC NAME_MAGIC IDENTITY_MAGIC FORMAT_VERSION
        PRELUDE_LEN HEADER_LENGTH_OFFSET PRELUDE_CHECKSUM_OFFSET COMMIT_OFFSET COMMIT_LEN
        SECTION_LEN SECTIONS_MAX ENTRY_LEN EXTENT_LEN ID_LEN ORIGIN_COUNT_LEN ORIGIN_LEN
        DELETION_COUNT_LEN DELETION_LEN ENTRIES_MAX HEADER_MAX PAGE
        CHUNK_SIZE_MIN CHUNK_SIZE_DEFAULT CHUNK_SIZE_MAX ALIGNMENT_DEFAULT ALIGNMENT_MAX PAGED_FILE_MIN
        PATH_MAX COMPONENT_MAX NAME_MAX NAME_RECORD_LEN IDENTITY_RECORD_LEN
        NAME_LIVE NAME_DELETED KIND_CHUNK KIND_PART KIND_TOMBSTONE
        SECTION_ENTRIES SECTION_NAMES SECTION_ORIGINS SECTION_REPLACES SECTION_EXTENTS
        SECTION_DELETIONS SECTION_PAYLOAD TYPE_FILE CODEC_NONE FLAG_EXTENTS
        SNAPSHOT_MAGIC SNAPSHOT_PRELUDE_LEN SNAPSHOT_CHECKSUM_OFFSET SNAPSHOT_SECTION_LEN SNAPSHOT_ALIGNMENT SNAPSHOT_CHUNK_LEN SNAPSHOT_BLOCK_FILES SNAPSHOT_BUCKET_LEN SNAPSHOT_BUCKET_FILES SNAPSHOT_BUCKET_LOAD SNAPSHOT_DIRECTORY_LEN SNAPSHOT_RUN_LEN SNAPSHOT_EXTENT_LEN SNAPSHOT_RECORD_PAD
        SNAPSHOT_PART_LEN SNAPSHOT_PIECE_LEN MANIFEST_MAGIC MANIFEST_LEN
        LEASE_MAGIC LEASE_LEN TASK_NAME_MAX LEASE_USER_MAX
    })
}

/// The rows `| NAME | value |` whose name is in capitals.
fn of_the_document() -> BTreeMap<String, String> {
    let is_constant = |name: &str| name.contains('_') || name == "PAGE" || name == "MAGIC";
    DOCUMENT
        .lines()
        .filter_map(|line| {
            let mut cells = line.strip_prefix("| ")?.split(" | ");
            let (name, value) = (cells.next()?.trim_matches('`'), cells.next()?);
            let value = value.trim_end_matches(" |").trim_matches('`').to_owned();
            (is_constant(name) && name.to_uppercase() == name).then(|| (name.to_owned(), value))
        })
        .collect()
}

#[test]
fn the_document_lists_the_constants_of_the_code() {
    let declared: Vec<&str> = SOURCE
        .lines()
        .filter_map(|line| line.strip_prefix("pub const ")?.split_once(':'))
        .map(|(name, _)| name)
        .collect();
    let code = of_the_code();
    for name in &declared {
        assert!(code.contains_key(*name), "{name} of layout.rs is missing in this test");
    }
    assert_eq!(declared.len(), code.len());
    let document = of_the_document();
    for (name, value) in &code {
        assert_eq!(document.get(name), Some(value), "docs/FORMAT.md, row {name}");
    }
    for name in document.keys() {
        assert!(code.contains_key(name), "docs/FORMAT.md lists {name}, which layout.rs lacks");
    }
}
