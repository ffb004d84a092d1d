//! A file or range to read.
//!
//! Must hold: the word of a server alone never reserves memory.

use dl_proto::ReadSource;

use crate::remote::read::ReadItem;

/// Memory reserved for a file before its bytes arrive, at most.
const RESERVE_MAX: u64 = 64 << 20;

/// A file, or a range of a file.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) item: &'a ReadItem,
    /// Bytes to skip.
    pub(super) offset: u64,
    /// Bytes to read, at most; `None` for the rest of the file.
    pub(super) length: Option<u64>,
}

impl<'a> Wanted<'a> {
    pub(crate) fn whole(items: &'a [ReadItem]) -> Vec<Self> {
        items.iter().map(|item| Self { item, offset: 0, length: None }).collect()
    }

    /// The bytes to expect, if known, within a limit.
    pub(super) fn expected(&self) -> Option<usize> {
        let left = self.item.record.as_ref()?.length.saturating_sub(self.offset);
        let expected = left.min(self.length.unwrap_or(u64::MAX)).min(RESERVE_MAX);
        usize::try_from(expected).ok()
    }

    pub(super) fn request(&self) -> dl_proto::ReadItem {
        let source = match &self.item.record {
            Some(record) => ReadSource::File(*record),
            None => ReadSource::Path(self.item.path.clone()),
        };
        dl_proto::ReadItem { source, offset: self.offset, length: self.length }
    }
}
