//! A CA and its signed certificates, in files.

use std::path::{Path, PathBuf};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    date_time_ymd,
};

use crate::program::Server;

/// A CA with a folder for its certificates.
#[derive(Debug)]
pub struct Ca {
    folder: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Ca {
    /// Makes a CA with a folder of the same name.
    ///
    /// # Errors
    /// When its files can't be written.
    pub fn new(folder: &Path, name: &str) -> Result<Self> {
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        let folder = folder.join(name);
        std::fs::create_dir(&folder)?;
        std::fs::write(folder.join("ca.pem"), issuer.pem())?;
        Ok(Self { folder, issuer })
    }

    /// The path of a file in the folder; the CA's certificate is `ca.pem`.
    pub fn file(&self, name: &str) -> String {
        self.folder.join(name).to_string_lossy().into_owned()
    }

    /// Makes NAME.pem and NAME.key for a host, expired on request.
    ///
    /// # Errors
    /// When the files can't be written.
    pub fn issue(&self, name: &str, host: &str, is_expired: bool) -> Result<()> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![host.to_owned()])?;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        if is_expired {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        }
        let certificate = params.signed_by(&key, &self.issuer)?;
        std::fs::write(self.file(&format!("{name}.pem")), certificate.pem())?;
        std::fs::write(self.file(&format!("{name}.key")), key.serialize_pem())?;
        Ok(())
    }

    /// Starts a server with the certificate `name`.
    ///
    /// # Errors
    /// As [`Server::start_with`].
    pub fn serve(&self, name: &str, more: &[&str]) -> Result<Server> {
        let (cert, key) = (self.file(&format!("{name}.pem")), self.file(&format!("{name}.key")));
        let flags = [&["--tls-cert", cert.as_str(), "--tls-key", key.as_str()], more].concat();
        Server::start_with(&self.folder.join("data"), "127.0.0.1:0", &flags)
    }
}
