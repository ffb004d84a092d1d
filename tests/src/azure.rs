//! Azurite as a process: a server for the protocol of Azure blobs, written in JavaScript.
//!
//! Must hold: the server has a free port and its own data, and ends with the test. Without an
//! installed Azurite, the test fails and names the command that installs the server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Result, ensure};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use tempfile::TempDir;

use crate::program::{Process, tool};
use crate::s3::run;

/// The only container of a server.
pub const CONTAINER: &str = "chunks";

const ACCOUNT: &str = "diesel";
const KEY: &str = "the key of the account";
const VERSION: &str = "2023-11-03";

/// A running server with one empty container.
#[derive(Debug)]
pub struct Azurite {
    process: Process,
    address: SocketAddr,
    prefixes: AtomicU64,
    _folder: TempDir,
}

impl Azurite {
    /// Starts a server.
    ///
    /// # Errors
    /// When Azurite is not installed or does not start.
    pub fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new("node");
        command.arg(tool("azurite/node_modules/azurite/dist/src/blob/main.js", "azurite")?);
        command.args(["--blobHost", "127.0.0.1", "--blobPort", "0", "--location"]);
        command.arg(folder.path()).args([
            "--silent",
            "--disableTelemetry",
            "--skipApiVersionCheck",
        ]);
        command.env("AZURITE_ACCOUNTS", format!("{ACCOUNT}:{}", BASE64.encode(KEY)));
        let (process, address) = run(&mut command, &folder.path().join("log"))?;
        let server = Self { process, address, prefixes: AtomicU64::new(0), _folder: folder };
        server.make_container()?;
        Ok(server)
    }

    /// The address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process of the server.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The address of a new, empty chunk store.
    pub fn fresh(&self) -> String {
        format!("az://{CONTAINER}/{}", self.prefixes.fetch_add(1, Ordering::Relaxed))
    }

    fn make_container(&self) -> Result<()> {
        let headers = format!("x-ms-version:{VERSION}\n");
        let what = format!("/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container");
        let text = format!("PUT{}{headers}{what}", "\n".repeat(12));
        let key = hmac::Key::new(hmac::HMAC_SHA256, KEY.as_bytes());
        let signature = BASE64.encode(hmac::sign(&key, text.as_bytes()));
        let mut connection = TcpStream::connect(self.address)?;
        write!(
            connection,
            "PUT /{ACCOUNT}/{CONTAINER}?restype=container HTTP/1.1\r\nHost: {}\r\n\
             x-ms-version: {VERSION}\r\nAuthorization: SharedKey {ACCOUNT}:{signature}\r\n\
             Content-Length: 0\r\nConnection: close\r\n\r\n",
            self.address
        )?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        ensure!(answer.starts_with("HTTP/1.1 201"), "make a container: {answer}");
        Ok(())
    }
}

/// The settings of `object_store` for the server, or for a proxy in front, at `address`.
pub fn settings(address: SocketAddr) -> Vec<(String, String)> {
    [
        ("AZURE_STORAGE_ENDPOINT", format!("http://{address}/{ACCOUNT}")),
        ("AZURE_ALLOW_HTTP", "true".to_owned()),
        ("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT.to_owned()),
        ("AZURE_STORAGE_ACCOUNT_KEY", BASE64.encode(KEY)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}
