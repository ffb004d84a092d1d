//! Each Rust file opens with its purpose and its invariants.

use std::path::Path;

use anyhow::Result;
use dl_tests::workspace;

use super::{hold, sizes};

const RULE: &str = "A Rust file opens with `//!`: what it is for and what must hold, in two to six \
                    lines before the first heading or example; one line does for tests:";
const LINES: usize = 6;

#[test]
fn rust_files_open_with_their_purpose() -> Result<()> {
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
    let breach_in = |file: &str, text: &str| breach(Path::new(file), text);
    let breach = |text: &str| breach_in("lib.rs", text);
    assert!(breach("use std::fmt;").is_some());
    assert!(breach("//!\nuse std::fmt;").is_some());
    assert!(breach("//! For this.\nuse std::fmt;").is_some(), "it does not say what must hold");
    assert_eq!(breach_in("lib/tests.rs", "//! On this.\n"), None);
    assert!(breach(&"//! Says too much.\n".repeat(7)).is_some());
    assert_eq!(breach("//! For this.\n//!\n//! Must hold: that.\n"), None);
    let example = format!("//! # Example\n{}", "//! let x = y;\n".repeat(20));
    assert_eq!(breach(&format!("//! For this.\n//! Must hold: that.\n{example}")), None);
    assert!(breach(&format!("//! For this.\n{example}")).is_some(), "an example is no promise");
}

fn breach(file: &Path, text: &str) -> Option<String> {
    let doc = text.lines().map_while(|line| line.strip_prefix("//!")).map(str::trim);
    let opening = doc.take_while(|line| !line.starts_with('#') && !line.starts_with("```"));
    let of_tests =
        |part: &str| part == "tests" || part == "tests.rs" || part.starts_with("testing");
    let is_test = file.iter().any(|part| part.to_str().is_some_and(of_tests));
    let file = file.display();
    match opening.filter(|line| !line.is_empty()).count() {
        0 => Some(format!("{file}:1: says nothing; write what the file is for")),
        1 if !is_test => Some(format!("{file}:1: one line; write what must hold, too")),
        lines if lines > LINES => {
            Some(format!("{file}:1: {lines} lines; keep the promise, move the rest to docs/"))
        }
        _ => None,
    }
}
