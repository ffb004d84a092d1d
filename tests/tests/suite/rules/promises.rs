//! The promises of docs/SEMANTICS.md and the tests that hold them name each other.
//!
//! Must hold: a promise has an id `S-nn`; a test keeps it by saying the id in its doc comment, or
//! by a name that starts with it (`s_07_...`); neither side has an id that the other lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use dl_tests::workspace;
use regex::Regex;

use super::hold;
use super::source::{self, Item};

const RULE: &str = "Each promise of docs/SEMANTICS.md has a test, each test's promise is written:";
const PROMISES: &str = "docs/SEMANTICS.md";

#[test]
fn promises_and_tests_name_each_other() -> Result<()> {
    let mut promised = BTreeSet::new();
    let mut tested = BTreeMap::new();
    for file in workspace::files()? {
        if file == Path::new(PROMISES) {
            promised = ids(&workspace::text(&file)?.unwrap_or_default())?;
        } else if file.extension().is_some_and(|extension| extension == "rs") {
            tested.extend(promises_of(&file, source::items_of(&file)?)?);
        }
    }
    hold(RULE, &breaches(&promised, &tested));
    Ok(())
}

#[test]
fn a_promise_without_a_test_and_a_test_without_a_promise_are_found() -> Result<()> {
    let text = "/// Keeps S-01 and S-02.\n#[test] fn a() {}\n/// Not S-08.\nfn b() {}\n\
                proptest! { #[test] fn s_09_c(x in 1..) {} }";
    let tested = promises_of(Path::new("lib.rs"), source::items(source::tokens(text)?))?;
    assert_eq!(tested.keys().collect::<Vec<_>>(), ["S-01", "S-02", "S-09"]);

    let found = breaches(&ids("| S-01 | S-02 | S-03 | US-04 |")?, &tested);
    let [unwritten, untested] = found.as_slice() else { anyhow::bail!("{found:?}") };
    assert!(unwritten.contains("S-09") && unwritten.contains("lib.rs:5"), "{unwritten}");
    assert!(untested.contains("S-03"), "{untested}");
    Ok(())
}

fn breaches(promised: &BTreeSet<String>, tested: &BTreeMap<String, String>) -> Vec<String> {
    let unwritten = tested.iter().filter(|(id, _)| !promised.contains(*id));
    let unwritten =
        unwritten.map(|(id, place)| format!("{place}: {id} is not in {PROMISES}; write it there"));
    let untested = promised.iter().filter(|id| !tested.contains_key(*id));
    let untested = untested.map(|id| {
        format!("{PROMISES}: no test keeps {id}; name it in the doc comment of one that does")
    });
    unwritten.chain(untested).collect()
}

/// The ids that tests of a file keep, each with the place of one such test.
fn promises_of(file: &Path, items: Vec<Item>) -> Result<BTreeMap<String, String>> {
    let mut kept = BTreeMap::new();
    for test in source::all_items(items).iter().filter(|item| item.is_test()) {
        let doc = test.attributes.iter().map(|attribute| attribute.stream().to_string());
        let mut text: String = doc.collect();
        let name = test.name().unwrap_or_default();
        if let Some(rest) = name.strip_prefix("s_") {
            text.push_str(" S-");
            text.extend(rest.chars().take_while(char::is_ascii_digit));
        }
        for id in ids(&text)? {
            kept.insert(id, format!("{}:{}", file.display(), test.line()));
        }
    }
    Ok(kept)
}

fn ids(text: &str) -> Result<BTreeSet<String>> {
    let id = Regex::new(r"(?-u:\b)S-[0-9]{2,}(?-u:\b)")?;
    Ok(id.find_iter(text).map(|id| id.as_str().to_owned()).collect())
}
