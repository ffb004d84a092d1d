//! The gRPC port: HTTP/2 on each connection, below TLS where there is a certificate.
//!
//! Must hold: a connection past its time ends at once, even with waiting requests. On a stop, no connection
//! begins, and requests in flight are answered.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dl_proto::{SERVER_FRAME_BYTES, SERVER_STREAM_WINDOW_BYTES, SERVER_WINDOW_BYTES};
use dl_runtime::{Clock, Shutdown};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tonic::service::Routes;

use crate::api::admission::RequestLimiter;
use crate::net::connections::{Connection, ConnectionLimiter, accept};
use crate::net::socket::Socket;
use crate::net::tls::{Certificate, greet};

/// Requests of a connection at once; more requests wait in the client.
const STREAMS_PER_CONNECTION: u32 = 128;

/// Silence before a ping, and again before the connection ends.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Serves connections.
#[derive(Debug)]
pub(crate) struct GrpcPort {
    pub(crate) connections: ConnectionLimiter,
    pub(crate) requests: Arc<RequestLimiter>,
    pub(crate) methods: Routes,
    pub(crate) certificate: Option<Arc<Certificate>>,
    /// Limit for a client that takes no written bytes.
    pub(crate) patience: Duration,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) stop: Shutdown,
}

impl GrpcPort {
    /// Serves until a stop is requested, then runs `stopping` and ends with the last connection.
    pub(crate) async fn serve<T>(
        self,
        listener: TcpListener,
        stopping: impl Future<Output = T>,
    ) -> T {
        let (port, mut tasks) = (Arc::new(self), JoinSet::new());
        let converse = |stream| Arc::clone(&port).converse(stream);
        tokio::select! {
            never = accept(&listener, &*port.clock, &mut tasks, converse) => match never {},
            () = port.stop.requested() => {}
        }
        drop(listener);
        let stopped = stopping.await;
        while tasks.join_next().await.is_some() {}
        stopped
    }

    async fn converse(self: Arc<Self>, stream: TcpStream) {
        let connection = self.connections.enter(stream.peer_addr().ok());
        let socket = Socket::new(stream, &connection, self.patience, &self.clock);
        let served = Box::pin(self.greet(&connection, socket));
        self.connections.bound(&connection, served).await;
    }

    async fn greet(&self, connection: &Arc<Connection>, socket: Socket) {
        let Some(certificate) = &self.certificate else {
            return self.answer(connection, socket).await;
        };
        let greeted = tokio::select! {
            greeted = greet(socket, certificate) => greeted,
            () = self.stop.requested() => return,
        };
        match greeted {
            Ok(stream) => self.answer(connection, stream).await,
            Err(error) => tracing::debug!(peer = ?connection.peer, %error, "no TLS came about"),
        }
    }

    async fn answer<S>(&self, connection: &Arc<Connection>, stream: S)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let service = service_fn(|request| {
            let (requests, methods) = (Arc::clone(&self.requests), self.methods.clone());
            let connection = Arc::clone(connection);
            async move { requests.answer(methods, &connection, request).await }
        });
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_frame_size(SERVER_FRAME_BYTES)
            .initial_stream_window_size(SERVER_STREAM_WINDOW_BYTES)
            .initial_connection_window_size(SERVER_WINDOW_BYTES)
            .max_concurrent_streams(STREAMS_PER_CONNECTION)
            .keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE);
        let mut served = pin!(http.serve_connection(TokioIo::new(stream), service));
        let served = tokio::select! {
            served = served.as_mut() => served,
            () = self.stop.requested() => {
                served.as_mut().graceful_shutdown();
                served.await
            }
        };
        if let Err(error) = served {
            tracing::debug!(peer = ?connection.peer, %error, "a connection broke");
        }
    }
}
