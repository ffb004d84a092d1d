//! Tests that can't run on this machine, or not to their end: each says why, and is counted.
//!
//! Must hold: every skip is one whole line of the count, however many processes skip at once.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::tell;

/// Ends a test that can't run here, or can't go on, with the reason. `make test` and `make torture`
/// set `DIESEL_SKIPPED` to the file in which they count.
///
/// # Errors
/// When it can't be counted.
pub fn skip(why: impl Display) -> Result<()> {
    let thread = std::thread::current();
    // Whoever runs a test gives its name to the thread.
    let line = line(thread.name().unwrap_or("a test"), why);
    tell(format_args!("skipped: {line}"));
    match std::env::var_os("DIESEL_SKIPPED") {
        Some(file) => count(Path::new(&file), &line),
        None => Ok(()),
    }
}

/// One line, however many the reason has.
fn line(test: &str, why: impl Display) -> String {
    let why = why.to_string();
    format!("{test}: {}", why.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn count(file: &Path, line: &str) -> Result<()> {
    let to = OpenOptions::new().append(true).create(true).open(file);
    // At the end of the file in one write, between whose bytes no other process writes.
    let written = to.and_then(|mut to| to.write_all(format!("{line}\n").as_bytes()));
    written.with_context(|| format!("count a skipped test in {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_are_whole_lines_however_many_there_are_at_once() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("skipped");
        let line = line("a::test", "not here:\n  no such\ttool\n");
        std::thread::scope(|scope| {
            let skip = || (0..50).try_for_each(|_| count(&file, &line));
            let skipping: Vec<_> = (0..8).map(|_| scope.spawn(skip)).collect();
            for skipped in skipping {
                skipped.join().map_err(|_| anyhow::anyhow!("it ended early"))??;
            }
            anyhow::Ok(())
        })?;
        let counted = std::fs::read_to_string(&file)?;
        assert_eq!(counted, "a::test: not here: no such tool\n".repeat(400));
        Ok(())
    }

    #[test]
    fn a_skip_that_can_not_be_counted_fails_its_test() -> Result<()> {
        let folder = tempfile::tempdir()?;
        assert!(count(&folder.path().join("none/skipped"), "a::test: why").is_err());
        Ok(())
    }
}
