//! From an address to a store.
//!
//! Must hold: parsing an address does not touch the store.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use dl_runtime::{OsRandom, masked};

use crate::cloud::Address;
use crate::object::RemoteStore;
use crate::{Error, Kind, Store, local};

const SUPPORTED: &str = "give a folder, file:///DIR, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, \
                         az://CONTAINER/PREFIX or memory:";

/// The kinds of stores that an address names.
enum Location<'a> {
    Memory,
    Bucket(Address),
    Folder(&'a str),
}

impl<'a> Location<'a> {
    fn parse(url: &'a str) -> Option<Self> {
        match (url.split_once(':'), url.strip_prefix("file://")) {
            _ if url == "memory:" => Some(Self::Memory),
            _ if let Some(bucket) = Address::parse(url) => Some(Self::Bucket(bucket)),
            (_, Some(path)) if path.starts_with('/') => Some(Self::Folder(path)),
            (Some((scheme, _)), _) if is_scheme(scheme) => None,
            _ if url.is_empty() => None,
            _ => Some(Self::Folder(url)),
        }
    }
}

/// Checks the form of an address, and gives the folder of the store; none for a bucket and for memory.
/// The store may be missing.
///
/// # Errors
/// The forms of an address.
pub fn check(url: &str) -> Result<Option<&Path>, &'static str> {
    match Location::parse(url).ok_or(SUPPORTED)? {
        Location::Folder(path) => Ok(Some(Path::new(path))),
        Location::Memory | Location::Bucket(_) => Ok(None),
    }
}

/// Opens the store at `url`: a directory (`DIR`, `file:///DIR`), which is made when missing; an existing
/// bucket (`s3://`, `gs://`, `az://`); or `memory:`, an empty store that ends with the process. A path is
/// not percent-decoded.
///
/// `settings` are variables and their values, among them the variables that object_store reads for a
/// cloud: `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT`, `AWS_ALLOW_HTTP`, ...
///
/// # Errors
/// [`Kind::Unsupported`] for any other address; otherwise the failure of the opening.
pub async fn open_with(url: &str, settings: &[(String, String)]) -> Result<Arc<dyn Store>, Error> {
    let refused = || {
        Error::because(
            Kind::Unsupported,
            "open store",
            masked(url),
            format!("unknown address: {SUPPORTED}"),
        )
    };
    match Location::parse(url).ok_or_else(refused)? {
        Location::Memory => Ok(memory()),
        Location::Bucket(bucket) => bucket.open(settings).await,
        Location::Folder(path) => local::open(Path::new(path)).await,
    }
}

/// [`open_with`] the variables of the process.
///
/// # Errors
/// As [`open_with`].
pub async fn open(url: &str) -> Result<Arc<dyn Store>, Error> {
    let text = |(name, value): (OsString, OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let settings: Vec<_> = std::env::vars_os().filter_map(text).collect();
    open_with(url, &settings).await
}

/// A letter, then more characters that RFC 3986 allows: `./a:b` is a path, and `s3:` is not.
fn is_scheme(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// An empty store in memory, gone with its last handle.
pub fn memory() -> Arc<dyn Store> {
    let objects = Arc::new(object_store::memory::InMemory::new());
    Arc::new(RemoteStore::new(objects, "memory".to_owned(), Arc::new(OsRandom), 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_path_and_its_file_url_open_the_same_directory() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a:b").to_str().unwrap().to_owned();
        let key = crate::Key::new("x/y").unwrap();
        open(&path).await.unwrap().create(&key, "z".into()).await.unwrap();
        let url = format!("file://{path}");
        for address in [&path, &url] {
            assert_eq!(check(address), Ok(Some(Path::new(&path))), "{address}");
        }
        let again = open(&url).await.unwrap();
        assert_eq!(crate::StoreExt::read_all(&*again, &key).await.unwrap(), "z");
    }

    #[tokio::test]
    async fn an_unknown_address_is_refused_with_the_supported_forms() {
        for url in [
            "s3://bucket//prefix",
            "s3:bucket",
            "redis:",
            "file://relative",
            "memory:x",
            "",
            "http://a",
        ] {
            assert!(check(url).is_err(), "{url:?}");
            let error = open(url).await.unwrap_err();
            assert_eq!(error.kind, Kind::Unsupported, "{url:?}");
            let reason = std::error::Error::source(&error).unwrap().to_string();
            assert!(reason.contains("file:///DIR") && reason.contains("memory:"), "{reason}");
        }
    }
}
