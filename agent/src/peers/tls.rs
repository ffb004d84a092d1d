//! Encrypted connections between agents: each agent creates its own key, and the member list has
//! the certificate of each member.
//!
//! Must hold: a connection is used only when the other end has the key of the claimed member.
//! Certificate authorities play no role.

use std::fmt;
use std::io;
use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::aws_lc_rs::default_provider;
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

/// The name in all certificates. Certificates are identified by their fingerprints, not by the
/// name.
const NAME: &str = "diesel-agent";

const ONLY_TLS13: &str = "agents use TLS 1.3";

/// The two directions of a connection.
pub(crate) type Reader = Box<dyn AsyncRead + Send + Unpin>;
pub(crate) type Writer = Box<dyn AsyncWrite + Send + Unpin>;

/// The SHA-256 of a certificate.
pub(crate) type Fingerprint = [u8; 32];

/// The key of this agent and its certificate.
pub(crate) struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    provider: Arc<CryptoProvider>,
    pub(crate) fingerprint: Fingerprint,
}

/// Hides the key.
impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").finish_non_exhaustive()
    }
}

impl Identity {
    /// Creates a key and a certificate.
    pub(crate) fn new() -> io::Result<Self> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()]);
        let made = made.map_err(io::Error::other)?;
        let certificate = made.cert.der().clone();
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()).into();
        let fingerprint = fingerprint_of(&certificate);
        let provider = Arc::new(default_provider());
        Ok(Self { certificate, key, provider, fingerprint })
    }

    /// Encrypts a connection to a member with a known certificate.
    pub(crate) async fn connect(
        &self,
        stream: TcpStream,
        called: Fingerprint,
    ) -> io::Result<(Reader, Writer)> {
        let config = ClientConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(self.pinned(called)))
            .with_client_auth_cert(vec![self.certificate.clone()], self.key.clone_key())
            .map_err(io::Error::other)?;
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        let (read, write) = tokio::io::split(stream);
        Ok((Box::new(read), Box::new(write)))
    }

    /// Encrypts a connection from a member with a known certificate.
    pub(crate) async fn accept(
        &self,
        stream: TcpStream,
        caller: Fingerprint,
    ) -> io::Result<(Reader, Writer)> {
        let config = ServerConfig::builder_with_provider(Arc::clone(&self.provider))
            .with_protocol_versions(&[&TLS13])
            .map_err(io::Error::other)?
            .with_client_cert_verifier(Arc::new(self.pinned(caller)))
            .with_single_cert(vec![self.certificate.clone()], self.key.clone_key())
            .map_err(io::Error::other)?;
        let stream = TlsAcceptor::from(Arc::new(config)).accept(stream).await?;
        let (read, write) = tokio::io::split(stream);
        Ok((Box::new(read), Box::new(write)))
    }

    fn pinned(&self, fingerprint: Fingerprint) -> PinnedCertificate {
        PinnedCertificate { fingerprint, provider: Arc::clone(&self.provider) }
    }
}

fn fingerprint_of(certificate: &CertificateDer<'_>) -> Fingerprint {
    let digest = digest(&SHA256, certificate);
    *digest.as_ref().first_chunk().expect("a SHA-256 has 32 bytes")
}

/// Trusts only one certificate.
#[derive(Debug)]
struct PinnedCertificate {
    fingerprint: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl PinnedCertificate {
    fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        if fingerprint_of(certificate) == self.fingerprint {
            return Ok(());
        }
        Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }
}

impl ServerCertVerifier for PinnedCertificate {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.check(certificate).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General(ONLY_TLS13.to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl ClientCertVerifier for PinnedCertificate {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(certificate).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General(ONLY_TLS13.to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    /// The text received from a caller, when each end expects a certificate.
    async fn talk(expects: impl Fn(&Identity, &Identity) -> (Fingerprint, Fingerprint)) -> Vec<u8> {
        let (caller, called) = (Identity::new().unwrap(), Identity::new().unwrap());
        let (of_called, of_caller) = expects(&caller, &called);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let calling = TcpStream::connect(listener.local_addr().unwrap());
        let (calling, heard) = tokio::join!(calling, listener.accept());
        let say = async {
            if let Ok((_, mut write)) = caller.connect(calling.unwrap(), of_called).await {
                let _ = write.write_all(b"hello").await;
                let _ = write.shutdown().await;
            }
        };
        let hear = async {
            let mut text = Vec::new();
            if let Ok((mut read, _)) = called.accept(heard.unwrap().0, of_caller).await {
                let _ = read.read_to_end(&mut text).await;
            }
            text
        };
        tokio::join!(say, hear).1
    }

    #[tokio::test]
    async fn only_ends_with_known_certificates_connect() {
        let right = talk(|caller, called| (called.fingerprint, caller.fingerprint)).await;
        assert_eq!(right, b"hello");
        let wrong_called = talk(|caller, _| (caller.fingerprint, caller.fingerprint)).await;
        assert_eq!(wrong_called, b"");
        let wrong_caller = talk(|_, called| (called.fingerprint, called.fingerprint)).await;
        assert_eq!(wrong_caller, b"");
    }
}
