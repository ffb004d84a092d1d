//! A connection as the generated client sees it, with a way past that client for the bodies of
//! chunks: it would copy every byte into memory of its own before it is sent.
//!
//! Must hold: what a request carries as [`ChunkBody`] is sent in place of the messages it was
//! given, and nothing else about the request changes.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use dl_proto::PutFrames;
use http_body::Frame;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};
use tonic::transport::{Channel, Error};

/// The body of a request, among its extensions.
#[derive(Debug, Clone)]
pub(crate) struct ChunkBody(pub(crate) PutFrames);

/// One connection, made when the first request needs it.
#[derive(Debug, Clone)]
pub(crate) struct Wire(pub(crate) Channel);

impl Service<Request<Body>> for Wire {
    type Response = Response<Body>;
    type Error = Error;
    type Future = <Channel as Service<Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(chunk) = request.extensions_mut().remove::<ChunkBody>() {
            *request.body_mut() = Body::new(chunk);
        }
        self.0.call(request)
    }
}

impl http_body::Body for ChunkBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.next().map(|frame| Ok(Frame::data(frame))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_done()
    }
}
