//! Failures of single files, grouped by cause.
//!
//! Must hold: a cause of thousands of failures is reported once, with the number of files and the
//! first ten names. Memory is bounded for any number of failures.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::Mutex;

use dl_runtime::locked;

use crate::text::counted;

/// Maximum of names reported for a cause.
const NAMES: usize = 10;
/// Maximum length of a word compared between causes; longer words are ids or keys.
const WORD: usize = 20;
/// Maximum of separate causes.
const CAUSES: usize = 64;

/// Failures by action and cause, shared by threads.
#[derive(Debug, Default)]
pub(crate) struct Causes(Mutex<BTreeMap<(&'static str, String), Group>>);

#[derive(Debug)]
struct Group {
    /// The cause in the words of the first failure.
    why: String,
    count: u64,
    names: Vec<String>,
}

impl Causes {
    /// Counts a file for which `action` failed.
    pub(crate) fn add(&self, action: &'static str, name: impl Display, why: impl Display) {
        let mut groups = locked(&self.0);
        let why = why.to_string();
        let key = (action, without_numbers(&why));
        let is_known = groups.contains_key(&key) || groups.len() < CAUSES;
        let group = if is_known {
            groups.entry(key).or_insert_with(|| Group::new(why))
        } else {
            let group = groups.entry((action, String::new()));
            group.or_insert_with(|| Group::new("for many other reasons".to_owned()))
        };
        group.count += 1;
        if group.names.len() < NAMES {
            group.names.push(name.to_string());
        }
    }

    /// Reports all failures since the last call, one text for each cause.
    pub(crate) fn drain(&self, mut print: impl FnMut(String)) {
        let groups = std::mem::take(&mut *locked(&self.0));
        for ((action, _), group) in groups {
            print(group.text(action));
        }
    }
}

impl Group {
    fn new(why: String) -> Self {
        Self { why, count: 0, names: Vec::new() }
    }

    fn text(&self, action: &str) -> String {
        let Self { why, count, names } = self;
        if let (1, [name]) = (count, names.as_slice()) {
            return format!("{action} {name}: {why}");
        }
        let mut text = format!("{action} {}: {why}", counted(*count, "file"));
        for name in names {
            // Writing into a string can't fail.
            let _ = write!(text, "\n  {name}");
        }
        let more = count.saturating_sub(names.len() as u64);
        if more > 0 {
            let _ = write!(text, "\n  and {more} more");
        }
        text
    }
}

/// A cause without the words that differ between files: ids, keys, addresses and counts.
fn without_numbers(why: &str) -> String {
    let is_same =
        |word: &&str| word.len() <= WORD && !word.contains(|letter: char| letter.is_ascii_digit());
    why.split_whitespace().filter(is_same).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(causes: &Causes) -> Vec<String> {
        let mut drained_texts = Vec::new();
        causes.drain(|text| drained_texts.push(text));
        drained_texts
    }

    #[test]
    fn a_cause_is_reported_once_with_its_count_and_ten_names() {
        let causes = Causes::default();
        for number in 0..12_241 {
            causes.add("store", format!("f{number}"), format!("chunk {number:022}: it is full"));
        }
        causes.add("read", "secret", "Permission denied");
        let all = drained(&causes);
        let [one, many] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!(one, "read secret: Permission denied");
        let lines: Vec<_> = many.lines().collect();
        assert_eq!(lines[0], format!("store 12241 files: chunk {:022}: it is full", 0));
        assert_eq!(lines.get(10), Some(&"  f9"));
        assert_eq!(lines.get(11..), Some(&["  and 12231 more"][..]));
        assert_eq!(drained(&causes), [""; 0], "a second drain returns nothing");
    }

    #[test]
    fn the_number_of_stored_causes_is_bounded() {
        let causes = Causes::default();
        let word = |number: u8| char::from(b'a' + number % 26).to_string();
        for number in 0..100 {
            causes.add("get", number, word(number) + &word(number / 26));
        }
        let drained_texts = drained(&causes);
        assert_eq!(drained_texts.len(), CAUSES + 1);
        assert!(drained_texts.iter().any(|text| text.contains("and 26 more")), "{drained_texts:?}");
    }
}
