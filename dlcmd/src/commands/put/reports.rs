//! Files skipped or failed during a put.
//!
//! Must hold: each file is counted. The reasons are reported once, at the end. Skipped files are a
//! failure only if named by the user, or if no other file was stored.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::causes::Causes;
use crate::context::Context;
use crate::local::{Entry, Problem, Root};
use crate::text::shown;

/// Skipped and failed files, with the reasons.
#[derive(Debug, Default)]
pub(super) struct Reports {
    skips: Causes,
    failures: Causes,
    skipped: AtomicU64,
    failed: AtomicU64,
    /// Whether a skipped file or folder was named on the command line.
    has_skipped_named: AtomicBool,
}

impl Reports {
    /// Counts a file below `root`; an empty path means the root itself.
    pub(super) fn add_problem(&self, root: &Root, path: &[u8], entry: Entry, problem: &Problem) {
        let name = root.shown(path);
        let (name, is_named) = (shown(&name), entry == Entry::Named || path.is_empty());
        let is_skipped = match problem {
            Problem::Skipped(why) => {
                self.skips.add("skipped", name, why);
                true
            }
            Problem::NotFollowed(why) => {
                self.skips.add("skipped", name, format_args!("{why}; --follow puts its target"));
                true
            }
            Problem::Failed(why) => {
                self.fail("read", name, why);
                false
            }
        };
        if is_skipped {
            self.skipped.fetch_add(1, Ordering::Relaxed);
            self.has_skipped_named.fetch_or(is_named, Ordering::Relaxed);
        }
    }

    /// Counts a member of an archive that is no file.
    pub(super) fn skip(&self, name: impl Display, why: &str) {
        self.skips.add("skipped", name, why);
        self.skipped.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a file for which `action` failed.
    pub(super) fn fail(&self, action: &'static str, name: impl Display, why: impl Display) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        self.failures.add(action, name, why);
    }

    pub(super) fn skipped(&self) -> u64 {
        self.skipped.load(Ordering::Relaxed)
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Reports all skipped and failed files. Returns whether skipped files are a failure of the
    /// command: a skipped file was named, or no other file `is_stored`.
    pub(super) fn print(&self, context: &Context, is_stored: bool) -> bool {
        let is_refused =
            self.skipped() > 0 && (self.has_skipped_named.load(Ordering::Relaxed) || !is_stored);
        self.skips.drain(|text| match is_refused {
            true => context.notes.error(text),
            false => context.notes.note(text),
        });
        self.failures.drain(|text| context.notes.error(text));
        is_refused
    }
}
