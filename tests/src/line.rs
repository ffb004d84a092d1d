//! A slow line between clients and a server.
//!
//! Must hold: what goes through keeps its order, and all connections share what goes each way.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use dl_runtime::{Clock, SystemClock};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::listen::Listening;

/// Bytes that go at once.
const PIECE: usize = 4 << 10;

/// The line, cut when it is dropped.
#[derive(Debug)]
pub struct SlowLine {
    listening: Listening,
}

/// One way of it.
#[derive(Debug, Default)]
struct Way {
    free_at: Mutex<Duration>,
}

impl SlowLine {
    /// Listens on a free port and passes so many bytes in a second on to `upstream`, and as many
    /// back.
    ///
    /// # Errors
    /// When there is no port or no thread.
    pub fn start(upstream: SocketAddr, bytes_per_second: u32) -> Result<Self> {
        let clock = Arc::new(SystemClock::new());
        let ways = Arc::new([Way::default(), Way::default()]);
        let listening = Listening::start(move |client| {
            let (clock, ways) = (Arc::clone(&clock), Arc::clone(&ways));
            async move {
                let Ok(server) = TcpStream::connect(upstream).await else { return };
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                let [there, back] = &*ways;
                // A connection that fails ends.
                let _ = tokio::join!(
                    there.pass(&clock, bytes_per_second, from_client, to_server),
                    back.pass(&clock, bytes_per_second, from_server, to_client),
                );
            }
        })?;
        Ok(Self { listening })
    }

    /// Where it begins.
    pub fn address(&self) -> SocketAddr {
        self.listening.address()
    }
}

impl Way {
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
                let mut free_at = self.free_at.lock().unwrap_or_else(PoisonError::into_inner);
                let takes = Duration::from_secs_f64(count as f64 / f64::from(bytes_per_second));
                *free_at = now.max(*free_at) + takes;
                *free_at
            };
            clock.sleep(until.saturating_sub(now)).await;
            to.write_all(bytes.get(..count).unwrap_or_default()).await?;
        }
    }
}
