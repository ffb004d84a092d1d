//! A relay between a server and its Redis that counts write commands.
//!
//! Must hold: commands are forwarded unchanged and in order on each connection. Redis answers every
//! forwarded command, even if the server has died.

use anyhow::{Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::listen::Listening;
use crate::point::KillPoint;

/// Read-only commands of the metadata store. Scripts count as writes.
const READS: [&str; 17] = [
    "GET",
    "HGET",
    "HMGET",
    "HGETALL",
    "HLEN",
    "EXISTS",
    "SMEMBERS",
    "ZSCORE",
    "ZCARD",
    "SCAN",
    "ZRANGEBYLEX",
    "INFO",
    "CONFIG",
    "PING",
    "HELLO",
    "CLIENT",
    "SELECT",
];

/// The relay, stopped on drop.
#[derive(Debug)]
pub struct Relay {
    listening: Listening,
}

impl Relay {
    /// Listens on a free port and forwards to the Redis on port `redis` of this machine; writes
    /// count at `point`.
    ///
    /// # Errors
    /// When the port or the thread can't be had.
    pub fn start(redis: u16, point: KillPoint) -> Result<Self> {
        let listening = Listening::start(move |client| {
            let point = point.clone();
            async move {
                // A failed connection just ends.
                let _ = serve(client, redis, &point).await;
            }
        })?;
        Ok(Self { listening })
    }

    /// The relay's address as a metadata store.
    pub fn url(&self) -> String {
        format!("redis://{}/0", self.listening.address())
    }
}

async fn serve(client: TcpStream, redis: u16, point: &KillPoint) -> Result<()> {
    let server = TcpStream::connect(("127.0.0.1", redis)).await?;
    server.set_nodelay(true)?;
    client.set_nodelay(true)?;
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let asked = async {
        let mut waiting = Vec::new();
        loop {
            let mut read = 0;
            while let Some(command) = waiting.get(read..).and_then(first_command) {
                let bytes = &command.bytes;
                if READS.contains(&command.name.as_str()) {
                    to_server.write_all(bytes).await?;
                } else {
                    let Some(number) = point.begin() else {
                        bail!("the server was killed before this write")
                    };
                    to_server.write_all(bytes).await?;
                    point.end(number);
                }
                read += bytes.len();
            }
            waiting.drain(..read);
            if from_client.read_buf(&mut waiting).await? == 0 {
                bail!("the client went away");
            }
        }
    };
    let answered = async {
        // The loop reads on without a client: Redis may drop queued commands if its answers pile
        // up.
        let (mut bytes, mut is_there) = (vec![0; 64 << 10], true);
        loop {
            match from_server.read(&mut bytes).await? {
                0 => return anyhow::Ok(()),
                read if is_there => {
                    let read = bytes.get(..read).unwrap_or_default();
                    is_there = to_client.write_all(read).await.is_ok();
                }
                _ => {}
            }
        }
    };
    let mut answered = std::pin::pin!(answered);
    let stopped: Result<()> = tokio::select! {
        stopped = asked => stopped,
        answered = &mut answered => return answered,
    };
    // Redis executes the forwarded commands, then closes.
    to_server.shutdown().await?;
    answered.await?;
    stopped
}

/// A RESP command with its name in capital letters.
struct Command {
    name: String,
    bytes: Vec<u8>,
}

/// The first complete command: an array of strings with length prefixes.
fn first_command(bytes: &[u8]) -> Option<Command> {
    let (count, mut at) = number(bytes, 0, b'*')?;
    let mut name = None;
    for _ in 0..count {
        let (length, start) = number(bytes, at, b'$')?;
        let text = bytes.get(start..start + length)?;
        name.get_or_insert_with(|| String::from_utf8_lossy(text).to_uppercase());
        at = start + length + 2;
    }
    Some(Command { name: name.unwrap_or_default(), bytes: bytes.get(..at)?.to_vec() })
}

/// The number behind `mark` at `at`, and the position after its line.
fn number(bytes: &[u8], at: usize, mark: u8) -> Option<(usize, usize)> {
    let rest = bytes.get(at..)?.strip_prefix(&[mark])?;
    let end = rest.windows(2).position(|two| two == b"\r\n")?;
    let number = std::str::from_utf8(rest.get(..end)?).ok()?.parse().ok()?;
    Some((number, at + 1 + end + 2))
}
