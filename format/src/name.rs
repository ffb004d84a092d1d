//! Names of datasets: safe in an object key, a URL and a file name.
//!
//! Must hold: no name leaves its folder, or needs escaping.

use std::fmt;
use std::str::FromStr;

use crate::layout::NAME_MAX;

/// A text that is no valid name of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a dataset's name starts with a letter or digit and has at most 128 of A-Z a-z 0-9 . _ -")]
pub struct InvalidName;

/// `[A-Za-z0-9][A-Za-z0-9._-]{0,127}`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatasetName(String);

impl DatasetName {
    /// Checks and stores `text`.
    ///
    /// # Errors
    /// When the text breaks the rule of the type.
    pub fn new(text: impl Into<String>) -> Result<Self, InvalidName> {
        let text = text.into();
        let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        let rest = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
        if first && rest && text.len() <= NAME_MAX { Ok(Self(text)) } else { Err(InvalidName) }
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for DatasetName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        Self::new(text)
    }
}

impl fmt::Display for DatasetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for DatasetName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatasetName({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_escape_a_folder_are_refused() {
        for good in ["a", "ImageNet-1k_v2.0", "0", &"x".repeat(128)] {
            assert!(DatasetName::new(good).is_ok(), "{good}");
        }
        for bad in ["", ".", "..", "-a", "_a", "a/b", "a b", "é", &"x".repeat(129)] {
            assert_eq!(DatasetName::new(bad), Err(InvalidName), "{bad}");
        }
    }
}
