//! A remote bucket: a real S3 server on this machine, and a link to it with latency.
//!
//! Must hold: the link has unlimited bandwidth, and delays each byte of a request by the same time.
//! Processes end with the bench.

use std::net::{SocketAddr, TcpStream as StdStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use dl_runtime::{Clock, SystemClock};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use crate::setup::{Process, free_address};

/// Bytes of a read, and pieces in flight on a connection.
const PIECE: usize = 64 << 10;
const PIECES: usize = 64;

/// Bucket of the server.
pub(in crate::workload) const BUCKET: &str = "chunks";

/// A running S3 server, s3s-fs.
#[derive(Debug)]
pub(in crate::workload) struct Bucket {
    _process: Process,
    pub(in crate::workload) address: SocketAddr,
}

impl Bucket {
    /// Starts the server with its objects below `root`.
    pub(in crate::workload) fn start(root: &Path) -> Result<Self> {
        std::fs::create_dir_all(root.join(BUCKET))?;
        let address = free_address()?;
        let mut command = Command::new("s3s-fs");
        command.args(["--host", "127.0.0.1", "--port", &address.port().to_string()]);
        command.args(["--access-key", "key", "--secret-key", "secret"]).arg(root);
        command.env("RUST_LOG", "off");
        let process = Process::listening(&mut command, || StdStream::connect(address).is_ok());
        Ok(Self { _process: process.context("`make buckets` installs s3s-fs")?, address })
    }
}

/// object_store settings for the server at `address`.
pub(super) fn settings(address: SocketAddr) -> [(&'static str, String); 5] {
    [
        ("AWS_ENDPOINT", format!("http://{address}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", "key".to_owned()),
        ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
    ]
}

/// A link with latency.
#[derive(Debug)]
pub(super) struct Link {
    _runtime: Runtime,
    pub(super) address: SocketAddr,
}

impl Link {
    /// Starts a link to the server at `upstream`.
    pub(super) fn start(upstream: SocketAddr, delay: Duration) -> Result<Self> {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        let address = listener.local_addr()?;
        dl_runtime::spawn_on(runtime.handle(), async move {
            while let Ok((client, _)) = listener.accept().await {
                // A failed connection ends.
                dl_runtime::spawn(forward(client, upstream, delay));
            }
        });
        Ok(Self { _runtime: runtime, address })
    }
}

async fn forward(client: TcpStream, upstream: SocketAddr, delay: Duration) -> Result<()> {
    let server = TcpStream::connect(upstream).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let clock = Arc::new(SystemClock::new());
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let (line, mut waiting) = mpsc::channel(PIECES);
    let arriving = Arc::clone(&clock);
    let arrive = async move {
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            if from_client.read_buf(&mut piece).await? == 0 {
                return anyhow::Ok(());
            }
            line.send((arriving.monotonic() + delay, piece)).await?;
        }
    };
    let leave = async move {
        while let Some((due, piece)) = waiting.recv().await {
            clock.sleep(due.saturating_sub(clock.monotonic())).await;
            to_server.write_all(&piece).await?;
        }
        anyhow::Ok(to_server.shutdown().await?)
    };
    let back = async move {
        copy(&mut from_server, &mut to_client).await?;
        anyhow::Ok(to_client.shutdown().await?)
    };
    tokio::try_join!(arrive, leave, back)?;
    Ok(())
}
