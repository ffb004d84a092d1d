//! The promises of docs/SEMANTICS.md, their invariants and rules, and the tests name each other.
//!
//! Must hold: each promise `S-nn` has a test that names the id in its doc comment or as the prefix
//! of its name (`s_07_...`). Each invariant `In` and each `Rule n` has a row with its promises; for
//! each pair, a test names both. Both sides know the same ids.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;
use dl_tests::workspace;
use regex::Regex;

use super::hold;
use super::source::{self, Item};

const RULE: &str = "Each promise of docs/SEMANTICS.md has a test, each test's promise is written:";
const PROMISES: &str = "docs/SEMANTICS.md";

type Ids = BTreeSet<String>;

/// The ids in the document.
#[derive(Debug, Default)]
struct Written {
    promises: Ids,
    /// Invariants and rules with their promises; without promises, an invariant is not built.
    grounds: BTreeMap<String, Ids>,
}

/// A test and its ids.
#[derive(Debug)]
struct Test {
    place: String,
    promises: Ids,
    grounds: Ids,
}

#[test]
fn promises_and_tests_name_each_other() -> Result<()> {
    let mut promised = Written::default();
    let mut tests = Vec::new();
    for file in workspace::files()? {
        if file == Path::new(PROMISES) {
            promised = written(&workspace::text(&file)?.unwrap_or_default())?;
        } else if file.extension().is_some_and(|extension| extension == "rs") {
            tests.extend(tests_of(&file, source::items_of(&file)?)?);
        }
    }
    let known = ["I1", "I2", "I3", "I4", "I5", "I6"].map(str::to_owned).into_iter();
    let known: Ids = known.chain((1..=10).map(|rule| format!("Rule {rule}"))).collect();
    let found: Ids = promised.grounds.keys().cloned().collect();
    anyhow::ensure!(found == known, "{PROMISES} lists {found:?}, and there are {known:?}");
    hold(RULE, &breaches(&promised, &tests));
    Ok(())
}

/// A rule is kept through each of its promises and in no other way.
#[test]
fn unmatched_promises_and_tests_are_found() -> Result<()> {
    let text = "/// Keeps S-01: I1.\n#[test] fn a() {}\n/// Not S-08.\nfn b() {}\n\
                /// Keeps S-02: Rule 10 and Rule 12.\n#[test] fn c() {}\n\
                /// Rule 3.\n#[test] fn d() {}\nproptest! { #[test] fn s_09_e(x in 1..) {} }";
    let tests = tests_of(Path::new("lib.rs"), source::items(source::tokens(text)?))?;
    let document = "| S-01 | a |\n| S-02 | b |\n| S-03 | c |\n| US-04 | d |\nS-09 is in no row.\n\
                    | I1 | e | S-01, S-02 |\n| Rule 10 | f | S-02 |\n| Rule 3 | g | |\n\
                    | Rule 4 | h | S-05 |";
    let found = breaches(&written(document)?, &tests);
    let expected = [
        ("lib.rs:6", "Rule 12"),
        ("lib.rs:8", "Rule 3"),
        ("lib.rs:9", "S-09 is not in"),
        ("no test keeps", "S-03"),
        ("no test names I1", "S-02"),
        ("Rule 4", "S-05"),
    ];
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (line, (one, other)) in found.iter().zip(expected) {
        assert!(line.contains(one) && line.contains(other), "{line}");
    }
    Ok(())
}

fn breaches(written: &Written, tests: &[Test]) -> Vec<String> {
    let mut breaches = Vec::new();
    for Test { place, promises, grounds } in tests {
        for id in promises.difference(&written.promises) {
            breaches.push(format!("{place}: {id} is not in {PROMISES}; write it there"));
        }
        for id in grounds {
            let through = written.grounds.get(id);
            if through.is_none_or(|through| through.is_disjoint(promises)) {
                breaches.push(format!(
                    "{place}: {id} needs one of its promises in {PROMISES} beside it"
                ));
            }
        }
    }
    for id in &written.promises {
        if !tests.iter().any(|test| test.promises.contains(id)) {
            breaches.push(format!(
                "{PROMISES}: no test keeps {id}; name the id in the doc comment of a test"
            ));
        }
    }
    for (id, promises) in &written.grounds {
        for promise in promises {
            let is_both =
                |test: &Test| test.grounds.contains(id) && test.promises.contains(promise);
            if !written.promises.contains(promise) {
                breaches
                    .push(format!("{PROMISES}: {id} is kept by {promise}, which is no promise"));
            } else if !tests.iter().any(is_both) {
                breaches.push(format!(
                    "{PROMISES}: no test names {id} beside {promise}; name both in the doc comment of \
                                         a test"
                ));
            }
        }
    }
    breaches
}

/// The rows of the document's tables.
fn written(document: &str) -> Result<Written> {
    let mut written = Written::default();
    for row in document.lines().filter_map(|line| line.strip_prefix('|')) {
        let (id, rest) = row.split_once('|').unwrap_or((row, ""));
        let id = id.trim().to_owned();
        if ids(PROMISE, &id)?.contains(&id) {
            written.promises.insert(id);
        } else if ids(GROUND, &id)?.contains(&id) {
            written.grounds.insert(id, ids(PROMISE, rest)?);
        }
    }
    Ok(written)
}

/// The tests of a file with their ids.
fn tests_of(file: &Path, items: Vec<Item>) -> Result<Vec<Test>> {
    let mut tests = Vec::new();
    for test in source::all_items(items).iter().filter(|item| item.is_test()) {
        let doc = test.attributes.iter().map(|attribute| attribute.stream().to_string());
        let mut text: String = doc.collect();
        let name = test.name().unwrap_or_default();
        if let Some(rest) = name.strip_prefix("s_") {
            text.push_str(" S-");
            text.extend(rest.chars().take_while(char::is_ascii_digit));
        }
        let (promises, grounds) = (ids(PROMISE, &text)?, ids(GROUND, &text)?);
        let place = format!("{}:{}", file.display(), test.line());
        tests.push(Test { place, promises, grounds });
    }
    Ok(tests)
}

const PROMISE: &str = r"(?-u:\b)S-[0-9]{2,}(?-u:\b)";
const GROUND: &str = r"(?-u:\b)(?:I[0-9]+|Rule [0-9]+)(?-u:\b)";

fn ids(pattern: &str, text: &str) -> Result<Ids> {
    let id = Regex::new(pattern)?;
    Ok(id.find_iter(text).map(|id| id.as_str().to_owned()).collect())
}
