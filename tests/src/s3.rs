//! Two independent S3 servers as processes: moto, written in Python, and s3s-fs, in Rust.
//!
//! Must hold: each runs on a free port with its own data, and ends with the test; one that is not
//! installed fails the test with what to run.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use dl_runtime::Deadline;
use tempfile::TempDir;

use crate::cluster::clock;
use crate::program::{Process, tool};

/// A cold Python on a busy machine takes its time.
const PATIENCE: Duration = Duration::from_secs(60);

/// The bucket that every server has.
pub const BUCKET: &str = "chunks";

/// Which server.
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
    /// Starts it.
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub fn start(kind: Kind) -> Result<Self> {
        Self::start_on(kind, "127.0.0.1")
    }

    /// The same with more variables.
    ///
    /// # Errors
    /// As [`S3::start`].
    pub fn start_among(kind: Kind, variables: &[(String, String)]) -> Result<Self> {
        Self::run(kind, "127.0.0.1", variables)
    }

    /// The same on an address of this machine, for those who are elsewhere.
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What s3s-fs keeps its objects in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }

    /// The address of a chunk store in it that nobody had before.
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

/// What object_store has to be told to speak to the server, or to a proxy before it, at `address`.
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

/// Starts a server that writes to `log` where it listens, and waits until it does.
///
/// # Errors
/// When it does not in time.
pub(crate) fn run(command: &mut Command, log: &Path) -> Result<(Process, SocketAddr)> {
    let output = File::create(log)?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let process = Process::start(command)?;
    let deadline = Deadline::after(&*clock(), PATIENCE);
    loop {
        let said = std::fs::read_to_string(log)?;
        if let Some(address) = listening(&said) {
            return Ok((process, address));
        }
        ensure!(!deadline.remaining(&*clock()).is_zero(), "{command:?} does not listen: {said}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The first address with a port: before, some say which one they were asked for.
fn listening(said: &str) -> Option<SocketAddr> {
    let mut addresses = said.split("http://").skip(1).filter_map(|rest| {
        let (address, _) = rest.split_once(|end: char| end.is_whitespace())?;
        address.parse::<SocketAddr>().ok()
    });
    addresses.find(|address| address.port() != 0)
}
