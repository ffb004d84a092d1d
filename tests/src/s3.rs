//! Two independent S3 servers as processes: moto, written in Python, and s3s-fs, in Rust.
//!
//! Must hold: each server has a free port and its own data, and ends with the test. A missing
//! server fails the test, and the message names the command that installs it.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use tempfile::TempDir;

use crate::program::{Process, tool};
use crate::soon;

/// The bucket of every server.
pub const BUCKET: &str = "chunks";

/// The server's implementation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Keeps objects in memory.
    Moto,
    /// Keeps objects in a folder, and checks signatures.
    S3sFs,
}

/// A running server with one empty bucket.
#[derive(Debug)]
pub struct S3 {
    process: Process,
    address: SocketAddr,
    prefixes: AtomicU64,
    folder: TempDir,
}

impl S3 {
    /// Starts a server.
    ///
    /// # Errors
    /// When the program is not installed or does not start.
    pub fn start(kind: Kind) -> Result<Self> {
        Self::start_on(kind, "127.0.0.1")
    }

    /// Starts a server with additional environment variables.
    ///
    /// # Errors
    /// As [`S3::start`].
    pub fn start_among(kind: Kind, variables: &[(String, String)]) -> Result<Self> {
        Self::run(kind, "127.0.0.1", variables)
    }

    /// Starts a server on another address of this machine, for clients in other network namespaces.
    ///
    /// # Errors
    /// As [`S3::start`].
    pub fn start_on(kind: Kind, host: &str) -> Result<Self> {
        Self::run(kind, host, &[])
    }

    fn run(kind: Kind, host: &str, variables: &[(String, String)]) -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let (root, log) = (folder.path().join("objects"), folder.path().join("log"));
        std::fs::create_dir_all(root.join(BUCKET))?;
        let mut command = match kind {
            Kind::Moto => {
                let mut command = Command::new(tool("moto/bin/moto_server", "buckets")?);
                command.args(["-H", host, "-p", "0"]);
                command
            }
            Kind::S3sFs => {
                let mut command = Command::new(tool("bin/s3s-fs", "buckets")?);
                command.args(["--host", host, "--port", "0", "--access-key", "key"]);
                command.args(["--secret-key", "secret"]).arg(&root);
                command
            }
        };
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.env("RUST_LOG", "s3s_fs=info").env("MOTO_S3_DEFAULT_KEY_BUFFER_SIZE", "80000000");
        let (process, address) = run(&mut command, &log)?;
        let server = Self { process, address, prefixes: AtomicU64::new(0), folder };
        if kind == Kind::Moto {
            server.make_bucket()?;
        }
        Ok(server)
    }

    /// The address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The folder of an s3s-fs server's objects.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The process of the server.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The address of a new, empty chunk store.
    pub fn fresh(&self) -> String {
        format!("s3://{BUCKET}/{}", self.prefixes.fetch_add(1, Ordering::Relaxed))
    }

    fn make_bucket(&self) -> Result<()> {
        let mut connection = TcpStream::connect(self.address)?;
        let (host, length) = (self.address, "Content-Length: 0\r\nConnection: close");
        write!(connection, "PUT /{BUCKET} HTTP/1.1\r\nHost: {host}\r\n{length}\r\n\r\n")?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        ensure!(answer.starts_with("HTTP/1.1 200"), "make a bucket: {answer}");
        Ok(())
    }
}

/// The settings of `object_store` for the server, or for a proxy in front, at `address`.
pub fn settings(address: SocketAddr) -> Vec<(String, String)> {
    [
        ("AWS_ENDPOINT", format!("http://{address}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", "key".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec()
}

/// Starts a server that logs its address to `log`, and waits for the address.
///
/// # Errors
/// When no address appears in time.
pub(crate) fn run(command: &mut Command, log: &Path) -> Result<(Process, SocketAddr)> {
    let output = File::create(log)?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let process = Process::start(command)?;
    let mut address = None;
    soon(format_args!("{command:?} listens"), || {
        address = listening(&std::fs::read_to_string(log)?);
        Ok(address.is_some())
    })?;
    Ok((process, address.context("the address was logged")?))
}

/// The first address with a port: some servers first log the requested address with port 0.
fn listening(said: &str) -> Option<SocketAddr> {
    let mut addresses = said.split("http://").skip(1).filter_map(|rest| {
        let (address, _) = rest.split_once(|end: char| end.is_whitespace())?;
        address.parse::<SocketAddr>().ok()
    });
    addresses.find(|address| address.port() != 0)
}
