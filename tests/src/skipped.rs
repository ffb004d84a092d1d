//! Tests that can't run on this machine, or only partly: each prints its reason and is counted.
//!
//! Must hold: every skip is a whole line of the count file, also with concurrent processes.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};

use crate::tell;

/// Prints and counts the reason of a skipped test. `make test` and `make torture` set
/// `DIESEL_SKIPPED` to the count file.
///
/// # Errors
/// When the count file can't be written.
pub fn skip(why: impl Display) -> Result<()> {
    let thread = std::thread::current();
    // The test runner names the thread after the test.
    let line = line(thread.name().unwrap_or("a test"), why);
    tell(format_args!("skipped: {line}"));
    match std::env::var_os("DIESEL_SKIPPED") {
        Some(file) => count(Path::new(&file), &line),
        None => Ok(()),
    }
}

/// Joins the reason to a single line.
fn line(test: &str, why: impl Display) -> String {
    let why = why.to_string();
    format!("{test}: {}", why.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn count(file: &Path, line: &str) -> Result<()> {
    let to = OpenOptions::new().append(true).create(true).open(file);
    // A single append: other processes can't write in between.
    let written = to.and_then(|mut to| to.write_all(format!("{line}\n").as_bytes()));
    written.with_context(|| format!("count a skipped test in {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concurrent_skips_are_whole_lines() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("skipped");
        let line = line("a::test", "not here:\n  no such\ttool\n");
        std::thread::scope(|scope| {
            let skip = || (0..50).try_for_each(|_| count(&file, &line));
            let skipping: Vec<_> = (0..8).map(|_| scope.spawn(skip)).collect();
            for skipped in skipping {
                skipped.join().map_err(|_| anyhow::anyhow!("the thread panicked"))??;
            }
            anyhow::Ok(())
        })?;
        let counted = std::fs::read_to_string(&file)?;
        assert_eq!(counted, "a::test: not here: no such tool\n".repeat(400));
        Ok(())
    }

    #[test]
    fn an_uncounted_skip_fails_its_test() -> Result<()> {
        let folder = tempfile::tempdir()?;
        assert!(count(&folder.path().join("none/skipped"), "a::test: why").is_err());
        Ok(())
    }
}
