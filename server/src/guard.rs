//! What stands before every request: bounds on what clients keep in memory before anything about
//! their requests is known.
//!
//! Must hold: no more request messages are received at a time than fit into memory, and a client
//! that stops in the middle of one is given up.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::Semaphore;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::Request;
use tower_http::timeout::TimeoutBody;
use tower_layer::Layer;

/// Requests that are received or worked on until their answers begin, in the whole server. At
/// `REQUEST_BYTES_MAX` each, together 96 MiB.
const AT_ONCE: usize = 48;

/// Takes its pieces one by one, out of a budget and with a patience of its own.
const STREAMED: &str = "/PutChunk";

/// Puts a [`Guard`] before a service.
#[derive(Debug, Clone)]
pub(crate) struct GuardLayer {
    room: Arc<Semaphore>,
    patience: Duration,
}

impl GuardLayer {
    /// Gives up clients that send nothing for `patience` in the middle of a request.
    pub(crate) fn new(patience: Duration) -> Self {
        Self { room: Arc::new(Semaphore::new(AT_ONCE)), patience }
    }
}

impl<S> Layer<S> for GuardLayer {
    type Service = Guard<S>;

    fn layer(&self, inner: S) -> Guard<S> {
        Guard { inner, limits: self.clone() }
    }
}

/// A service with bounds before it.
#[derive(Debug, Clone)]
pub(crate) struct Guard<S> {
    inner: S,
    limits: GuardLayer,
}

impl<S> Service<Request<Body>> for Guard<S>
where
    S: Service<Request<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The one that was asked whether it is ready is the one to call.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        if request.uri().path().ends_with(STREAMED) {
            return Box::pin(async move { inner.call(request).await });
        }
        let patience = self.limits.patience;
        let request = request.map(|body| Body::new(TimeoutBody::new(patience, body)));
        let room = Arc::clone(&self.limits.room);
        Box::pin(async move {
            let _place = room.acquire_owned().await.expect("the semaphore is never closed");
            inner.call(request).await
        })
    }
}
