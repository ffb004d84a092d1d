//! Forbidden text in finished files: notes to oneself, stubs, ignored tests, and folders of a
//! private machine.

use std::path::Path;
use std::sync::LazyLock;

use anyhow::Result;
use dl_tests::workspace;
use regex::Regex;

use super::hold;

const RULE: &str = "No file holds notes to oneself, stubs, skipped tests or paths of a machine:";

/// Third-party texts.
const FOREIGN: [&str; 2] = ["Cargo.lock", "LICENSE"];

/// The patterns are written so that this file does not match.
static WORDS: LazyLock<[(Regex, &str); 4]> = LazyLock::new(|| {
    let regex = |pattern| Regex::new(pattern).expect("the pattern is fixed");
    [
        (regex(r"(?-u:\b)(TOD[O]|FIXM[E]|XX[X])(?-u:\b)"), "do it, or open an issue"),
        (regex(r"(?-u:\b)(tod[o]|unimplemente[d])!"), "write it, or leave the whole thing out"),
        (regex(r"#\[ignor[e]"), "make the test run, or skip with a printed reason"),
        (regex(r"(^|[^A-Za-z0-9_.])/(roo[t]|wor[k])/"), "name a path that every machine has"),
    ]
});

#[test]
fn files_hold_no_stubs_ignored_tests_or_local_paths() -> Result<()> {
    let mut found = Vec::new();
    for file in workspace::files()? {
        if !FOREIGN.iter().any(|foreign| file == Path::new(foreign))
            && let Some(text) = workspace::text(&file)?
        {
            found.extend(breaches(&file, &text));
        }
    }
    hold(RULE, &found);
    Ok(())
}

#[test]
fn forbidden_words_are_found_as_words() {
    let file = Path::new("lib.rs");
    let planted = ["// TO_DO: later", "to_do!()", "#[ig_nore = \"slow\"]", "open(\"/ro_ot/x\")"];
    for line in planted.map(|line| line.replacen('_', "", 1)) {
        assert_eq!(breaches(file, &format!("\n{line}")).len(), 1, "{line}");
    }
    let innocent = "mktemp XXXXXX; a_todo!; crate/root/x.rs; dl://photos/work/x.jpg; METHODOLOGY";
    assert_eq!(breaches(file, innocent), Vec::<String>::new());
}

fn breaches(file: &Path, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (word, instead) in WORDS.iter() {
            if let Some(hit) = word.find(line) {
                let (file, line, hit) = (file.display(), number + 1, hit.as_str().trim());
                found.push(format!("{file}:{line}: {hit:?}; {instead}"));
            }
        }
    }
    found
}
