//! Parts of the addresses of other services: the login, and files for TLS.
//!
//! Must hold: no error repeats any part of the text, which may be a password.

use std::path::PathBuf;

/// The files that an address names behind `?`, as `ca=FILE&cert=FILE&key=FILE` in any order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Certificates (PEM) to trust instead of the machine's certificates.
    pub ca: Option<PathBuf>,
    /// The client's certificate and key.
    pub client: Option<ClientFiles>,
}

/// A certificate and its key, both PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    /// The certificate, and the intermediate certificates up to a trusted certificate.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl TlsFiles {
    /// Parses the query of an address: the text behind `?`, if any.
    ///
    /// # Errors
    /// The mistake in the query.
    pub fn read(query: Option<&str>, is_tls: bool) -> Result<Self, &'static str> {
        let Some(query) = query else { return Ok(Self::default()) };
        let (mut ca, mut cert, mut key) = (None, None, None);
        for part in query.split('&') {
            let place = match part.split_once('=') {
                Some(("ca", file)) => Some((&mut ca, file)),
                Some(("cert", file)) => Some((&mut cert, file)),
                Some(("key", file)) => Some((&mut key, file)),
                _ => None,
            };
            let is_new = place.is_some_and(|(place, file)| {
                is_tls && !file.is_empty() && place.replace(PathBuf::from(file)).is_none()
            });
            if !is_new {
                return Err("only ?ca=FILE&cert=FILE&key=FILE is known, and only with TLS");
            }
        }
        let client = match (cert, key) {
            (Some(cert), Some(key)) => Some(ClientFiles { cert, key }),
            (None, None) => None,
            _ => return Err("cert=FILE and key=FILE go together"),
        };
        Ok(Self { ca, client })
    }
}

/// Parses `USER:PASSWORD`, where `%HH` is the byte with the number. User and password may be empty.
///
/// # Errors
/// The mistake in the login.
pub fn login(text: &str) -> Result<(String, String), &'static str> {
    let (user, password) = text.split_once(':').ok_or("a login is USER:PASSWORD, or :PASSWORD")?;
    Ok((unescaped(user)?, unescaped(password)?))
}

fn unescaped(text: &str) -> Result<String, &'static str> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes().iter();
    while let Some(byte) = rest.next() {
        let digit = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
        match byte {
            b'%' => match (digit(rest.next()), digit(rest.next())) {
                (Some(high), Some(low)) => bytes.extend(u8::try_from(high * 16 + low)),
                _ => return Err("a % in a login is followed by two hexadecimal digits, as in %25"),
            },
            byte => bytes.push(*byte),
        }
    }
    String::from_utf8(bytes).map_err(|_| "a login is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_once_each_and_only_with_tls() {
        let read = TlsFiles::read(Some("key=/k.pem&ca=/x@y.pem&cert=/c.pem"), true).unwrap();
        assert_eq!(read.ca, Some("/x@y.pem".into()));
        let client = ClientFiles { cert: "/c.pem".into(), key: "/k.pem".into() };
        assert_eq!(read.client, Some(client));
        assert_eq!(TlsFiles::read(None, false), Ok(TlsFiles::default()));
        let refused = ["", "ca", "ca=", "ca=f&ca=g", "cert=f", "key=f", "other=f", "ca=f&"];
        assert!(refused.iter().all(|query| TlsFiles::read(Some(query), true).is_err()));
        assert!(TlsFiles::read(Some("ca=f"), false).is_err());
    }

    #[test]
    fn a_login_is_read_to_its_last_byte_and_never_repeated() {
        let read = |text| login(text).map(|(user, password)| format!("{user}|{password}"));
        assert_eq!(read("us%65r:p%40s:s@w%2Frd%25").as_deref(), Ok("user|p@s:s@w/rd%"));
        assert_eq!(read(":s").as_deref(), Ok("|s"));
        for text in ["s3cret", "u:s3cret%", "u:s3cret%4", "u:s3cret%zz", "u:s3cret%ff"] {
            let refused = login(text).unwrap_err();
            assert!(!refused.contains("s3c"), "{refused}");
        }
    }
}
