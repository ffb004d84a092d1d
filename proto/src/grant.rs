//! Rights of users: a role on the datasets whose names match a pattern.
//!
//! Must hold: a role includes the lower roles; a pattern reveals nothing about existing datasets.

use std::fmt;
use std::str::FromStr;

use dl_format::DatasetName;

/// A user's rights on a dataset. Each role includes the roles before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// List the dataset and read its files.
    Read,
    /// Create the dataset, put and delete files.
    Write,
    /// Delete the dataset, rebuild its metadata, purge and verify the dataset.
    Admin,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Admin => "admin",
        })
    }
}

impl FromStr for Role {
    type Err = InvalidGrant;

    fn from_str(text: &str) -> Result<Self, InvalidGrant> {
        match text {
            "read" => Ok(Self::Read),
            "write" => Ok(Self::Write),
            "admin" => Ok(Self::Admin),
            _ => Err(InvalidGrant),
        }
    }
}

/// A pattern for dataset names, with `*` for any number of characters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern(String);

impl Pattern {
    /// Whether the name matches.
    pub fn matches(&self, name: &DatasetName) -> bool {
        let mut pieces = self.0.split('*');
        let first = pieces.next().unwrap_or_default();
        let Some(mut rest) = name.as_str().strip_prefix(first) else { return false };
        let Some(last) = pieces.next_back() else { return rest.is_empty() };
        for piece in pieces {
            // The earliest match leaves most characters for the following pieces.
            let Some(found) = rest.split_once(piece) else { return false };
            rest = found.1;
        }
        rest.ends_with(last)
    }

    /// Whether every name matches.
    pub fn is_all(&self) -> bool {
        self.0.bytes().all(|byte| byte == b'*')
    }
}

impl FromStr for Pattern {
    type Err = InvalidGrant;

    fn from_str(text: &str) -> Result<Self, InvalidGrant> {
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-*".contains(&byte);
        let is_pattern = (1..=128).contains(&text.len()) && text.bytes().all(is_legal);
        is_pattern.then(|| Self(text.to_owned())).ok_or(InvalidGrant)
    }
}

/// A role on datasets, as in `read:imagenet*`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Grant {
    /// The role.
    pub role: Role,
    /// The datasets.
    pub datasets: Pattern,
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.role, self.datasets.0)
    }
}

impl FromStr for Grant {
    type Err = InvalidGrant;

    fn from_str(text: &str) -> Result<Self, InvalidGrant> {
        let (role, datasets) = text.split_once(':').ok_or(InvalidGrant)?;
        Ok(Self { role: role.parse()?, datasets: datasets.parse()? })
    }
}

/// A text that is no valid grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("write ROLE:PATTERN: read, write or admin, then names of datasets with * for any letters")]
pub struct InvalidGrant;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_number_of_characters() {
        for (pattern, yes, no) in [
            ("imagenet", &["imagenet"][..], &["imagenet2", "aimagenet", "Imagenet"][..]),
            ("imagenet*", &["imagenet", "imagenet-val"], &["imagene", "my-imagenet"]),
            ("*-val", &["a-val", "a-val-val"], &["val", "a-val2"]),
            ("a*b*c", &["abc", "a1b2c", "abbcc", "abcbc"], &["ac", "acb", "abcd"]),
            ("a*a", &["aa", "aba"], &["a", "ab"]),
            ("*", &["a", "x.y_z-1"], &[]),
            ("**", &["a"], &[]),
        ] {
            let pattern: Pattern = pattern.parse().unwrap();
            for name in yes {
                assert!(pattern.matches(&DatasetName::new(*name).unwrap()), "{pattern:?} {name}");
            }
            for name in no {
                assert!(!pattern.matches(&DatasetName::new(*name).unwrap()), "{pattern:?} {name}");
            }
            assert_eq!(pattern.is_all(), no.is_empty());
        }
    }

    #[test]
    fn a_grant_is_read_as_it_is_written() {
        for text in ["read:imagenet*", "write:a", "admin:*"] {
            assert_eq!(text.parse::<Grant>().unwrap().to_string(), text);
        }
        for wrong in ["", "read", "read:", "own:a", "Read:a", "read:a b", "read:a/b", "read:a:b"] {
            assert_eq!(wrong.parse::<Grant>(), Err(InvalidGrant), "{wrong}");
        }
    }
}
