//! Paths inside a dataset: bytes, checked once.
//!
//! Must hold: every path obeys the rules of docs/FORMAT.md, wherever its bytes came from.

use std::fmt;

use bytes::Bytes;

use crate::layout::{COMPONENT_MAX, PATH_MAX};

/// The reason why bytes are not a valid path in a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPath {
    /// No bytes.
    #[error("a path can't be empty")]
    Empty,
    /// Over 4,096 bytes.
    #[error("a path has at most 4096 bytes")]
    TooLong,
    /// A component over 255 bytes.
    #[error("each part of a path has at most 255 bytes")]
    ComponentTooLong,
    /// A NUL byte.
    #[error("a path can't hold a NUL byte")]
    Nul,
    /// Starts with a slash.
    #[error("a path in a dataset is relative: it can't start with /")]
    Absolute,
    /// An empty component, `.` or `..`.
    #[error("a path can't have an empty part, . or ..")]
    Component,
}

/// The path of a file in its dataset: 1 to 4,096 bytes in components of 1 to 255 bytes between
/// single slashes. A path has no NUL, `.` or `..`, and is not absolute. Paths are ordered by their
/// bytes and cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePath(Bytes);

impl FilePath {
    /// Checks and stores `bytes`.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, InvalidPath> {
        let bytes = bytes.into();
        check(&bytes)?;
        Ok(Self(bytes))
    }

    /// Stores bytes checked before by [`check`].
    pub(crate) fn from_checked(bytes: Bytes) -> Self {
        Self(bytes)
    }

    /// The bytes, as given.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes, without a copy.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }

    /// The last component.
    pub fn name(&self) -> &[u8] {
        self.0.rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }

    /// The folder of the file.
    pub fn parent(&self) -> DirPath {
        let end = self.0.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        DirPath(self.0.slice(..end))
    }

    /// `dir/self`.
    ///
    /// # Errors
    /// [`InvalidPath::TooLong`] if the joined path is too long.
    pub fn under(&self, dir: &DirPath) -> Result<Self, InvalidPath> {
        if dir.is_root() {
            return Ok(self.clone());
        }
        let joined = [dir.as_bytes(), self.as_bytes()].join(&b'/');
        if joined.len() > PATH_MAX { Err(InvalidPath::TooLong) } else { Ok(Self(joined.into())) }
    }
}

/// Control bytes, backslashes and invalid UTF-8 as `\xHH`.
impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        printable(&self.0, f)
    }
}

impl fmt::Debug for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FilePath({self})")
    }
}

impl AsRef<[u8]> for FilePath {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl std::borrow::Borrow<[u8]> for FilePath {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

/// A folder of a dataset: its root (no bytes), or a path under the rules of [`FilePath`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirPath(Bytes);

impl DirPath {
    /// The root of a dataset.
    pub const ROOT: Self = Self(Bytes::new());

    /// Checks and stores `bytes`; no bytes mean the root.
    ///
    /// # Errors
    /// The first broken rule.
    pub fn new(bytes: impl Into<Bytes>) -> Result<Self, InvalidPath> {
        let bytes = bytes.into();
        if !bytes.is_empty() {
            check(&bytes)?;
        }
        Ok(Self(bytes))
    }

    /// The bytes, as given; none for the root.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether this is the root.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The common prefix of all paths inside: empty for the root, else `dir/`.
    pub fn prefix(&self) -> Vec<u8> {
        let mut prefix = self.0.to_vec();
        if !prefix.is_empty() {
            prefix.push(b'/');
        }
        prefix
    }
}

impl From<FilePath> for DirPath {
    fn from(path: FilePath) -> Self {
        Self(path.0)
    }
}

/// As [`FilePath`]; empty for the root.
impl fmt::Display for DirPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        printable(&self.0, f)
    }
}

impl fmt::Debug for DirPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirPath({self})")
    }
}

pub(crate) fn check(bytes: &[u8]) -> Result<(), InvalidPath> {
    if bytes.is_empty() {
        return Err(InvalidPath::Empty);
    }
    if bytes.len() > PATH_MAX {
        return Err(InvalidPath::TooLong);
    }
    if bytes.starts_with(b"/") {
        return Err(InvalidPath::Absolute);
    }
    // A single pass, since every name of every header is checked here.
    let mut start = 0usize;
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            0 => return Err(InvalidPath::Nul),
            b'/' => {
                check_component(bytes.get(start..at).unwrap_or_default())?;
                start = at.saturating_add(1);
            }
            _ => {}
        }
    }
    check_component(bytes.get(start..).unwrap_or_default())
}

fn check_component(component: &[u8]) -> Result<(), InvalidPath> {
    match component {
        b"" | b"." | b".." => Err(InvalidPath::Component),
        long if long.len() > COMPONENT_MAX => Err(InvalidPath::ComponentTooLong),
        _ => Ok(()),
    }
}

fn printable(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for piece in bytes.utf8_chunks() {
        for character in piece.valid().chars() {
            if character == '\\' || character.is_control() {
                let mut utf8 = [0; 4];
                for byte in character.encode_utf8(&mut utf8).bytes() {
                    write!(f, "\\x{byte:02X}")?;
                }
            } else {
                fmt::Write::write_char(f, character)?;
            }
        }
        for byte in piece.invalid() {
            write!(f, "\\x{byte:02X}")?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relative_clean_paths_are_paths() {
        for good in [&b"a"[..], b"a/b c/\xFF\n", b"..a/b..", &[b'x'; 255]] {
            assert!(FilePath::new(good.to_vec()).is_ok(), "{good:?}");
        }
        let long = [&[b'x'; 250][..]; 17].join(&b'/');
        for (bad, why) in [
            (&b""[..], InvalidPath::Empty),
            (b"/a", InvalidPath::Absolute),
            (b"a//b", InvalidPath::Component),
            (b"a/", InvalidPath::Component),
            (b"./a", InvalidPath::Component),
            (b"a/../b", InvalidPath::Component),
            (b"a\0b", InvalidPath::Nul),
            (&[b'x'; 256], InvalidPath::ComponentTooLong),
            (&long, InvalidPath::TooLong),
        ] {
            assert_eq!(FilePath::new(bad.to_vec()), Err(why), "{bad:?}");
        }
    }

    #[test]
    fn a_path_of_4096_bytes_is_legal_and_one_more_is_not() {
        let mut path = [&[b'x'; 255][..]; 16].join(&b'/');
        path.push(b'/');
        assert_eq!(path.len(), 4096);
        path.pop();
        assert!(FilePath::new(path.clone()).is_ok());
        path.truncate(4000);
        path.extend([b'y'; 96]);
        assert_eq!(
            FilePath::new(path).map(|path| path.as_bytes().len()),
            Err(InvalidPath::ComponentTooLong)
        );
    }

    #[test]
    fn printing_never_lets_control_bytes_through() {
        let path = FilePath::new(b"a\x1b[31m\\\xFFz\xC2\x85\xC3\xA9".to_vec()).expect("legal");
        assert_eq!(path.to_string(), "a\\x1B[31m\\x5C\\xFFz\\xC2\\x85é");
    }

    #[test]
    fn parent_and_under_are_each_other_s_inverse() {
        let path = FilePath::new(&b"a/b/c"[..]).expect("legal");
        assert_eq!(path.parent().as_bytes(), b"a/b");
        assert_eq!(path.name(), b"c");
        let name = FilePath::new(path.name().to_vec()).expect("legal");
        assert_eq!(name.under(&path.parent()), Ok(path));
        assert!(name.parent().is_root());
    }
}
