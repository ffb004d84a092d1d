//! Paths as callers write them: checked paths, or text and bytes to be checked by the call.
//!
//! Must hold: an invalid path is refused before a request is sent, by an error with the text of the path.

use std::borrow::Cow;

use dl_format::{DirPath, FilePath, InvalidPath};

use crate::error::{Error, Kind};

/// A path of a dataset: a [`FilePath`] or [`DirPath`], text (`str`, `String`), or bytes (`[u8]`,
/// `Vec<u8>`), or a reference to such a value. A call fails with [`Kind::Invalid`] for text against the
/// rules of the checked type.
///
/// The empty text is the root where a folder is wanted. Only this crate implements the trait.
pub trait AsPath<P: sealed::Path>: sealed::Sealed {
    /// The checked path; an error names `action`.
    #[doc(hidden)]
    fn as_path(&self, action: &'static str) -> Result<Cow<'_, P>, Error>;
}

mod sealed {
    use super::{DirPath, FilePath, InvalidPath};

    pub trait Sealed {}

    /// A checked type.
    pub trait Path: Clone + Sealed {
        fn of(bytes: &[u8]) -> Result<Self, InvalidPath>;
    }

    impl Path for FilePath {
        fn of(bytes: &[u8]) -> Result<Self, InvalidPath> {
            Self::new(bytes.to_vec())
        }
    }

    impl Path for DirPath {
        fn of(bytes: &[u8]) -> Result<Self, InvalidPath> {
            Self::new(bytes.to_vec())
        }
    }

    impl Sealed for FilePath {}
    impl Sealed for DirPath {}
    impl Sealed for str {}
    impl Sealed for String {}
    impl Sealed for [u8] {}
    impl Sealed for Vec<u8> {}
    impl<const N: usize> Sealed for [u8; N] {}
    #[deny(clippy::missing_trait_methods)]
    impl<T: Sealed + ?Sized> Sealed for &T {}
}

impl AsPath<FilePath> for FilePath {
    fn as_path(&self, _: &'static str) -> Result<Cow<'_, FilePath>, Error> {
        Ok(Cow::Borrowed(self))
    }
}

impl AsPath<DirPath> for DirPath {
    fn as_path(&self, _: &'static str) -> Result<Cow<'_, DirPath>, Error> {
        Ok(Cow::Borrowed(self))
    }
}

#[deny(clippy::missing_trait_methods)]
impl<P: sealed::Path, T: AsPath<P> + ?Sized> AsPath<P> for &T {
    fn as_path(&self, action: &'static str) -> Result<Cow<'_, P>, Error> {
        (**self).as_path(action)
    }
}

impl<P: sealed::Path> AsPath<P> for [u8] {
    fn as_path(&self, action: &'static str) -> Result<Cow<'_, P>, Error> {
        P::of(self).map(Cow::Owned).map_err(|why| {
            let text = String::from_utf8_lossy(self);
            Error::new(Kind::Invalid, action, text.escape_debug(), why)
        })
    }
}

impl<P: sealed::Path> AsPath<P> for str {
    fn as_path(&self, action: &'static str) -> Result<Cow<'_, P>, Error> {
        self.as_bytes().as_path(action)
    }
}

impl<P: sealed::Path> AsPath<P> for String {
    fn as_path(&self, action: &'static str) -> Result<Cow<'_, P>, Error> {
        self.as_bytes().as_path(action)
    }
}

impl<P: sealed::Path> AsPath<P> for Vec<u8> {
    fn as_path(&self, action: &'static str) -> Result<Cow<'_, P>, Error> {
        self.as_slice().as_path(action)
    }
}

impl<P: sealed::Path, const N: usize> AsPath<P> for [u8; N] {
    fn as_path(&self, action: &'static str) -> Result<Cow<'_, P>, Error> {
        self.as_slice().as_path(action)
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn all_forms_of_a_path_give_the_same_path() {
        fn file(path: impl AsPath<FilePath>) -> FilePath {
            path.as_path("read").unwrap().into_owned()
        }
        let path = FilePath::new("train/a.jpg").unwrap();
        let text = "train/a.jpg".to_owned();
        let all = [
            file("train/a.jpg"),
            file(&text),
            file(text.clone()),
            file(b"train/a.jpg"),
            file(text.as_bytes()),
            file(text.into_bytes()),
            file(&path),
            file(path.clone()),
        ];
        assert!(all.iter().all(|form| *form == path), "{all:?}");
        let root: Cow<'_, DirPath> = "".as_path("list").unwrap();
        assert!(root.is_root());
    }

    #[test]
    fn an_invalid_path_gives_an_error_with_its_text() {
        for (text, shown, why) in [
            ("", "read ", InvalidPath::Empty),
            ("/a", "read /a", InvalidPath::Absolute),
            ("a//b", "read a//b", InvalidPath::Component),
            ("a\0b", "read a\\0b", InvalidPath::Nul),
        ] {
            let refused: Result<Cow<'_, FilePath>, _> = text.as_path("read");
            let error = refused.unwrap_err();
            assert_eq!((error.kind(), error.to_string()), (Kind::Invalid, shown.to_owned()));
            assert_eq!(error.source().unwrap().to_string(), why.to_string());
        }
    }
}
