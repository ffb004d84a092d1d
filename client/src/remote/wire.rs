//! A connection as the generated client sees it, with a way past that client for the bytes of
//! chunks and files: it would copy every one into memory of its own.
//!
//! Must hold: what a request carries as [`ChunkBody`] is sent in place of the messages it was
//! given; the messages of an answer to one that carries [`Replies`] go there, each before the
//! empty one that the client is shown in its place; its [`Flow`] hears of all; nothing else changes.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Display;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use dl_proto::{MESSAGE_BYTES_MAX, PiecedReply, PutFrames, check_fields, pb};
use futures::future::MapOk;
use futures::{TryFutureExt, stream};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};
use tonic::transport::{Channel, Error};

use crate::remote::flow::Flow;
use crate::remote::segments::Segments;

/// What stands before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;
/// A message of no fields.
const EMPTY: &[u8] = &[0; PREFIX_BYTES];

/// The body of a request, among its extensions.
#[derive(Debug, Clone)]
pub(crate) struct ChunkBody(pub(crate) PutFrames);

/// Takes the messages of an answer; the request has it among its extensions. Their bytes are those
/// that came from the socket.
#[derive(Debug, Clone)]
pub(crate) struct Replies<R>(Arc<Mutex<VecDeque<R>>>);

impl<R> Default for Replies<R> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<R: PiecedReply> Replies<R> {
    /// The next message that came.
    pub(crate) fn next(&self) -> Option<R> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    fn push(&self, reply: R) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(reply);
    }

    /// An answer whose messages go here.
    fn divert(self, body: Body) -> Body {
        let diverted = Diverted { body, replies: self, came: Segments::default() };
        let frames = stream::try_unfold(diverted, |mut diverted| async move {
            Ok::<_, Status>(diverted.next().await?.map(|frame| (frame, diverted)))
        });
        Body::new(StreamBody::new(frames))
    }
}

/// One connection, made when the first request needs it.
#[derive(Debug, Clone)]
pub(crate) struct Wire(pub(crate) Channel);

type Called = <Channel as Service<Request<Body>>>::Future;
type Divert = Box<dyn FnOnce(Response<Body>) -> Response<Body> + Send>;

impl Service<Request<Body>> for Wire {
    type Response = Response<Body>;
    type Error = Error;
    type Future = MapOk<Called, Divert>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let flow = request.extensions_mut().remove::<Flow>();
        if let Some(ChunkBody(frames)) = request.extensions_mut().remove() {
            *request.body_mut() = sent(frames, flow.clone());
        }
        let files = request.extensions_mut().remove::<Replies<pb::ReadReply>>();
        let chunks = request.extensions_mut().remove::<Replies<pb::GetChunksReply>>();
        let divert: Divert = Box::new(|response| {
            response.map(|body| {
                let body = match flow {
                    Some(flow) => flow.watch(body),
                    None => body,
                };
                match (files, chunks) {
                    (Some(replies), _) => replies.divert(body),
                    (None, Some(replies)) => replies.divert(body),
                    (None, None) => body,
                }
            })
        });
        self.0.call(request).map_ok(divert)
    }
}

/// The body of a request that sends a chunk.
fn sent(frames: PutFrames, flow: Option<Flow>) -> Body {
    let frames = frames.map(move |frame| {
        if let Some(flow) = &flow {
            flow.goes();
        }
        Ok::<_, Infallible>(Frame::data(frame))
    });
    Body::new(StreamBody::new(stream::iter(frames)))
}

/// The body of an answer, whose messages go elsewhere.
struct Diverted<R> {
    body: Body,
    replies: Replies<R>,
    /// Not yet a whole message.
    came: Segments,
}

impl<R: PiecedReply> Diverted<R> {
    /// The next frame: an empty message in place of each message, or the trailers.
    async fn next(&mut self) -> Result<Option<Frame<Bytes>>, Status> {
        loop {
            if let Some(reply) = self.take()? {
                self.replies.push(reply);
                return Ok(Some(Frame::data(Bytes::from_static(EMPTY))));
            }
            let Some(frame) = self.body.frame().await.transpose()? else {
                if self.came.has_remaining() {
                    let why = "the answer broke off in the middle of a message";
                    return Err(Status::unavailable(why));
                }
                return Ok(None);
            };
            match frame.into_data() {
                Ok(data) => self.came.push(data),
                Err(trailers) => return Ok(Some(trailers)),
            }
        }
    }

    /// Takes the next message off what came, when all of it did.
    fn take(&mut self) -> Result<Option<R>, Status> {
        let Some([compressed, length @ ..]) = self.came.first::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let length = length.as_slice().get_u32() as usize;
        if compressed != 0 || length > MESSAGE_BYTES_MAX {
            let why = format!("an answer that makes no sense: a message of {length} bytes");
            return Err(Status::internal(why));
        }
        if self.came.remaining() < PREFIX_BYTES + length {
            return Ok(None);
        }
        self.came.advance(PREFIX_BYTES);
        let no_sense = |why: &dyn Display| Status::internal(format!("an answer: {why}"));
        check_fields(self.came.look(length)).map_err(|why| no_sense(&why))?;
        let reply = R::decode((&mut self.came).take(length));
        reply.map(Some).map_err(|why| no_sense(&why))
    }
}

#[cfg(test)]
mod tests {
    use bytes::{BufMut, BytesMut};

    use super::*;

    #[test]
    fn an_answer_of_very_many_empty_pieces_is_refused_however_it_comes() {
        // A group that nobody knows, and empty pieces.
        let message = [&[0x5b, 0x5c][..], &[0x0a, 0].repeat(1_000_000)].concat();
        let mut prefix = BytesMut::from(&[0][..]);
        prefix.put_u32(message.len() as u32);
        let prefix = prefix.freeze();
        for frame in [1_000, usize::MAX] {
            let mut came = Segments::default();
            came.push(prefix.clone());
            message.chunks(frame).for_each(|piece| came.push(Bytes::copy_from_slice(piece)));
            let replies = Replies::<pb::ReadReply>::default();
            let mut answer = Diverted { body: Body::empty(), replies, came };

            let why = answer.take().unwrap_err();
            assert!(why.message().contains("too many short fields"), "{why}");
        }
    }
}
