//! Texts of clients, as logs and answers show them.
//!
//! Must hold: a client's text neither breaks a line of the log nor fills the log.

use std::fmt::{self, Write};

/// Most characters shown: the length of the longest dataset name.
const CHARS: usize = 128;

/// The beginning of a text, in printable characters on a single line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown<'a>(pub(crate) &'a str);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = 0;
        for character in self.0.chars() {
            let escaped = character.escape_debug();
            shown += escaped.len();
            if shown > CHARS {
                return write!(f, "... ({} bytes)", self.0.len());
            }
            for character in escaped {
                f.write_char(character)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_shown_whole_and_other_text_in_one_line() {
        assert_eq!(Shown("imagenet-2012").to_string(), "imagenet-2012");
        let longest = "n".repeat(CHARS);
        assert_eq!(Shown(&longest).to_string(), longest);
        assert_eq!(Shown("a\nERROR all is lost").to_string(), "a\\nERROR all is lost");
        assert_eq!(Shown("\u{1b}[2J\0").to_string(), "\\u{1b}[2J\\0");
        let flood = "\n".repeat(2 << 20);
        let shown = Shown(&flood).to_string();
        assert!(shown.len() < 2 * CHARS && shown.ends_with("... (2097152 bytes)"), "{shown}");
    }
}
