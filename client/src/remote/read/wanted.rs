//! What a reader asks for.
//!
//! Must hold: no memory is reserved on the word of a server alone.

use dl_proto::ReadSource;

use crate::remote::read::ReadItem;

/// More is never allocated for a file before its bytes come.
const RESERVE_MAX: u64 = 64 << 20;

/// A file, or a range of it.
#[derive(Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) item: &'a ReadItem,
    /// Bytes to skip.
    pub(super) offset: u64,
    /// Most bytes to give; `None`: to the end.
    pub(super) length: Option<u64>,
}

impl<'a> Wanted<'a> {
    pub(crate) fn whole(items: &'a [ReadItem]) -> Vec<Self> {
        items.iter().map(|item| Self { item, offset: 0, length: None }).collect()
    }

    /// Bytes to expect, where that is known and not too many to believe.
    pub(super) fn expected(&self) -> Option<usize> {
        let left = self.item.record.as_ref()?.length.saturating_sub(self.offset);
        let expected = left.min(self.length.unwrap_or(u64::MAX)).min(RESERVE_MAX);
        usize::try_from(expected).ok()
    }

    /// As it is asked for.
    pub(super) fn request(&self) -> dl_proto::ReadItem {
        let source = match &self.item.record {
            Some(record) => ReadSource::File(*record),
            None => ReadSource::Path(self.item.path.clone()),
        };
        dl_proto::ReadItem { source, offset: self.offset, length: self.length }
    }
}
