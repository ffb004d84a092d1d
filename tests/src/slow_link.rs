//! A slow link between clients and a server.
//!
//! Must hold: bytes keep their order, and all connections share the bandwidth of each direction.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use dl_runtime::{Clock, SystemClock, locked};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::listen::Listening;

/// Bytes per step.
const PIECE: usize = 4 << 10;

/// The link, closed on drop.
#[derive(Debug)]
pub struct SlowLink {
    listening: Listening,
}

/// A direction of the link.
#[derive(Debug, Default)]
struct Direction {
    free_at: Mutex<Duration>,
}

impl SlowLink {
    /// Listens on a free port and forwards to `upstream`, with `bytes_per_second` in each
    /// direction.
    ///
    /// # Errors
    /// When the port or the thread can't be had.
    pub fn start(upstream: SocketAddr, bytes_per_second: u32) -> Result<Self> {
        let clock = Arc::new(SystemClock::new());
        let directions = Arc::new([Direction::default(), Direction::default()]);
        let listening = Listening::start(move |client| {
            let (clock, directions) = (Arc::clone(&clock), Arc::clone(&directions));
            async move {
                let Ok(server) = TcpStream::connect(upstream).await else { return };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let [there, back] = &*directions;
                // A failed connection just ends.
                let _ = tokio::join!(
                    there.pass(&clock, bytes_per_second, from_client, to_server),
                    back.pass(&clock, bytes_per_second, from_server, to_client),
                );
            }
        })?;
        Ok(Self { listening })
    }

    /// The address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }
}

impl Direction {
    async fn pass(
        &self,
        clock: &SystemClock,
        bytes_per_second: u32,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> Result<()> {
        let mut bytes = vec![0; PIECE];
        loop {
            let count = from.read(&mut bytes).await?;
            if count == 0 {
                return Ok(to.shutdown().await?);
            }
            let now = clock.monotonic();
            let until = {
                let mut free_at = locked(&self.free_at);
                let takes = Duration::from_secs_f64(count as f64 / f64::from(bytes_per_second));
                *free_at = now.max(*free_at) + takes;
                *free_at
            };
            clock.sleep(until.saturating_sub(now)).await;
            to.write_all(bytes.get(..count).unwrap_or_default()).await?;
        }
    }
}
