//! Source files are short enough for a single reading.

use std::path::Path;

use anyhow::Result;
use dl_tests::workspace;

use super::hold;
use super::source::{self, Item};

const RULE: &str = "A source file has at most 600 lines, its unit tests at most 100 of them:";
const FILE_LINES: usize = 600;
const TEST_LINES: usize = 100;
const LANGUAGES: [&str; 6] = ["rs", "py", "c", "h", "sh", "proto"];

#[test]
fn source_files_and_inline_tests_are_short() -> Result<()> {
    let mut found = Vec::new();
    for file in workspace::files()? {
        let language = file.extension().and_then(|extension| extension.to_str());
        if !language.is_some_and(|language| LANGUAGES.contains(&language)) || is_generated(&file) {
            continue;
        }
        let Some(text) = workspace::text(&file)? else { continue };
        found.extend(too_long(&file, &text));
        if language == Some("rs") {
            found.extend(tests_too_long(&file, source::items_of(&file)?));
        }
    }
    hold(RULE, &found);
    Ok(())
}

#[test]
fn a_long_file_and_long_inline_tests_are_found() -> Result<()> {
    let file = Path::new("lib.rs");
    assert_eq!(too_long(file, &"//\n".repeat(600)), None);
    assert!(too_long(file, &"//\n".repeat(601)).is_some());

    let found = |lines: usize| {
        let text = format!("#[cfg(test)]\nmod tests {{{}}}", "\n".repeat(lines - 1));
        anyhow::Ok(tests_too_long(file, source::items(source::tokens(&text)?)).len())
    };
    assert_eq!(found(100)?, 0);
    assert_eq!(found(101)?, 1);
    Ok(())
}

/// Whether a file is generated: such code is not read.
pub(super) fn is_generated(file: &Path) -> bool {
    file.iter().any(|folder| folder == "generated")
}

fn too_long(file: &Path, text: &str) -> Option<String> {
    let lines = text.lines().count();
    let file = file.display();
    (lines > FILE_LINES)
        .then(|| format!("{file}: {lines} lines; find the part that has a name of its own"))
}

fn tests_too_long(file: &Path, items: Vec<Item>) -> Vec<String> {
    let mut items = source::all_items(items);
    items.retain(|item| item.keyword() == Some("mod") && item.is_for_tests());
    items.retain(|item| item.lines() > TEST_LINES);
    let breach = |item: &Item| {
        let (file, line, lines) = (file.display(), item.line(), item.lines());
        format!("{file}:{line}: {lines} lines of tests; move them into a sibling tests.rs")
    };
    items.iter().map(breach).collect()
}
