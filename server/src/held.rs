//! Answers on their way out: ties what a request has of memory to the bytes that its connection
//! still has of the answer.
//!
//! Must hold: nothing of an answer outlives the lease of its request, in whatever buffer it lies;
//! what a client does not take is counted as waiting for as long.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};
use tower_layer::Layer;

use crate::door::Ticket;
use crate::lease::Lease;
use crate::spelled::spelled;
use crate::stalled::{Wait, Waiting};

/// Puts a [`Held`] before a service.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeldLayer;

impl<S> Layer<S> for HeldLayer {
    type Service = Held<S>;

    fn layer(&self, inner: S) -> Held<S> {
        Held { inner }
    }
}

/// A service whose answers hold their leases until they are sent.
#[derive(Debug, Clone)]
pub(crate) struct Held<S> {
    inner: S,
}

impl<S> Service<Request<Body>> for Held<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let waiting = request.extensions().get::<Ticket>().map(Ticket::waiting);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let mut response = spelled(answer.await?);
            let Some(lease) = response.extensions_mut().remove::<Arc<Lease>>() else {
                return Ok(response);
            };
            let waiting = waiting.unwrap_or_default();
            let wait = Some(waiting.begin());
            Ok(response.map(|body| Body::new(HeldBody { body, lease, waiting, wait })))
        })
    }
}

/// An answer that has a lease.
struct HeldBody {
    body: Body,
    lease: Arc<Lease>,
    waiting: Arc<Waiting>,
    /// None while the server is the one that is waited for.
    wait: Option<Wait>,
}

/// Bytes that were handed to a connection, which drops them when they are written.
struct HeldBytes {
    bytes: Bytes,
    _lease: Arc<Lease>,
    _wait: Wait,
}

impl AsRef<[u8]> for HeldBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        self.wait = None;
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let Some(Ok(frame)) = frame else { return Poll::Ready(frame) };
        let frame = frame.map_data(|bytes| {
            let (lease, wait) = (Arc::clone(&self.lease), self.waiting.begin());
            Bytes::from_owner(HeldBytes { bytes, _lease: lease, _wait: wait })
        });
        self.wait = Some(self.waiting.begin());
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
