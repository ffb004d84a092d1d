//! The server's certificate and key, out of files.
//!
//! Must hold: an error names the file and what is wrong with it, and shows nothing of a key.

use std::path::{Path, PathBuf};

use dl_runtime::blocking;
use tonic::transport::{Certificate, Identity, ServerTlsConfig};

use crate::config::Tls;

/// How long a client may take to agree on TLS.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// A file that TLS can't be had from.
#[derive(Debug, thiserror::Error)]
#[error("read {what} from {}", path.display())]
pub struct TlsError {
    what: &'static str,
    path: PathBuf,
    #[source]
    source: std::io::Error,
}

/// Reads the files. Whether what is in them fits is only seen when the server starts.
///
/// # Errors
/// When one can't be read.
pub async fn read_tls(files: &Tls) -> Result<ServerTlsConfig, TlsError> {
    let certificate = read("the certificate", &files.certificate).await?;
    let key = read("the key of the certificate", &files.key).await?;
    let config =
        ServerTlsConfig::new().identity(Identity::from_pem(certificate, key)).timeout(PATIENCE);
    Ok(match &files.client_ca {
        Some(path) => {
            let ca = read("the certificates of the clients' CAs", path).await?;
            config.client_ca_root(Certificate::from_pem(ca))
        }
        None => config,
    })
}

async fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, TlsError> {
    let opened = path.to_owned();
    let bytes = blocking::run(move || std::fs::read(opened)).await;
    let bytes = bytes.map_err(std::io::Error::other).and_then(|bytes| bytes);
    bytes.map_err(|source| TlsError { what, path: path.to_owned(), source })
}
