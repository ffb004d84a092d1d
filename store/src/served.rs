//! The lock of a folder that is served: by a single server with embedded metadata, or by several servers
//! that share metadata.
//!
//! Must hold: a server with embedded metadata serves a folder alone, where locks work. Servers with a
//! Redis share the folder; whether all of them use the same Redis is not checked. The lock ends with its
//! process, however the process ends.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use dl_runtime::{blocking, masked};

use crate::{Error, Kind, check};

/// No key begins with a dot.
const LOCK: &str = ".lock";

/// Whether other servers may serve the same store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Servers {
    /// The metadata belongs to a single server.
    One,
    /// All servers have the same metadata.
    Several,
}

/// Kept while a store is served.
#[derive(Debug)]
pub struct Served {
    _lock: Option<File>,
}

/// Locks the store at `url` for a server, where the store is a folder. Buckets and memory have no lock.
///
/// # Errors
/// [`Kind::Unsupported`] when another server with other metadata serves the store.
pub async fn serve(url: &str, servers: Servers) -> Result<Served, Error> {
    let Ok(Some(folder)) = check(url).map(|folder| folder.map(Path::to_path_buf)) else {
        return Ok(Served { _lock: None });
    };
    let shown = masked(&folder.to_string_lossy()).into_owned();
    let failed = |kind, why: Box<dyn std::error::Error + Send + Sync>| {
        Error::because(kind, "serve chunk store", &shown, why)
    };
    match blocking::run(move || lock(folder, servers)).await {
        Ok(Ok(lock)) => Ok(Served { _lock: Some(lock) }),
        Ok(Err(TryLockError::WouldBlock)) => Err(failed(
            Kind::Unsupported,
            "another server serves the store, and embedded metadata is for a single server: stop the other \
             server, or give both servers the same Redis (--meta)"
                .into(),
        )),
        Ok(Err(TryLockError::Error(error))) if can_serve_unlocked(error.kind()) => {
            tracing::warn!(
                store = shown,
                %error,
                "can't lock the file .lock of the chunk store: make sure that no other server with embedded metadata serves the store"
            );
            Ok(Served { _lock: None })
        }
        Ok(Err(TryLockError::Error(error))) => {
            Err(Error::from_io(error, "serve chunk store", &shown))
        }
        Err(stopped) => Err(failed(Kind::Unavailable, stopped.into())),
    }
}

fn lock(folder: PathBuf, servers: Servers) -> Result<File, TryLockError> {
    let path = folder.join(LOCK);
    let mut options = OpenOptions::new();
    // NFS needs a file that is open for writing. On a full disk an existing file can still be read.
    let opened = options.read(true).write(true).create(true).truncate(false).open(&path);
    let file = opened.or_else(|why| File::open(&path).map_err(|_| why));
    let file = file.map_err(TryLockError::Error)?;
    match servers {
        Servers::One => file.try_lock()?,
        Servers::Several => file.try_lock_shared()?,
    }
    Ok(file)
}

/// Whether a store can be served without a lock: chunks of a full or read-only disk can be read.
fn can_serve_unlocked(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::Unsupported
            | ErrorKind::InvalidInput
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_embedded_server_or_several_that_share_metadata() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().display().to_string(), tempfile::tempdir().unwrap());
        let url = format!("file://{path}");
        let alone = serve(&path, Servers::One).await.unwrap();
        for servers in [Servers::One, Servers::Several] {
            let refused = serve(&url, servers).await.unwrap_err();
            assert_eq!(refused.kind, Kind::Unsupported);
        }
        serve(&other.path().display().to_string(), Servers::One).await.unwrap();
        drop(alone);
        let several = [Servers::Several; 3].map(|servers| serve(&url, servers));
        let several = futures::future::try_join_all(several).await.unwrap();
        assert!(serve(&path, Servers::One).await.is_err());
        drop(several);
        serve(&path, Servers::One).await.unwrap();
        for url in ["memory:", "s3://bucket/prefix"] {
            let _both =
                [serve(url, Servers::One).await.unwrap(), serve(url, Servers::One).await.unwrap()];
        }
    }
}
