//! Each Rust file opens with what it is for and what must hold.

use std::path::Path;

use anyhow::Result;
use dl_tests::workspace;

use super::{hold, sizes};

const RULE: &str = "A Rust file opens with `//!`: what it is for and what must hold, in at most \
                    six lines before the first heading or example:";
const LINES: usize = 6;

#[test]
fn rust_files_open_with_what_they_are_for() -> Result<()> {
    let mut found = Vec::new();
    for file in workspace::files()? {
        if file.extension().is_some_and(|extension| extension == "rs")
            && !sizes::is_generated(&file)
            && let Some(text) = workspace::text(&file)?
        {
            found.extend(breach(&file, &text));
        }
    }
    hold(RULE, &found);
    Ok(())
}

#[test]
fn a_missing_or_long_opening_is_found() {
    let breach = |text: &str| breach(Path::new("lib.rs"), text);
    assert!(breach("use std::fmt;").is_some());
    assert!(breach("//!\nuse std::fmt;").is_some());
    assert!(breach(&"//! Says too much.\n".repeat(7)).is_some());
    assert_eq!(breach("//! For this.\n//!\n//! Must hold: that.\n"), None);
    let example = format!("//! For this.\n//!\n//! # Example\n{}", "//! let x = y;\n".repeat(20));
    assert_eq!(breach(&example), None);
}

fn breach(file: &Path, text: &str) -> Option<String> {
    let doc = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let opening = doc.take_while(|line| !line.starts_with('#') && !line.starts_with("```"));
    let file = file.display();
    match opening.filter(|line| !line.is_empty()).count() {
        0 => Some(format!("{file}:1: says nothing; write what the file is for")),
        lines if lines > LINES => {
            Some(format!("{file}:1: {lines} lines; keep the promise, move the rest to docs/"))
        }
        _ => None,
    }
}
