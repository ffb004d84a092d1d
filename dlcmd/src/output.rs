//! Output of a command: results on stdout, notes and errors on stderr.
//!
//! Must hold: stdout carries only the result, one JSON object per line with `--json`. A reader that
//! stops reading is no error. A note never breaks a progress bar or another note.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard};

use dl_runtime::locked;
use indicatif::ProgressBar;
use serde::Serialize;

use crate::exit::Failure;
use crate::json::Line;

/// The results, written through one buffer because `ls` prints a million lines.
pub(crate) struct Output<'a> {
    out: &'a mut dyn Write,
    json: bool,
}

impl<'a> Output<'a> {
    /// Writes results to `out`, as JSON lines or as text.
    pub(crate) fn new(out: &'a mut dyn Write, json: bool) -> Self {
        Self { out, json }
    }

    /// Whether results are JSON lines.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Writes a result as a JSON line.
    pub(crate) fn json(
        &mut self,
        kind: &'static str,
        body: &impl Serialize,
    ) -> Result<(), Failure> {
        let written = serde_json::to_writer(&mut *self.out, &Line::new(kind, body));
        written.map_err(io::Error::from).and_then(|()| self.out.write_all(b"\n")).map_err(closed)
    }

    /// Writes a result as a line of text.
    pub(crate) fn line(&mut self, text: fmt::Arguments<'_>) -> Result<(), Failure> {
        self.write(|out| writeln!(out, "{text}"))
    }

    /// Writes results in any format.
    pub(crate) fn write(
        &mut self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Failure> {
        write(&mut *self.out).map_err(closed)
    }

    /// Flushes all results.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush().map_err(closed)
    }
}

/// The failure for an error on stdout.
pub(crate) fn closed(error: io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        Failure::StdoutClosed
    } else {
        Failure::local("write the result to stdout", error)
    }
}

/// Notes and errors, from any thread.
pub(crate) struct Notes {
    sink: Mutex<Box<dyn Write + Send>>,
    quiet: bool,
    bar: ProgressBar,
}

impl Notes {
    /// Writes notes and errors to `sink`, above a progress bar on the same terminal. Notes are
    /// dropped when `quiet`.
    pub(crate) fn new(sink: Box<dyn Write + Send>, quiet: bool, bar: ProgressBar) -> Self {
        Self { sink: Mutex::new(sink), quiet, bar }
    }

    /// The progress bar; hidden without a terminal.
    pub(crate) fn bar(&self) -> &ProgressBar {
        &self.bar
    }

    /// Prints a note for the user.
    pub(crate) fn note(&self, text: impl fmt::Display) {
        if !self.quiet {
            self.print(text);
        }
    }

    /// Prints an error.
    pub(crate) fn error(&self, text: impl fmt::Display) {
        self.print(text);
    }

    fn print(&self, text: impl fmt::Display) {
        self.bar.suspend(|| {
            // An error on stderr can't be reported.
            let _ = writeln!(self.sink(), "dlcmd: {text}");
        });
    }

    fn sink(&self) -> MutexGuard<'_, Box<dyn Write + Send>> {
        locked(&self.sink)
    }
}

impl fmt::Debug for Output<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("json", &self.json).finish_non_exhaustive()
    }
}

impl fmt::Debug for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notes").field("quiet", &self.quiet).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    /// Fails like a pipe without a reader, or like a full disk.
    struct Broken(io::ErrorKind);

    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_closed_stdout_is_no_error_and_a_full_one_is() {
        let mut pipe = Broken(io::ErrorKind::BrokenPipe);
        let mut output = Output::new(&mut pipe, false);
        assert!(matches!(output.line(format_args!("x")), Err(Failure::StdoutClosed)));
        assert!(matches!(output.json("x", &()), Err(Failure::StdoutClosed)));
        let mut disk = Broken(io::ErrorKind::StorageFull);
        let full = Output::new(&mut disk, false).line(format_args!("x"));
        assert!(matches!(full, Err(Failure::Because { exit: Exit::Failed, .. })));
    }
}
