//! From an address to a metadata store.
//!
//! Must hold: parsing an address needs no access to the store, and no error repeats its password.

use std::path::Path;
use std::sync::Arc;

use dl_runtime::Clock;

use crate::redis::{ADDRESSES, without_login};
use crate::{Embedded, EmbeddedOptions, Error, Kind, Memory, MetaStore, Redis, RedisOptions, Stop};

/// Opens the metadata store at `url`: `embedded:DIR` (created if missing), a Redis or a Redis Cluster, or
/// `memory:`, which starts empty and ends with the process. Paths are taken literally. Tells also how the
/// store was left, and so whether its logs may lack their end; for a Redis, ask [`Integrity::damage`](crate::Integrity::damage).
///
/// # Errors
/// [`Kind::Unsupported`] for any other address; otherwise the failure to open the store.
pub async fn open(url: &str, clock: Arc<dyn Clock>) -> Result<(Arc<dyn MetaStore>, Stop), Error> {
    match url.split_once(':') {
        Some(("memory", "")) => Ok((Arc::new(Memory::new()), Stop::Fresh)),
        Some(("embedded", dir)) if !dir.is_empty() => {
            let (store, stop) =
                Embedded::open(Path::new(dir), EmbeddedOptions::default(), clock).await?;
            Ok((Arc::new(store), stop))
        }
        _ if Redis::check(url).is_some() => {
            let store = Redis::open(url, RedisOptions::default(), clock).await?;
            Ok((Arc::new(store), Stop::Clean))
        }
        _ => {
            let why = format!("unknown address: give embedded:DIR, memory:, {ADDRESSES}");
            let url = without_login(url);
            Err(Error::because(Kind::Unsupported, "open metadata store", url, why))
        }
    }
}

/// Whether `url` names a metadata store; checked without access to the store.
///
/// # Errors
/// The problem with the address, without its password.
pub fn check(url: &str) -> Result<(), String> {
    match (url.split_once(':'), Redis::check(url)) {
        (Some(("memory", "")), _) => Ok(()),
        (Some(("embedded", dir)), _) if !dir.is_empty() => Ok(()),
        (_, Some(checked)) => checked,
        _ => Err(format!("give embedded:DIR, memory:, {ADDRESSES}")),
    }
}

#[cfg(test)]
mod tests {
    use dl_runtime::SystemClock;

    use super::*;

    #[tokio::test]
    async fn an_unknown_address_is_refused_with_those_that_would_do() {
        for url in [
            "redis:h:1/0",
            "http://u:p@h:1",
            "",
            "memory",
            "memory:x",
            "embedded:",
            "embedded",
            "/dir",
        ] {
            assert!(check(url).is_err(), "{url:?}");
            let error = open(url, Arc::new(SystemClock::new())).await.unwrap_err();
            assert_eq!(error.kind, Kind::Unsupported, "{url:?}");
            let reason = std::error::Error::source(&error).unwrap().to_string();
            assert!(reason.contains("embedded:DIR") && reason.contains("memory:"), "{reason}");
        }
    }
}
