//! Failures of single files, gathered by cause.
//!
//! Must hold: a cause that strikes thousands of files is told once, with their number and the first
//! ten names; memory is bounded, whatever fails.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::sync::{Mutex, PoisonError};

use crate::text::counted;

/// Names that are told of each cause.
const NAMES: usize = 10;
/// Letters of the longest word that is no id or key.
const WORD: usize = 20;
/// Causes that are told apart.
const CAUSES: usize = 64;

/// Failures by action and cause. Threads share it.
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
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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

    /// Tells of all failures that were not told of yet, one text for each cause.
    pub(crate) fn tell(&self, mut say: impl FnMut(String)) {
        let groups = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for ((action, _), group) in groups {
            say(group.text(action));
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
            // Nothing fails that is written into memory.
            let _ = write!(text, "\n  {name}");
        }
        let more = count.saturating_sub(names.len() as u64);
        if more > 0 {
            let _ = write!(text, "\n  and {more} more");
        }
        text
    }
}

/// A cause without its words that differ from file to file: ids, keys, addresses and counts.
fn without_numbers(why: &str) -> String {
    let is_same =
        |word: &&str| word.len() <= WORD && !word.contains(|letter: char| letter.is_ascii_digit());
    why.split_whitespace().filter(is_same).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(causes: &Causes) -> Vec<String> {
        let mut told = Vec::new();
        causes.tell(|text| told.push(text));
        told
    }

    #[test]
    fn a_cause_is_told_once_with_a_count_and_the_first_ten_names() {
        let causes = Causes::default();
        for number in 0..12_241 {
            causes.add("store", format!("f{number}"), format!("chunk {number:022}: it is full"));
        }
        causes.add("read", "secret", "Permission denied");
        let all = told(&causes);
        let [one, many] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!(one, "read secret: Permission denied");
        let lines: Vec<_> = many.lines().collect();
        assert_eq!(lines[0], format!("store 12241 files: chunk {:022}: it is full", 0));
        assert_eq!(lines.get(10), Some(&"  f9"));
        assert_eq!(lines.get(11..), Some(&["  and 12231 more"][..]));
        assert_eq!(told(&causes), [""; 0], "told once");
    }

    #[test]
    fn many_causes_take_no_more_memory_than_some() {
        let causes = Causes::default();
        let word = |number: u8| char::from(b'a' + number % 26).to_string();
        for number in 0..100 {
            causes.add("get", number, word(number) + &word(number / 26));
        }
        let told = told(&causes);
        assert_eq!(told.len(), CAUSES + 1);
        assert!(told.iter().any(|text| text.contains("and 26 more")), "{told:?}");
    }
}
