//! Progress of a long command on stderr: bytes, files per second and the remaining time.
//!
//! Must hold: progress is shown only on a terminal, and not with --quiet or --json. Counting is
//! cheap even for many small files. A line never wraps.

use std::fmt::Write;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use indicatif::{
    BinaryBytes, HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle,
};
use rustix::termios::tcgetwinsize;

use crate::text::counted;

/// Before the first byte, and for commands with their own progress text.
const PLAIN: &str = "{wide_msg} {elapsed}";
const KNOWN: &str = "{line} {wide_bar}";
const UNKNOWN: &str = "{line}";
const REDRAWN: Duration = Duration::from_millis(100);
/// Width of a terminal of unknown width.
const COLUMNS: usize = 80;

/// Counts finished files and bytes; shared by threads.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    files: Arc<AtomicU64>,
    has_begun: AtomicBool,
}

/// A bar, hidden unless `is_shown`.
pub(crate) fn bar(is_shown: bool) -> ProgressBar {
    if !is_shown {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(style(PLAIN, &Arc::default()));
    bar.enable_steady_tick(REDRAWN);
    bar
}

impl Progress {
    /// Starts at zero.
    pub(crate) fn new(bar: &ProgressBar) -> Self {
        bar.reset_elapsed();
        Self { bar: bar.clone(), files: Arc::default(), has_begun: AtomicBool::new(false) }
    }

    /// Whether the bar is visible.
    pub(crate) fn is_shown(&self) -> bool {
        !self.bar.is_hidden()
    }

    /// Sets the total number of bytes.
    pub(crate) fn expect(&self, bytes: u64) {
        self.bar.set_length(bytes.max(self.bar.position()));
        if self.has_begun.load(Ordering::Relaxed) {
            self.restyle();
        }
    }

    /// With two concurrent calls, the known length wins in the end.
    fn restyle(&self) {
        if self.bar.length().is_none() {
            self.bar.set_style(style(UNKNOWN, &self.files));
        }
        if self.bar.length().is_some() {
            self.bar.set_style(style(KNOWN, &self.files));
        }
    }

    /// Adds finished files and bytes.
    pub(crate) fn add(&self, files: u64, bytes: u64) {
        if !self.is_shown() {
            return;
        }
        if !self.has_begun.swap(true, Ordering::Relaxed) {
            self.restyle();
        }
        self.files.fetch_add(files, Ordering::Relaxed);
        self.bar.inc(bytes);
        // Files may have grown since they were counted.
        let done = self.bar.position();
        if self.bar.length().is_some_and(|all| all < done) {
            self.bar.set_length(done);
        }
    }

    /// Removes the bar from the screen.
    pub(crate) fn end(&self) {
        self.bar.finish_and_clear();
    }
}

/// The text before the bar.
fn line(state: &ProgressState, files: u64, room: usize) -> String {
    let (done, elapsed) = (state.pos(), state.elapsed().as_secs_f64().max(0.001));
    let rate = done as f64 / elapsed;
    let bytes = match state.len() {
        Some(all) => format!("{}/{}", BinaryBytes(done), BinaryBytes(all)),
        None => BinaryBytes(done).to_string(),
    };
    // Unknown values are left out.
    let (mut speed, mut left) = (String::new(), String::new());
    if rate >= 1.0 {
        speed = format!("{}/s", BinaryBytes(rate as u64));
        if let Some(all) = state.len() {
            let seconds = all.saturating_sub(done) as f64 / rate;
            let time = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX);
            left = format!("{:#} left", HumanDuration(time));
        }
    }
    fitting(
        [
            (2, counted(files, "file")),
            (5, format!("{:.0} files/s", files as f64 / elapsed)),
            (1, bytes),
            (4, speed),
            (3, left),
        ],
        room,
    )
}

/// The parts side by side, without parts of lower rank that exceed `room` columns.
fn fitting(parts: [(usize, String); 5], room: usize) -> String {
    let is_kept = |rank: usize| {
        let upto = parts.iter().filter(|(other, text)| *other <= rank && !text.is_empty());
        upto.map(|(_, text)| text.chars().count() + 2).sum::<usize>() <= room + 2
    };
    let kept = parts.iter().filter(|(rank, text)| !text.is_empty() && is_kept(*rank));
    kept.map(|(_, text)| text.as_str()).collect::<Vec<_>>().join("  ")
}

/// The current width of the terminal: a window may be resized.
fn columns() -> usize {
    match tcgetwinsize(io::stderr()) {
        Ok(size) if size.ws_col > 0 => size.ws_col.into(),
        _ => COLUMNS,
    }
}

fn style(template: &'static str, files: &Arc<AtomicU64>) -> ProgressStyle {
    let files = Arc::clone(files);
    let line = move |state: &ProgressState, out: &mut dyn Write| {
        // The space before the bar takes one column. Errors of a closed terminal are ignored.
        let line = line(state, files.load(Ordering::Relaxed), columns().saturating_sub(1));
        let _ = out.write_str(&line);
    };
    let style = ProgressStyle::with_template(template).expect("the templates above are legal");
    style.with_key("line", line)
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

    #[test]
    fn a_narrow_terminal_shows_the_parts_of_the_first_ranks() {
        let parts = [(2, "files"), (5, "pace"), (1, "bytes"), (4, ""), (3, "left")];
        let parts = parts.map(|(rank, text)| (rank, text.to_owned()));
        for (room, shown) in [
            (80, "files  pace  bytes  left"),
            (24, "files  pace  bytes  left"),
            (23, "files  bytes  left"),
            (17, "files  bytes"),
            (11, "bytes"),
            (4, ""),
        ] {
            assert_eq!(fitting(parts.clone(), room), shown, "{room}");
        }
    }
}
