//! Names of tests are short, and like messages for users they name their subjects.

use std::path::{Path, PathBuf};

use anyhow::Result;
use dl_tests::workspace;
use proc_macro2::{TokenStream, TokenTree};

use super::prose::{Share, Shares, breaches, share, words_of};
use super::source::{self, Item};
use super::{hold, sizes};

const LONG: &str = "The name of a test has less than 60 characters:";
const NAMES: &str = "Of 100 words of test names at most 4 stand in for a noun; name the subject:";
const MESSAGES: &str = "Of 100 words of messages at most 4 stand in for a noun; name the subject:";

const LENGTH_MAX: usize = 59;

/// A text with fewer words is a name, not a message.
const MESSAGE_WORDS: usize = 4;

#[test]
fn names_of_tests_are_short_and_name_their_subjects() -> Result<()> {
    let (mut long, mut shares) = (Vec::new(), Shares::new());
    for file in rust_files()? {
        let names = test_names(source::items_of(&file)?);
        let too_long = names.iter().filter(|name| name.len() > LENGTH_MAX);
        long.extend(too_long.map(|name| format!("{}: {name}", file.display())));
        let words: Vec<_> = names.iter().map(|name| name.replace('_', " ")).collect();
        shares.push((file, share(&words, words_of)));
    }
    hold(LONG, &long);
    hold(NAMES, &breaches(shares));
    Ok(())
}

#[test]
fn messages_name_their_subjects() -> Result<()> {
    let mut shares = Shares::new();
    for file in rust_files()?.into_iter().filter(|file| !is_for_tests(file)) {
        shares.push((file.clone(), share(&messages(source::items_of(&file)?), words_of)));
    }
    hold(MESSAGES, &breaches(shares));
    Ok(())
}

#[test]
fn test_names_and_messages_are_found() -> Result<()> {
    let text = "mod a { #[test] fn one_that_waits() {} fn b() { c(\"no room for that {file}\", \"it\"); } }
                #[cfg(test)] mod tests { fn d() { e(\"one of these four words\"); } }";
    let items = || anyhow::Ok(source::items(source::tokens(text)?));
    assert_eq!(test_names(items()?), ["one_that_waits"]);
    let found = messages(items()?);
    assert_eq!(found, ["no room for that {file}"]);
    assert_eq!(share(&found, words_of), Share { stand_ins: 1, all: 5 });
    Ok(())
}

fn rust_files() -> Result<Vec<PathBuf>> {
    let mut files = workspace::files()?;
    files.retain(|file| {
        file.extension().is_some_and(|extension| extension == "rs") && !sizes::is_generated(file)
    });
    Ok(files)
}

fn is_for_tests(file: &Path) -> bool {
    let of_tests = |part: &str| ["tests", "tests.rs", "benches", "testing.rs"].contains(&part);
    file.iter().any(|part| part.to_str().is_some_and(of_tests))
}

fn test_names(items: Vec<Item>) -> Vec<String> {
    source::all_items(items).iter().filter(|item| item.is_test()).filter_map(Item::name).collect()
}

/// The texts of a file outside of tests that are sentences or parts of sentences.
fn messages(items: Vec<Item>) -> Vec<String> {
    let mut found = Vec::new();
    for item in items.into_iter().filter(|item| !item.is_for_tests()) {
        texts(item.head.into_iter().collect(), &mut found);
        item.body.into_iter().for_each(|body| texts(body.stream(), &mut found));
    }
    found.retain(|text| text.split_whitespace().count() >= MESSAGE_WORDS);
    found
}

fn texts(stream: TokenStream, found: &mut Vec<String>) {
    for token in stream {
        match token {
            TokenTree::Group(group) => texts(group.stream(), found),
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                let inner = text.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
                found.extend(inner.map(str::to_owned));
            }
            TokenTree::Ident(_) | TokenTree::Punct(_) => {}
        }
    }
}
