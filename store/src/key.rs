//! Names of objects.
//!
//! Must hold: a key is a legal file name path, a legal object name everywhere, and needs no
//! escaping in a URL, a log line or a shell.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

const MAX_KEY: usize = 1024;
const MAX_SEGMENT: usize = 255;

/// Segments of `[A-Za-z0-9._-]`, 1 to 255 bytes each and none with a leading dot, joined by
/// `/`; at most 1,024 bytes in all. Cheap to clone; byte order is the order of names.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

/// The text is no key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no object key: give segments of A-Z a-z 0-9 . _ - joined by /, \
     none empty or with a leading dot, each at most 255 bytes, all at most 1024"
)]
pub struct InvalidKey(String);

impl Key {
    /// Checks `key` and keeps it.
    ///
    /// # Errors
    /// The text does not have the form that the type describes.
    pub fn new(key: impl Into<Arc<str>>) -> Result<Self, InvalidKey> {
        let key = key.into();
        if key.len() <= MAX_KEY && key.split('/').all(is_segment) {
            Ok(Self(key))
        } else {
            Err(InvalidKey(key.to_string()))
        }
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Leading dots are kept for what a store needs beside its objects, and rule out `.` and `..`.
fn is_segment(segment: &str) -> bool {
    (1..=MAX_SEGMENT).contains(&segment.len())
        && !segment.starts_with('.')
        && segment.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

impl FromStr for Key {
    type Err = InvalidKey;

    fn from_str(key: &str) -> Result<Self, InvalidKey> {
        Self::new(key)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.0)
    }
}

/// Whole leading segments of keys; the root is above all keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Prefix(Option<Key>);

impl Prefix {
    /// Above every key.
    pub const ROOT: Self = Self(None);

    /// The leading segments `prefix`, without a `/` at the end.
    ///
    /// # Errors
    /// When they are no key.
    pub fn new(prefix: impl Into<Arc<str>>) -> Result<Self, InvalidKey> {
        Key::new(prefix).map(|key| Self(Some(key)))
    }

    /// Whether `key` lies strictly below.
    pub fn contains(&self, key: &Key) -> bool {
        self.0.as_ref().is_none_or(|prefix| {
            key.0.strip_prefix(prefix.as_str()).is_some_and(|rest| rest.starts_with('/'))
        })
    }

    /// The segments as text; empty for the root.
    pub fn as_str(&self) -> &str {
        self.0.as_ref().map_or("", Key::as_str)
    }
}

impl From<Key> for Prefix {
    fn from(key: Key) -> Self {
        Self(Some(key))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::*;

    #[test]
    fn keys_are_plain_segments_within_their_limits() {
        let longest = format!("{0}/{0}/{0}/{0}", "s".repeat(MAX_SEGMENT));
        assert_eq!(longest.len(), MAX_KEY - 1);
        for key in ["a", "names/my-set/00000001", "A.b_c-9/x..t", &longest] {
            assert_eq!(Key::new(key).unwrap().as_str(), key);
        }
        let long_segment = "s".repeat(MAX_SEGMENT + 1);
        let long_key = format!("{longest}/t");
        let refused =
            ["", "/a", "a/", "a//b", ".", "a/..", ".staging/x", "a b", "ä", "a\0", "a\\b", "a?"];
        for key in refused.into_iter().chain([&*long_segment, &*long_key]) {
            assert!(Key::new(key).is_err(), "{key:?}");
        }
    }

    #[test]
    fn a_prefix_holds_what_lies_below_its_whole_segments() {
        let prefix = Prefix::new("a/b").unwrap();
        let below = |key: &str| prefix.contains(&Key::new(key).unwrap());
        assert!(below("a/b/c") && below("a/b/c/d"));
        assert!(!below("a/b") && !below("a/bc") && !below("a") && !below("b/a/b"));
        assert!(Prefix::ROOT.contains(&Key::new("a").unwrap()));
    }

    proptest! {
        #[test]
        fn every_text_is_kept_as_it_is_or_refused(text in ".{0,40}") {
            if let Ok(key) = Key::new(text.as_str()) {
                prop_assert_eq!(key.as_str(), text);
            }
        }
    }
}
