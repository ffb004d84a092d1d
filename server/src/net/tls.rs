//! TLS on both ports, with certificate and key out of files that may be replaced.
//!
//! Must hold: connections are encrypted before any byte of a request is read; a connection begins with
//! the last usable contents of the files, and keeps them; an error names the file and the problem, and
//! shows nothing of a key.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use dl_runtime::{Clock, pem};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{CertificateError, RootCertStore, ServerConfig};
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::Tls;
use crate::net::socket::Socket;
use crate::source::{BETWEEN, Followed, Source, SourceError};

/// The protocol of gRPC below TLS.
const HTTP2: &[u8] = b"h2";

/// The protocol of browsers below TLS.
const HTTP1: &[u8] = b"http/1.1";

/// The first byte of plain HTTP/2, and of no TLS.
const PLAIN_HTTP2: u8 = b'P';

/// The answer to plain HTTP/2 on a port with TLS: an end with the code INADEQUATE_SECURITY.
const SPEAK_TLS: &[u8] = b"\0\0\0\x04\0\0\0\0\0\
    \0\0\x2c\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0cthis port speaks TLS: write https://";

/// The settings of TLS for new connections.
#[derive(Debug)]
pub struct TlsSettings {
    config: Arc<ServerConfig>,
    /// The same for the HTTP port.
    web: Arc<ServerConfig>,
    /// Whether clients need a certificate.
    pub(crate) asks_clients: bool,
    /// The end of the server's certificates, and of its clients' CAs, in seconds since 1970.
    pub(crate) ends: Vec<(&'static str, i64)>,
}

/// The certificate and key for new connections, followed in their files.
pub type Certificate = Followed<TlsSettings>;

/// Reads the files.
///
/// # Errors
/// When a file can't be read, or the contents don't fit together.
pub async fn open_tls(files: &Tls, clock: Arc<dyn Clock>) -> Result<Certificate, SourceError> {
    let paths = [&files.certificate, &files.key].into_iter().chain(&files.client_ca);
    let source = Source::Files(paths.cloned().collect());
    Followed::open("the certificate and its key", source, clock, understand).await
}

/// Understands the files, in the order of the settings.
fn understand(texts: &str) -> Result<TlsSettings, String> {
    let mut texts = texts.split(BETWEEN);
    let chain = pem::certificates(texts.next().unwrap_or_default().as_bytes());
    let chain = chain.map_err(|why| format!("the certificate: {why}"))?;
    let key = pem::private_key(texts.next().unwrap_or_default().as_bytes());
    let key = key.map_err(|why| format!("the key: {why}"))?;
    let mut ends = vec![("server", end(&chain))];
    let mut asks_clients = false;
    let builder = ServerConfig::builder();
    let builder = match texts.next() {
        Some(cas) => {
            asks_clients = true;
            let refused = |why: &str| format!("the certificates of the clients' CAs: {why}");
            let mut roots = RootCertStore::empty();
            let cas = pem::certificates(cas.as_bytes()).map_err(refused)?;
            ends.push(("client_ca", end(&cas)));
            roots.add_parsable_certificates(cas);
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
            builder.with_client_cert_verifier(verifier.map_err(|why| refused(&why.to_string()))?)
        }
        None => builder.with_no_client_auth(),
    };
    let config = builder.with_single_cert(chain, key);
    let mut config = config.map_err(|why| format!("they can't be used together: {why}"))?;
    let mut web = config.clone();
    web.alpn_protocols.push(HTTP1.to_vec());
    config.alpn_protocols.push(HTTP2.to_vec());
    let ends = ends.into_iter().filter_map(|(name, end)| Some((name, end?))).collect();
    Ok(TlsSettings { config: Arc::new(config), web: Arc::new(web), asks_clients, ends })
}

/// The time at which the first of these certificates expires, in seconds since 1970.
fn end(certificates: &[CertificateDer<'static>]) -> Option<i64> {
    certificates.iter().filter_map(end_of).min()
}

/// The end of a certificate, which rustls tells only with the refusal of the certificate at a later time.
fn end_of(certificate: &CertificateDer<'static>) -> Option<i64> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).ok()?;
    let verifier = WebPkiServerVerifier::builder(Arc::new(roots)).build().ok()?;
    let name = ServerName::try_from("localhost").ok()?;
    let never = UnixTime::since_unix_epoch(Duration::from_secs(u64::MAX / 2));
    match verifier.verify_server_cert(certificate, &[], &name, &[], never) {
        Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext {
            not_after,
            ..
        })) => i64::try_from(not_after.as_secs()).ok(),
        _ => None,
    }
}

/// Greets a client. A client that speaks plain HTTP/2 is told of the mistake in HTTP/2.
pub(crate) async fn greet(
    mut socket: Socket,
    certificate: &Certificate,
) -> io::Result<TlsStream<Socket>> {
    if socket.first_byte().await? == Some(PLAIN_HTTP2) {
        socket.write_all(SPEAK_TLS).await?;
        socket.shutdown().await?;
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the client speaks no TLS"));
    }
    TlsAcceptor::from(Arc::clone(&certificate.now().config)).accept(socket).await
}

/// Greets a browser.
pub(crate) async fn greet_web(
    socket: Socket,
    certificate: &Certificate,
) -> io::Result<TlsStream<Socket>> {
    TlsAcceptor::from(Arc::clone(&certificate.now().web)).accept(socket).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_in_the_last_frame_is_the_length_of_its_payload() {
        assert_eq!(usize::from(SPEAK_TLS[11]), SPEAK_TLS.len() - 18);
    }
}
