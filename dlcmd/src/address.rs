//! Addresses, `dl://DATASET[/PATH]`, as typed by users.
//!
//! Must hold: an address is bytes, since names need not be UTF-8. Nothing in an address is decoded.
//! A refusal says how to write the address.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

use clap::builder::{OsStringValueParser, TypedValueParser, ValueParser, ValueParserFactory};
use dl_format::{DatasetName, DirPath, FilePath};

use crate::text::escaped;

const SCHEME: &[u8] = b"dl://";

/// A dataset, or a file or folder in a dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) dataset: DatasetName,
    /// The file or folder; `None` for the root.
    pub(crate) path: Option<FilePath>,
    /// Whether the address ends in a slash, and so can only mean a folder.
    pub(crate) is_folder: bool,
}

/// The reason why a text is not an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct InvalidAddress(String);

impl Address {
    /// Parses an address.
    pub(crate) fn parse(typed: &OsStr) -> Result<Self, InvalidAddress> {
        let typed = typed.as_bytes();
        let Some(rest) = typed.strip_prefix(SCHEME) else {
            return Err(InvalidAddress(no_scheme(typed)));
        };
        let end = rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len());
        let (name, path) = rest.split_at(end);
        let name = String::from_utf8_lossy(name);
        let dataset = DatasetName::new(name.as_ref()).map_err(|why| {
            InvalidAddress(if name.is_empty() {
                "no dataset is named; type dl://DATASET or dl://DATASET/PATH".to_owned()
            } else {
                format!("{} can't be a dataset: {why}", escaped(name.as_bytes()))
            })
        })?;
        let path = path.strip_prefix(b"/").unwrap_or_default();
        let (path, is_folder) = match path.strip_suffix(b"/") {
            Some(folder) => (folder, true),
            None => (path, false),
        };
        if path.is_empty() && !is_folder {
            return Ok(Self { dataset, path: None, is_folder: true });
        }
        let path = FilePath::new(path.to_vec()).map_err(|why| {
            InvalidAddress(format!("{} has no legal path: {why}", escaped(typed)))
        })?;
        Ok(Self { dataset, path: Some(path), is_folder })
    }

    /// The addressed folder.
    pub(crate) fn folder(&self) -> DirPath {
        self.path.clone().map_or(DirPath::ROOT, DirPath::from)
    }
}

impl ValueParserFactory for Address {
    type Parser = ValueParser;

    fn value_parser() -> ValueParser {
        OsStringValueParser::new().try_map(|typed| Self::parse(&typed)).into()
    }
}

/// The address as typed, escaped for a terminal.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "dl://{}", self.dataset)?;
        match &self.path {
            Some(path) => write!(f, "/{path}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for InvalidAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidAddress {}

fn no_scheme(typed: &[u8]) -> String {
    if typed.is_empty() {
        return "it is empty; type dl://DATASET or dl://DATASET/PATH".to_owned();
    }
    let after = typed.windows(3).position(|three| three == b"://").map(|at| at.saturating_add(3));
    let nearly =
        [&b"dl:/"[..], b"dl:", b"/"].into_iter().find_map(|start| typed.strip_prefix(start));
    let rest = after.and_then(|after| typed.get(after..)).or(nearly).unwrap_or(typed);
    let guess = [SCHEME, rest].concat();
    if Address::parse(OsStr::from_bytes(&guess)).is_ok() {
        format!("it does not start with dl://; did you mean {}?", escaped(&guess))
    } else {
        "it does not start with dl://; type dl://DATASET or dl://DATASET/PATH".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(typed: &[u8]) -> Result<Address, String> {
        Address::parse(OsStr::from_bytes(typed)).map_err(|why| why.to_string())
    }

    #[test]
    fn an_address_tells_datasets_folders_and_files_apart() {
        for (typed, path, is_folder) in [
            (&b"dl://photos"[..], None, true),
            (b"dl://photos/", None, true),
            (b"dl://photos/a/b.jpg", Some(&b"a/b.jpg"[..]), false),
            (b"dl://photos/a/", Some(b"a"), true),
            (b"dl://photos/\xFF \n", Some(b"\xFF \n"), false),
            (b"dl://photos/a%20b", Some(b"a%20b"), false),
        ] {
            let address = parse(typed).expect("legal");
            assert_eq!(address.dataset.as_str(), "photos");
            assert_eq!(address.path.as_ref().map(FilePath::as_bytes), path, "{typed:?}");
            assert_eq!(address.is_folder, is_folder, "{typed:?}");
        }
    }

    #[test]
    fn a_refusal_says_how_to_write_the_address() {
        for (typed, hint) in [
            (&b"photos/a"[..], "did you mean dl://photos/a?"),
            (b"dl:/photos", "did you mean dl://photos?"),
            (b"dl:photos", "did you mean dl://photos?"),
            (b"/photos", "did you mean dl://photos?"),
            (b"s3://photos/a", "did you mean dl://photos/a?"),
            (b"DL://photos", "did you mean dl://photos?"),
            (b"", "type dl://DATASET"),
            (b"-- --", "type dl://DATASET"),
            (b"dl://", "no dataset is named"),
            (b"dl:///a", "no dataset is named"),
            (b"dl://.a", "can't be a dataset"),
            (b"dl://a/../b", "can't have an empty part, . or .."),
            (b"dl://a//b", "can't start with /"),
        ] {
            let refused = parse(typed).expect_err("not an address");
            assert!(refused.contains(hint), "{}: {refused}", escaped(typed));
        }
    }

    #[test]
    fn an_address_prints_as_it_is_typed_and_safe_for_a_terminal() {
        let address = parse(b"dl://photos/a\x1B/").expect("legal");
        assert_eq!(address.to_string(), "dl://photos/a\\x1B");
    }
}
