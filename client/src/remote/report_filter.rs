//! Filter for repeated reports: a new try after a broken connection repeats the reports of the old
//! try.
//!
//! Must hold: no report is passed on twice. The filter keeps hashes only, so memory does not depend
//! on the length of reports.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, RandomState};

/// The hashes of all reports so far, 8 bytes for each.
#[derive(Debug, Default)]
pub(crate) struct ReportFilter {
    hasher: RandomState,
    seen: HashSet<u64>,
}

impl ReportFilter {
    /// Whether a report is new; remembers the report.
    pub(crate) fn is_new(&mut self, report: impl Hash) -> bool {
        self.seen.insert(self.hasher.hash_one(report))
    }
}
