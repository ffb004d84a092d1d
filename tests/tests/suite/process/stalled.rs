//! Clients that announce large requests on many streams and never complete them. The HTTP/2 frames
//! are written by hand, because no client library stops in the middle of a message.

#![expect(clippy::big_endian_bytes, reason = "the numbers in HTTP/2 frames are big-endian")]

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use dl_runtime::blocking;
use dl_server::Limits;
use dl_tests::cluster::{Running, clock, in_memory};
use dl_tests::rounds;
use dl_tests::scene::{Scene, check_well};
use dl_tests::wire::Wire;
use tonic::Code;

const STREAMS: u32 = 100;

/// Bytes of a data frame.
const PIECE: u32 = 16 << 10;

/// A connection with many incomplete requests.
struct Flood {
    stream: TcpStream,
    received: Vec<u8>,
    /// The server's remaining receive window for the connection.
    window: i64,
    open: BTreeSet<u32>,
    sent: u64,
}

impl Flood {
    /// Opens requests of a method; each announces a message of `announced` bytes.
    fn start(address: SocketAddr, method: &str, announced: u32) -> Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(Duration::from_millis(20)))?;
        stream.set_write_timeout(Some(Duration::from_secs(5)))?;
        let (window, open) = (65_535, BTreeSet::new());
        let mut flood = Self { stream, received: Vec::new(), window, open, sent: 0 };
        flood.stream.write_all(PREFACE)?;
        flood.send(4, 0, 0, &[])?;
        for stream in (0..STREAMS).map(|number| 2 * number + 1) {
            flood.open.insert(stream);
            flood.send(1, 4, stream, &headers(method))?;
            let prefix = [&[0][..], &announced.to_be_bytes()].concat();
            flood.send(0, 0, stream, &prefix)?;
        }
        flood.window -= i64::from(5 * STREAMS);
        Ok(flood)
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<()> {
        self.stream.write_all(&frame(kind, flags, stream, payload)).context("send a frame")
    }

    /// Sends `bytes` on each stream, as far as the window permits, without an end.
    fn fill(&mut self, bytes: u32) -> Result<()> {
        let piece = vec![0; PIECE as usize];
        for _ in 0..bytes / PIECE {
            for stream in self.open.clone() {
                let mut idle = 0;
                while self.window < i64::from(PIECE) {
                    idle = if self.listen()? { 0 } else { idle + 1 };
                    if idle > 50 {
                        // The server has opened no window for a second.
                        return Ok(());
                    }
                }
                if self.open.contains(&stream) {
                    self.send(0, 0, stream, &piece)?;
                    self.window -= i64::from(PIECE);
                    self.sent += u64::from(PIECE);
                }
            }
        }
        Ok(())
    }

    /// Reads frames of the server; false after a moment of silence.
    fn listen(&mut self) -> Result<bool> {
        let mut bytes = [0; 16 << 10];
        let count = match self.stream.read(&mut bytes) {
            Ok(0) => bail!("the server has hung up"),
            Ok(count) => count,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                return Ok(false);
            }
            Err(error) => return Err(error.into()),
        };
        self.received.extend_from_slice(&bytes[..count]);
        while let [a, b, c, kind, flags, s, t, u, v, rest @ ..] = self.received.as_slice() {
            let length = u32::from_be_bytes([0, *a, *b, *c]) as usize;
            let (kind, flags, stream) = (*kind, *flags, u32::from_be_bytes([*s, *t, *u, *v]));
            let Some(payload) = rest.get(..length) else { break };
            let number = payload.first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
            self.received.drain(..9 + length);
            match (kind, flags & 1) {
                // Data or headers that end the stream, or a reset.
                (0 | 1, 1) | (3, _) => drop(self.open.remove(&stream)),
                // Settings and pings need an answer.
                (4, 0) => self.send(4, 1, 0, &[])?,
                (6, 0) => self.send(6, 1, 0, &[0; 8])?,
                (7, _) => bail!("the server gives the connection up: {number:?}"),
                (8, _) if stream == 0 => self.window += i64::from(number.unwrap_or_default()),
                _ => {}
            }
        }
        Ok(true)
    }

    /// Waits until all requests are closed, or the connection.
    fn wait_until_given_up(&mut self, patience: Duration) -> Result<()> {
        let until = clock().monotonic() + patience;
        while !self.open.is_empty() {
            ensure!(clock().monotonic() < until, "{} requests are still open", self.open.len());
            if self.listen().is_err() {
                return Ok(());
            }
        }
        Ok(())
    }
}

/// The beginning of a connection.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let [_, length @ ..] = (payload.len() as u32).to_be_bytes();
    [&length[..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The headers of a gRPC request as literals without indexing.
pub(super) fn headers(path: &str) -> Vec<u8> {
    let literal =
        |name: &[u8], value: &str| [name, &[value.len() as u8], value.as_bytes()].concat();
    [
        // POST, http.
        vec![0x83, 0x86],
        literal(&[0x04], path),
        literal(&[0x01], "diesel"),
        literal(&[0x0f, 0x10], "application/grpc"),
        literal(b"\x00\x02te", "trailers"),
    ]
    .concat()
}

/// Keeps S-16 and S-10: with messages just too long for the server, and just short enough.
#[test]
fn announced_requests_without_data_take_little_memory() -> Result<()> {
    let (_scene, server) = Scene::with_a_file()?;
    let address = server.address().parse()?;
    let mut floods = Vec::new();
    for announced in [15 << 20, 2_000_000] {
        let mut flood = Flood::start(address, "/diesel.v1.Diesel/Stat", announced)?;
        // The server may have closed the connection.
        let _ = flood.fill(announced - PIECE);
        floods.push(flood);
    }
    drop(floods);
    check_well(&server)?;
    server.stop().map(drop)
}

/// Keeps S-16.
#[tokio::test(flavor = "multi_thread")]
async fn requests_stalled_in_the_middle_are_given_up() -> Result<()> {
    let limits = Limits { patience: Duration::from_millis(500), ..Limits::default() };
    let (server, client) = Running::fresh(in_memory(limits)).await?;
    client.create("ds").await?;
    for announced in [15 << 20, 1_000_000] {
        let address = server.address();
        let flooded = std::thread::spawn(move || {
            let mut flood = Flood::start(address, "/diesel.v1.Diesel/Stat", announced)?;
            let _ = flood.fill(announced / 2);
            flood.wait_until_given_up(Duration::from_secs(20))
        });
        let asked = tokio::time::timeout(Duration::from_secs(20), ask(&client)).await;
        asked.context("an honest client never gets its turn")??;
        let flooded = blocking::run(move || flooded.join()).await?;
        flooded
            .map_err(|_| anyhow::anyhow!("the flood panicked"))?
            .with_context(|| format!("{announced} bytes announced"))?;
    }
    Ok(())
}

/// Looks a dataset up, and repeats a lookup refused for lack of places, as clients do. A busy
/// machine may count it as waiting from before the last stalled request.
async fn ask(client: &Wire) -> Result<()> {
    let mut tries = 0;
    loop {
        match client.dataset("ds").await {
            Ok(found) => return found.map(drop).context("ds is gone"),
            Err(status) if status.code() == Code::Unavailable && tries < 4 => tries += 1,
            Err(status) => return Err(status.into()),
        }
    }
}

/// Keeps S-16 and S-10: for data sent before the server has memory for the chunk.
#[test]
fn endless_first_messages_take_little_memory_heavy() -> Result<()> {
    let scene = Scene::filled(200, 50_000)?;
    let server = scene.start()?;
    let address = server.address().parse()?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut floods = Vec::new();
        for _ in 0..rounds(20, 100) {
            floods.push(scope.spawn(|| {
                let Ok(mut flood) = Flood::start(address, "/diesel.v1.Diesel/PutChunk", 2_000_000)
                else {
                    return 0;
                };
                // The server may have closed the connection.
                let _ = flood.fill(2_000_000 - PIECE);
                while !stop.load(Ordering::Relaxed) {
                    if flood.listen().is_err() {
                        break;
                    }
                }
                flood.sent
            }));
        }
        let mut put = ["dl://beside", "dl://again"].into_iter();
        let done = put.try_for_each(|name| server.put(scene.src(), name));
        stop.store(true, Ordering::Relaxed);
        let sent: u64 = floods.into_iter().map(|flood| flood.join().unwrap_or_default()).sum();
        dl_tests::tell(format_args!("{} MiB were sent", sent >> 20));
        done
    })?;
    server.check_memory("server")?;
    server.stop().map(drop)
}
