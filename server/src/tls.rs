//! TLS on the gRPC port, with certificate and key out of files that may be replaced.
//!
//! Must hold: connections are encrypted before anything of a request is read; each begins with what
//! the files held last that could be used, and keeps it; an error names the file and what is wrong
//! with it, and shows nothing of a key.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use dl_runtime::{Clock, pem};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};
use tonic::transport::server::Connected;

use crate::config::Tls;
use crate::door::{Guest, Ticket};
use crate::source::{BETWEEN, Followed, Source, SourceError};

/// What gRPC speaks below TLS.
const HTTP2: &[u8] = b"h2";

/// A certificate and its key that connections begin with, followed in their files.
pub type Certificate = Followed<ServerConfig>;

/// Reads the files.
///
/// # Errors
/// When one can't be read, or what is in them doesn't fit together.
pub async fn open_tls(files: &Tls, clock: Arc<dyn Clock>) -> Result<Certificate, SourceError> {
    let paths = [&files.certificate, &files.key].into_iter().chain(&files.client_ca);
    let source = Source::Files(paths.cloned().collect());
    Followed::open("the certificate and its key", source, clock, understand).await
}

/// What the files say, in the order of the settings.
fn understand(texts: &str) -> Result<ServerConfig, String> {
    let mut texts = texts.split(BETWEEN);
    let chain = pem::certificates(texts.next().unwrap_or_default().as_bytes());
    let chain = chain.map_err(|why| format!("the certificate: {why}"))?;
    let key = pem::private_key(texts.next().unwrap_or_default().as_bytes());
    let key = key.map_err(|why| format!("the key: {why}"))?;
    let builder = ServerConfig::builder();
    let builder = match texts.next() {
        Some(cas) => {
            let refused = |why: &str| format!("the certificates of the clients' CAs: {why}");
            let mut roots = RootCertStore::empty();
            let cas = pem::certificates(cas.as_bytes()).map_err(refused)?;
            roots.add_parsable_certificates(cas);
            let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
            builder.with_client_cert_verifier(verifier.map_err(|why| refused(&why.to_string()))?)
        }
        None => builder.with_no_client_auth(),
    };
    let config = builder.with_single_cert(chain, key);
    let mut config = config.map_err(|why| format!("they can't be used together: {why}"))?;
    config.alpn_protocols.push(HTTP2.to_vec());
    Ok(config)
}

/// A connection as its requests travel on it.
pub(crate) struct Line {
    ticket: Ticket,
    speech: Speech,
}

enum Speech {
    Plain(Box<Guest>),
    /// The two ends agree on how to encrypt.
    Greeting(Box<Accept<Guest>>),
    Encrypted(Box<TlsStream<Guest>>),
    /// They could not agree.
    Over,
}

impl Line {
    /// A connection that is encrypted where there is a certificate.
    pub(crate) fn new(guest: Guest, certificate: Option<&Certificate>) -> Self {
        let ticket = guest.connect_info();
        let speech = match certificate {
            Some(certificate) => {
                Speech::Greeting(Box::new(TlsAcceptor::from(certificate.now()).accept(guest)))
            }
            None => Speech::Plain(Box::new(guest)),
        };
        Self { ticket, speech }
    }

    /// What can be written to and read from, once both ends have agreed.
    fn poll_agreed(&mut self, context: &mut Context<'_>) -> Poll<io::Result<Pin<&mut dyn Both>>> {
        if let Speech::Greeting(greeting) = &mut self.speech {
            self.speech = match ready!(Pin::new(greeting).poll(context)) {
                Ok(stream) => Speech::Encrypted(Box::new(stream)),
                Err(error) => {
                    tracing::debug!(peer = ?self.ticket.peer(), %error, "no TLS came about");
                    self.speech = Speech::Over;
                    return Poll::Ready(Err(error));
                }
            };
        }
        match &mut self.speech {
            Speech::Plain(guest) => Poll::Ready(Ok(Pin::new(&mut **guest))),
            Speech::Encrypted(stream) => Poll::Ready(Ok(Pin::new(&mut **stream))),
            Speech::Greeting(_) | Speech::Over => {
                Poll::Ready(Err(io::ErrorKind::NotConnected.into()))
            }
        }
    }
}

trait Both: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Both for T {}

impl AsyncRead for Line {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.get_mut().poll_agreed(context))?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Line {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.get_mut().poll_agreed(context))?.poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.get_mut().poll_agreed(context))?.poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        match this.speech {
            Speech::Greeting(_) | Speech::Over => Poll::Ready(Ok(())),
            Speech::Plain(_) | Speech::Encrypted(_) => {
                ready!(this.poll_agreed(context))?.poll_shutdown(context)
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.get_mut().poll_agreed(context))?.poll_write_vectored(context, bytes)
    }

    /// Asked once, before both ends have agreed: TLS takes several pieces together, too.
    fn is_write_vectored(&self) -> bool {
        match &self.speech {
            Speech::Plain(guest) => guest.is_write_vectored(),
            Speech::Greeting(_) | Speech::Encrypted(_) | Speech::Over => true,
        }
    }
}

impl Connected for Line {
    type ConnectInfo = Ticket;

    fn connect_info(&self) -> Ticket {
        self.ticket.clone()
    }
}
