//! Files that a put passes over.
//!
//! Must hold: each is counted; the reasons are told once, at the end; skipped files are a failure
//! only where the user named one of them, or where nothing else was there to store.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::causes::Causes;
use crate::context::Context;
use crate::local::{Entry, Problem, Root};
use crate::text::shown;

/// Files that were passed over, with the reasons.
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
    /// Counts a file below `root`, or the root itself where the path is empty.
    pub(super) fn passed_over(&self, root: &Root, path: &[u8], entry: Entry, problem: &Problem) {
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

    /// Tells of all files that were passed over. Whether the skipped ones are a failure of the
    /// command: one of them was named, or nothing else `is_stored`.
    pub(super) fn tell(&self, context: &Context, is_stored: bool) -> bool {
        let is_refused =
            self.skipped() > 0 && (self.has_skipped_named.load(Ordering::Relaxed) || !is_stored);
        self.skips.tell(|text| match is_refused {
            true => context.notes.error(text),
            false => context.notes.note(text),
        });
        self.failures.tell(|text| context.notes.error(text));
        is_refused
    }
}
