//! How far a long command is: bytes, files a second and the time that is left, on stderr.
//!
//! Must hold: shown only on a terminal, and not with --quiet or --json; counting costs nothing
//! that a transfer of many small files would feel.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use dl_runtime::Clock;
use indicatif::{
    BinaryBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle,
};

use crate::text::counted;

/// Before any byte is done, and for commands that say themselves how far they are.
const PLAIN: &str = "{msg}  {elapsed}";
const KNOWN: &str = "{msg}  {wide_bar}  {bytes}/{total_bytes}{speed}{left}";
const UNKNOWN: &str = "{msg}  {bytes}{speed}  {elapsed}";
const REDRAWN: Duration = Duration::from_millis(100);

/// Counts what is done. Threads share it.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    files: AtomicU64,
    has_begun: AtomicBool,
    clock: Arc<dyn Clock>,
    started: Duration,
}

/// A bar, hidden unless it `is_shown`.
pub(crate) fn bar(is_shown: bool) -> ProgressBar {
    if !is_shown {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(style(PLAIN));
    bar.enable_steady_tick(REDRAWN);
    bar
}

impl Progress {
    /// Nothing is done yet.
    pub(crate) fn new(bar: &ProgressBar, clock: &Arc<dyn Clock>) -> Self {
        let (bar, clock) = (bar.clone(), Arc::clone(clock));
        let started = clock.monotonic();
        bar.reset_elapsed();
        Self { bar, files: AtomicU64::new(0), has_begun: AtomicBool::new(false), clock, started }
    }

    /// Whether anybody sees it.
    pub(crate) fn is_shown(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// The bytes that there are in all.
    pub(crate) fn expect(&self, bytes: u64) {
        self.bar.set_length(bytes);
        if self.has_begun.load(Ordering::Relaxed) {
            self.restyle();
        }
    }

    /// Asked for by two threads at once, it is known in the end.
    fn restyle(&self) {
        if self.bar.length().is_none() {
            self.bar.set_style(style(UNKNOWN));
        }
        if self.bar.length().is_some() {
            self.bar.set_style(style(KNOWN));
        }
    }

    /// So many more are done.
    pub(crate) fn add(&self, files: u64, bytes: u64) {
        if !self.is_shown() {
            return;
        }
        let is_first = !self.has_begun.swap(true, Ordering::Relaxed);
        if is_first {
            self.restyle();
        }
        self.bar.inc(bytes);
        let done = self.files.fetch_add(files, Ordering::Relaxed) + files;
        // A message is text made anew; files are too many to do so for each.
        if is_first || files == 0 || done / 256 != (done - files) / 256 || files > 256 {
            let seconds = (self.clock.monotonic() - self.started).as_secs_f64().max(0.001);
            let (files, speed) = (counted(done, "file"), done as f64 / seconds);
            self.bar.set_message(format!("{files}  {speed:.0} files/s"));
        }
    }

    /// Takes it off the screen.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// Bytes a second since the beginning; none before the first.
fn rate(state: &ProgressState) -> Option<f64> {
    let speed = state.pos() as f64 / state.elapsed().as_secs_f64().max(0.001);
    (speed >= 1.0).then_some(speed)
}

fn style(template: &'static str) -> ProgressStyle {
    // Of what is not known yet nothing is said. Nothing can be done about a terminal that is gone.
    let speed = |state: &ProgressState, out: &mut dyn Write| {
        if let Some(speed) = rate(state) {
            let _ = write!(out, "  {}/s", BinaryBytes(speed as u64));
        }
    };
    let left = |state: &ProgressState, out: &mut dyn Write| {
        if let (Some(speed), Some(all)) = (rate(state), state.len()) {
            let left = all.saturating_sub(state.pos()) as f64 / speed;
            let left = Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX);
            let _ = write!(out, "  {:#} left", HumanDuration(left));
        }
    };
    let style = ProgressStyle::with_template(template).expect("the templates above are legal");
    style.with_key("speed", speed).with_key("left", left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_templates_are_legal() {
        for template in [PLAIN, KNOWN, UNKNOWN] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
    }
}
