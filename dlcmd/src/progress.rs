//! How far a long command is: bytes, files a second and the time that is left, on stderr.
//!
//! Must hold: shown only on a terminal, and not with --quiet or --json; counting costs nothing
//! that a transfer of many small files would feel.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dl_runtime::Clock;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

const KNOWN: &str = "{msg}  {wide_bar}  {bytes}/{total_bytes}  {binary_bytes_per_sec}  {eta} left";
const UNKNOWN: &str = "{msg}  {bytes}  {binary_bytes_per_sec}  {elapsed}";
const REDRAWN: Duration = Duration::from_millis(100);

/// Counts what is done. Threads share it.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    files: AtomicU64,
    clock: Arc<dyn Clock>,
    started: Duration,
}

/// A bar, hidden unless it `is_shown`.
pub(crate) fn bar(is_shown: bool) -> ProgressBar {
    if !is_shown {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(style(UNKNOWN));
    bar.enable_steady_tick(REDRAWN);
    bar
}

impl Progress {
    /// Nothing is done yet.
    pub(crate) fn new(bar: &ProgressBar, clock: &Arc<dyn Clock>) -> Self {
        let (bar, clock) = (bar.clone(), Arc::clone(clock));
        let started = clock.monotonic();
        Self { bar, files: AtomicU64::new(0), clock, started }
    }

    /// Whether anybody sees it.
    pub(crate) fn is_shown(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// The bytes that there are in all.
    pub(crate) fn expect(&self, bytes: u64) {
        self.bar.set_style(style(KNOWN));
        self.bar.set_length(bytes);
    }

    /// So many more are done.
    pub(crate) fn add(&self, files: u64, bytes: u64) {
        if !self.is_shown() {
            return;
        }
        self.bar.inc(bytes);
        let done = self.files.fetch_add(files, Ordering::Relaxed) + files;
        // A message is text made anew; files are too many to do so for each.
        if files == 0 || done / 256 != (done - files) / 256 || files > 256 {
            let seconds = (self.clock.monotonic() - self.started).as_secs_f64().max(0.001);
            self.bar.set_message(format!("{done} files  {:.0} files/s", done as f64 / seconds));
        }
    }

    /// Takes it off the screen.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

fn style(template: &'static str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates above are legal")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_legal() {
        for template in [KNOWN, UNKNOWN] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
