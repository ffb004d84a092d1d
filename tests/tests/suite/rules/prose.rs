//! Doc comments and documents name their subjects, and promises are short.
//!
//! Must hold: few words stand in for a noun, and few sentences of doc comments open with such a word. Code
//! and the targets of links are left out.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};
use dl_tests::workspace;
use regex::Regex;

use super::{hold, sizes};

const COMMENTS: &str =
    "Of 100 words of doc comments at most 4 stand in for a noun; name the subject:";
const DOCUMENTS: &str =
    "Of 100 words of documents at most 4 stand in for a noun; name the subject:";
const OPENINGS: &str =
    "Of 100 sentences of doc comments at most 4 open with a stand-in; name the subject:";
const CELLS: &str = "A cell of docs/SEMANTICS.md has at most 60 words; split the promise:";

const PROMISES: &str = "docs/SEMANTICS.md";

const STAND_INS: [&str; 11] =
    ["what", "who", "whoever", "that", "it", "one", "those", "these", "others", "some", "this"];
const PERCENT_MAX: usize = 4;
const CELL_WORDS_MAX: usize = 60;

/// Files in a message, the worst first.
const SHOWN: usize = 20;

/// Stand-in words, or sentences with such a word in front, of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Share {
    pub(super) stand_ins: usize,
    pub(super) all: usize,
}

impl Share {
    fn add(&mut self, word: &str) {
        self.all += 1;
        self.stand_ins +=
            usize::from(STAND_INS.iter().any(|stand_in| word.eq_ignore_ascii_case(stand_in)));
    }

    fn is_too_large(self) -> bool {
        self.stand_ins * 100 > self.all * PERCENT_MAX
    }
}

/// The share of each file.
pub(super) type Shares = Vec<(PathBuf, Share)>;

#[test]
fn doc_comments_name_their_subjects() -> Result<()> {
    let (mut words, mut openings) = (Shares::new(), Shares::new());
    for file in workspace::files()? {
        if file.extension().is_some_and(|extension| extension == "rs")
            && !sizes::is_generated(&file)
            && let Some(text) = workspace::text(&file)?
        {
            let comments = doc_comments(&text);
            words.push((file.clone(), share(&comments, words_of)));
            openings.push((file, share(&comments, openings_of)));
        }
    }
    hold(COMMENTS, &breaches(words));
    hold(OPENINGS, &breaches(openings));
    Ok(())
}

#[test]
fn documents_name_their_subjects() -> Result<()> {
    let mut words = Shares::new();
    for file in workspace::files()? {
        if file.extension().is_some_and(|extension| extension == "md")
            && let Some(text) = workspace::text(&file)?
        {
            words.push((file, share(&paragraphs(&text), words_of)));
        }
    }
    hold(DOCUMENTS, &breaches(words));
    Ok(())
}

#[test]
fn cells_of_the_promises_are_short() -> Result<()> {
    let text = workspace::text(Path::new(PROMISES))?.context("the document is text")?;
    hold(CELLS, &long_cells(&text));
    Ok(())
}

#[test]
fn stand_ins_and_long_cells_are_found() -> Result<()> {
    let code = "/// It runs `what that`: [one](this). Files: that.\n/// ```\n/// what\n/// ```\n\
                fn a() {}\n//// Others\n//! The server\n//! reads.\n";
    let comments = doc_comments(code);
    ensure!(comments.len() == 2, "{comments:?}");
    ensure!(share(&comments, words_of) == Share { stand_ins: 3, all: 8 }, "{comments:?}");
    ensure!(share(&comments, openings_of) == Share { stand_ins: 3, all: 5 }, "{comments:?}");
    let page = paragraphs("# What\n```sh\nwhat\n```\nThe *others* wait.\n");
    ensure!(share(&page, words_of) == Share { stand_ins: 2, all: 4 }, "{page:?}");

    let file = |name: &str, stand_ins, all| (PathBuf::from(name), Share { stand_ins, all });
    ensure!(breaches(vec![file("a", 4, 50), file("b", 0, 50)]).is_empty(), "4 % are allowed");
    let found = breaches(vec![file("a", 1, 50), file("b", 0, 10), file("c", 4, 40)]);
    ensure!(found == ["c: 4 of 40", "a: 1 of 50"], "{found:?}");

    let row = |words: usize| format!("text\n| S-01 | {}|\n", "word ".repeat(words));
    ensure!(long_cells(&row(60)).is_empty(), "60 words are allowed");
    ensure!(
        long_cells(&row(61)) == ["docs/SEMANTICS.md:2: 61 words"],
        "{:?}",
        long_cells(&row(61))
    );
    Ok(())
}

/// The files with stand-ins, if all files together have too many.
pub(super) fn breaches(mut shares: Shares) -> Vec<String> {
    let mut total = Share::default();
    for (_, share) in &shares {
        total.stand_ins += share.stand_ins;
        total.all += share.all;
    }
    if !total.is_too_large() {
        return Vec::new();
    }
    shares.retain(|(_, share)| share.stand_ins > 0);
    shares.sort_by_key(|(_, share)| std::cmp::Reverse(share.stand_ins));
    let shown = shares.iter().take(SHOWN);
    shown
        .map(|(file, share)| format!("{}: {} of {}", file.display(), share.stand_ins, share.all))
        .collect()
}

pub(super) fn share(texts: &[String], add: fn(&str, &mut Share)) -> Share {
    let mut share = Share::default();
    for text in texts {
        add(text, &mut share);
    }
    share
}

pub(super) fn words_of(text: &str, share: &mut Share) {
    let text = SPAN.replace_all(text, " ");
    let text = TARGET.replace_all(&text, " ");
    for word in WORD.find_iter(&text) {
        share.add(word.as_str());
    }
}

fn openings_of(text: &str, share: &mut Share) {
    let text = SPAN.replace_all(text, "X");
    for word in SENTENCE_END.split(&text).filter_map(|sentence| WORD.find(sentence)) {
        share.add(word.as_str());
    }
}

/// The doc comments of a file, each in a line and without its code blocks.
fn doc_comments(text: &str) -> Vec<String> {
    let (mut comments, mut is_comment, mut is_code) = (Vec::<String>::new(), false, false);
    for line in text.lines().map(str::trim_start) {
        let doc = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        let Some(doc) = doc.filter(|_| !line.starts_with("////")) else {
            is_comment = false;
            continue;
        };
        if !is_comment {
            comments.push(String::new());
            (is_comment, is_code) = (true, false);
        }
        let doc = doc.strip_prefix(' ').unwrap_or(doc);
        if doc.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if let Some(comment) = comments.last_mut().filter(|_| !is_code) {
            comment.push_str(doc);
            comment.push(' ');
        }
    }
    comments
}

/// The text of a page between its code blocks.
fn paragraphs(page: &str) -> Vec<String> {
    page.split("```").step_by(2).map(str::to_owned).collect()
}

fn long_cells(page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (index, row) in page.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
        for words in row.split('|').map(|cell| cell.split_whitespace().count()) {
            if words > CELL_WORDS_MAX {
                found.push(format!("{PROMISES}:{}: {words} words", index + 1));
            }
        }
    }
    found
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is fixed")
}

static SPAN: LazyLock<Regex> = LazyLock::new(|| regex("`[^`]*`"));
static TARGET: LazyLock<Regex> = LazyLock::new(|| regex(r"\]\([^)]*\)"));
static WORD: LazyLock<Regex> = LazyLock::new(|| regex("[A-Za-z][A-Za-z'’-]*"));
static SENTENCE_END: LazyLock<Regex> = LazyLock::new(|| regex(r"[.:;!?][ \t\n]+|[ \t\n]{2,}"));
