//! Who connects to which servers: what a caller says, and the variables of the environment for the
//! rest.
//!
//! Must hold: a key and a certificate are read from small files only, and no displayed text has a key.

use std::env;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Kind};
use crate::remote::{ClientCertificate, ConnectOptions};

/// Most bytes of a file with a key or certificates.
const FILE_MAX: u64 = 1 << 20;

/// Servers, user and certificates, by names of files. Another process can connect with the same
/// values.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Access {
    /// Addresses as in [`ConnectOptions::servers`].
    pub servers: Vec<String>,
    /// The user; empty without users.
    pub user: String,
    /// The key itself. Never shown.
    pub key: Option<String>,
    /// The file with the key, which goes before `key`.
    pub key_file: Option<PathBuf>,
    /// The file with the trusted certificates (PEM).
    pub ca: Option<PathBuf>,
    /// The file with the client's certificate (PEM).
    pub client_cert: Option<PathBuf>,
    /// The file with its private key (PEM).
    pub client_key: Option<PathBuf>,
    /// Whether the key may travel in plain text to other machines.
    pub plain_text_key: bool,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { servers, user, .. } = self;
        f.debug_struct("Access")
            .field("servers", servers)
            .field("user", user)
            .finish_non_exhaustive()
    }
}

impl Access {
    /// Takes missing values from `DIESEL_SERVER`, `DIESEL_USER`, `DIESEL_CA`, `DIESEL_CLIENT_CERT` and
    /// `DIESEL_CLIENT_KEY`, and makes paths absolute. The key of `DIESEL_KEY` is taken by
    /// [`Access::options`].
    pub fn completed(self) -> Self {
        let file = |given: Option<PathBuf>, variable| {
            let set = || env::var_os(variable).filter(|file| !file.is_empty()).map(PathBuf::from);
            given.or_else(set).map(absolute)
        };
        let servers = match self.servers.is_empty() {
            true => servers_of_environment(),
            false => self.servers,
        };
        let user = match self.user.is_empty() {
            true => env::var("DIESEL_USER").unwrap_or_default(),
            false => self.user,
        };
        Self {
            servers,
            user,
            key: self.key,
            key_file: self.key_file.map(absolute),
            ca: file(self.ca, "DIESEL_CA"),
            client_cert: file(self.client_cert, "DIESEL_CLIENT_CERT"),
            client_key: file(self.client_key, "DIESEL_CLIENT_KEY"),
            plain_text_key: self.plain_text_key,
        }
    }

    /// The settings of a client, with the contents of the files.
    ///
    /// # Errors
    /// [`Kind::Local`] for a file that can't be read, [`Kind::Invalid`] for a file without a key, and for
    /// one of the two files of a client's certificate alone.
    pub fn options(&self) -> Result<ConnectOptions, Error> {
        let certificate = match (&self.client_cert, &self.client_key) {
            (Some(certificate), Some(key)) => {
                Some(ClientCertificate { certificate: read(certificate)?, key: read(key)? })
            }
            (None, None) => None,
            _ => {
                let why = "client_cert and client_key go together";
                return Err(Error::new(Kind::Invalid, "connect", "the servers", why));
            }
        };
        Ok(ConnectOptions {
            user: self.user.clone(),
            key: self.key()?,
            servers: self.servers.clone(),
            ca: self.ca.as_deref().map(read).transpose()?,
            certificate,
            plain_text_key: self.plain_text_key,
            ..ConnectOptions::default()
        })
    }

    /// The key of the file, else the given key, else that of the environment.
    fn key(&self) -> Result<Option<String>, Error> {
        let Some(file) = &self.key_file else {
            return Ok(self.key.clone().or_else(|| env::var("DIESEL_KEY").ok()));
        };
        let text = String::from_utf8(read(file)?).ok();
        let key = text.map(|text| text.trim_end_matches(['\r', '\n']).to_owned());
        key.filter(|key| !key.is_empty()).map(Some).ok_or_else(|| {
            let why = "the file holds no key";
            Error::new(Kind::Invalid, "read the key in", file.display(), why)
        })
    }
}

/// The servers of the environment, else the server of this machine.
fn servers_of_environment() -> Vec<String> {
    match env::var("DIESEL_SERVER") {
        Ok(servers) if !servers.is_empty() => servers.split(',').map(str::to_owned).collect(),
        _ => ConnectOptions::default().servers,
    }
}

/// An absolute path, valid in other working directories.
fn absolute(file: PathBuf) -> PathBuf {
    std::path::absolute(&file).unwrap_or(file)
}

/// The contents of a small file.
fn read(file: &Path) -> Result<Vec<u8>, Error> {
    let failed = |why: String| Error::new(Kind::Local, "read", file.display(), why);
    let length = fs::metadata(file).map_err(|why| failed(why.to_string()))?.len();
    if length > FILE_MAX {
        let why = format!("it has {length} bytes, which no key or certificate has");
        return Err(failed(why));
    }
    fs::read(file).map_err(|why| failed(why.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_from_its_file_without_the_end_of_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        fs::write(&file, "secret\r\n").unwrap();
        let access = Access { key_file: Some(file.clone()), ..Access::default() };
        assert_eq!(access.options().unwrap().key.unwrap(), "secret");
        assert!(!format!("{access:?}").contains("secret"));
        fs::write(&file, "\n").unwrap();
        assert_eq!(access.options().unwrap_err().kind(), Kind::Invalid);
        fs::write(&file, vec![b'x'; FILE_MAX as usize + 1]).unwrap();
        assert_eq!(access.options().unwrap_err().kind(), Kind::Local);
        let half = Access { client_cert: Some(file), ..Access::default() };
        assert_eq!(half.options().unwrap_err().kind(), Kind::Invalid);
    }
}
