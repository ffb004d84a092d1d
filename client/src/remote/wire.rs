//! The transport below the generated client, with a bypass for the bytes of chunks and files. The
//! generated client would copy all of these bytes.
//!
//! Must hold: the transport replaces the body of a request with a [`ChunkBody`]. It diverts the
//! messages of an answer to the request's [`Replies`], and hands the client an empty message for
//! each. It notes transfers in the request's [`Flow`], and changes nothing else.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt::Display;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use dl_proto::{MESSAGE_BYTES_MAX, PiecedReply, PutFrames, check_fields, pb};
use dl_runtime::locked;
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

/// Bytes before each message: a compression flag and the length.
const PREFIX_BYTES: usize = 5;
/// A message without fields.
const EMPTY: &[u8] = &[0; PREFIX_BYTES];

/// The body of a request, as an extension.
#[derive(Debug, Clone)]
pub(crate) struct ChunkBody(pub(crate) PutFrames);

/// A queue for the messages of an answer, as an extension of the request. The bytes of messages are
/// slices of received buffers.
#[derive(Debug, Clone)]
pub(crate) struct Replies<R>(Arc<Mutex<VecDeque<R>>>);

impl<R> Default for Replies<R> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<R: PiecedReply> Replies<R> {
    pub(crate) fn next(&self) -> Option<R> {
        locked(&self.0).pop_front()
    }

    fn push(&self, reply: R) {
        locked(&self.0).push_back(reply);
    }

    /// A body that diverts its messages to the queue.
    fn divert(self, body: Body) -> Body {
        let diverted = Diverted { body, replies: self, came: Segments::default() };
        let frames = stream::try_unfold(diverted, |mut diverted| async move {
            Ok::<_, Status>(diverted.next().await?.map(|frame| (frame, diverted)))
        });
        Body::new(StreamBody::new(frames))
    }
}

/// A connection, opened by its first request.
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

/// The body of a request with a chunk.
fn sent(frames: PutFrames, flow: Option<Flow>) -> Body {
    let frames = frames.map(move |frame| {
        if let Some(flow) = &flow {
            flow.progressed();
        }
        Ok::<_, Infallible>(Frame::data(frame))
    });
    Body::new(StreamBody::new(stream::iter(frames)))
}

/// The body of an answer with diverted messages.
struct Diverted<R> {
    body: Body,
    replies: Replies<R>,
    /// The begin of the next message.
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

    /// Takes the next message, if complete.
    fn take(&mut self) -> Result<Option<R>, Status> {
        let Some([compressed, length @ ..]) = self.came.first::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        let length = length.as_slice().get_u32() as usize;
        if compressed != 0 || length > MESSAGE_BYTES_MAX {
            let why = format!("the answer makes no sense: a message of {length} bytes");
            return Err(Status::internal(why));
        }
        if self.came.remaining() < PREFIX_BYTES + length {
            return Ok(None);
        }
        self.came.advance(PREFIX_BYTES);
        let no_sense =
            |why: &dyn Display| Status::internal(format!("the answer makes no sense: {why}"));
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
    fn an_answer_of_very_many_empty_pieces_is_refused() {
        // An unknown group, and empty pieces.
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
