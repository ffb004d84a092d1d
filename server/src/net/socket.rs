//! The socket of a connection: counts its bytes, stops to read while the server holds too many of
//! them, and fails when nothing that was written arrives for as long as the patience of a request.
//!
//! Must hold: the end of an answer arrives, also when the client has sent what nobody read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use dl_runtime::{BoxFuture, Clock};
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::net::connections::Connection;

/// How long a client may take to end a connection after the server did.
const LINGER: Duration = Duration::from_secs(1);

/// Pause before the server looks again whether it may read.
const PAUSE: Duration = Duration::from_millis(10);

/// Bytes that the server reads of a connection before its first valid request, as told by headers.
const NEWCOMER_BYTES: u64 = 48 << 10;

pub(crate) struct Socket {
    stream: TcpStream,
    connection: Arc<Connection>,
    received: u64,
    clock: Arc<dyn Clock>,
    paused: Option<BoxFuture<'static, ()>>,
    linger: Option<BoxFuture<'static, ()>>,
    is_over: bool,
}

impl Socket {
    /// The socket of a connection whose client has to take something within `patience`.
    pub(crate) fn new(
        stream: TcpStream,
        connection: &Arc<Connection>,
        patience: Duration,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        let patience = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        let set = stream.set_nodelay(true).and_then(|()| {
            sockopt::set_tcp_user_timeout(&stream, patience).map_err(io::Error::from)
        });
        if let Err(error) = set {
            tracing::warn!(%error, "a socket takes no options");
        }
        let (connection, clock) = (Arc::clone(connection), Arc::clone(clock));
        Self { stream, connection, received: 0, clock, paused: None, linger: None, is_over: false }
    }

    /// The first byte from the client, which stays to be read; none when the client has gone.
    pub(crate) async fn first_byte(&mut self) -> io::Result<Option<u8>> {
        let mut first = [0];
        let count = self.stream.peek(&mut first).await?;
        Ok((count > 0).then_some(first[0]))
    }

    /// Waits while the server holds too many bytes of the connection.
    fn poll_share(&mut self, context: &mut Context<'_>) -> Poll<()> {
        while self.connection.share.is_full()
            || self.received > NEWCOMER_BYTES && self.connection.is_new()
        {
            let paused = self.paused.get_or_insert_with(|| self.clock.sleep(PAUSE));
            ready!(paused.as_mut().poll(context));
            self.paused = None;
        }
        Poll::Ready(())
    }

    fn count_sent(&self, done: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(written)) = &done {
            let sent = &self.connection.traffic.sent_bytes;
            sent.fetch_add(*written as u64, Ordering::Relaxed);
        }
        done
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.poll_share(context));
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        let came = buffer.filled().len().saturating_sub(before) as u64;
        self.connection.traffic.received_bytes.fetch_add(came, Ordering::Relaxed);
        self.connection.share.add(came);
        self.received = self.received.saturating_add(came);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.count_sent(done)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    /// Reads until the client has ended: a socket closed with unread bytes loses the end of the answer.
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(Pin::new(&mut this.stream).poll_shutdown(context))?;
        if this.is_over {
            return Poll::Ready(Ok(()));
        }
        let linger = this.linger.get_or_insert_with(|| this.clock.sleep(LINGER));
        let mut unread = [0; 1024];
        while linger.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut unread);
            ready!(Pin::new(&mut this.stream).poll_read(context, &mut buffer))?;
            if buffer.filled().is_empty() {
                break;
            }
        }
        this.is_over = true;
        Poll::Ready(Ok(()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.count_sent(done)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use dl_runtime::SystemClock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::net::connections::ConnectionLimiter;

    /// A client and its connection, whose client has to take something within `patience`.
    async fn connect(patience: Duration) -> (TcpStream, Socket) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let limiter = ConnectionLimiter::new(1, patience, Vec::new(), Arc::clone(&clock));
        (client, Socket::new(stream, &limiter.enter(None), patience, &clock))
    }

    #[tokio::test]
    async fn a_socket_fails_when_its_client_takes_nothing() {
        let (_client, mut socket) = connect(Duration::from_millis(300)).await;
        let error = loop {
            if let Err(error) = socket.write(&[7; 64 << 10]).await {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn the_end_of_an_answer_arrives_beside_unread_requests() {
        let (mut client, mut socket) = connect(Duration::from_secs(30)).await;
        client.write_all(&[1; 10_000]).await.unwrap();
        let answered = dl_runtime::spawn(async move {
            socket.write_all(&[7; 1 << 20]).await?;
            socket.shutdown().await
        });
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        assert_eq!(answer, [7; 1 << 20]);
        drop(client);
        answered.await.unwrap().unwrap();
    }
}
