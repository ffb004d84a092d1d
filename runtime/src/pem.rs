//! Certificates and private keys out of PEM.
//!
//! Must hold: no error repeats any part of the text, which may be a key: the error of `rustls` for a key
//! without line breaks is the whole key. All other code reads PEM through the functions here.

use rustls::pki_types::pem::{Error, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// All certificates in a text.
///
/// # Errors
/// The mistake in the text, or a text without certificates.
pub fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, &'static str> {
    let read: Vec<_> =
        CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>().map_err(words)?;
    if read.is_empty() { Err("there is no certificate (PEM) in it") } else { Ok(read) }
}

/// The first private key in a text.
///
/// # Errors
/// The mistake in the text, or a text without private keys.
pub fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, &'static str> {
    PrivateKeyDer::from_pem_slice(text).map_err(|why| match why {
        Error::NoItemsFound => "there is no private key (PEM) in it",
        why => words(why),
    })
}

/// The text of an error, without any of the PEM.
fn words(why: Error) -> &'static str {
    match why {
        Error::MissingSectionEnd { .. } | Error::IllegalSectionStart { .. } => {
            "it is no PEM: each section needs its BEGIN and END lines on lines of their own"
        }
        Error::Base64Decode(_) => {
            "it is no PEM: between BEGIN and END is something else than base64"
        }
        Error::SectionTooLarge => "it is no PEM: a section is too long",
        // `Error` may grow.
        _ => "it is no PEM",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 32 times 1, as a key.
    const WHOLE: &str = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEB\n-----END PRIVATE KEY-----\n";

    #[test]
    fn a_key_or_certificate_that_can_not_be_read_is_in_no_error() {
        assert!(private_key(WHOLE.as_bytes()).is_ok());
        let lost = [WHOLE.replace('\n', ""), WHOLE.replace('\n', "\\n"), WHOLE.replace('\n', " ")];
        let cut = WHOLE.split("-----END").next().unwrap_or_default().to_owned();
        for text in lost.into_iter().chain([cut]) {
            assert!(private_key(text.as_bytes()).unwrap_err().contains("lines of their own"));
            assert!(certificates(text.as_bytes()).unwrap_err().contains("lines of their own"));
        }
        let other = WHOLE.replace("MC4C", "M*4C");
        assert!(private_key(other.as_bytes()).unwrap_err().contains("base64"));
        assert!(private_key(b"").unwrap_err().contains("no private key"));
        assert!(certificates(WHOLE.as_bytes()).unwrap_err().contains("no certificate"));
    }
}
