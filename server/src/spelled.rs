//! Answers of Read and GetChunks past the generated server, which would copy every byte into memory of its own:
//! the server is shown an empty message for each, and the connection gets the frames of the real
//! one in its place.
//!
//! Must hold: one message at a time is between the two, so that what a client does not take is not
//! made; frames come in the order of the messages.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use dl_proto::{PiecedReply, ReplyFrames};
use futures::{Stream, StreamExt};
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::body::Body;
use tonic::{Response, Status};

use crate::answer::Replies;

/// The message that is under way, among the extensions of an answer.
#[derive(Debug, Clone, Default)]
struct UnderWay(Arc<Mutex<Option<ReplyFrames>>>);

impl UnderWay {
    fn lock(&self) -> MutexGuard<'_, Option<ReplyFrames>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The answer with empty messages in place of its own, for [`spelled`] to put them back.
pub(crate) fn emptied<R: PiecedReply>(answer: Response<Replies<R>>) -> Response<Replies<R>> {
    let under_way = UnderWay::default();
    let mut answer = answer.map(|replies| -> Replies<R> {
        Box::pin(Emptied { replies, under_way: under_way.clone() })
    });
    answer.extensions_mut().insert(under_way);
    answer
}

/// The body as it is sent, of an answer that [`emptied`] has seen; any other stays as it is.
pub(crate) fn spelled(
    mut response: tonic::codegen::http::Response<Body>,
) -> tonic::codegen::http::Response<Body> {
    match response.extensions_mut().remove::<UnderWay>() {
        Some(under_way) => response.map(|body| Body::new(Spelled { body, under_way })),
        None => response,
    }
}

struct Emptied<R> {
    replies: Replies<R>,
    under_way: UnderWay,
}

impl<R: PiecedReply> Stream for Emptied<R> {
    type Item = Result<R, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.under_way.lock().is_some() {
            // The body that takes the frames asks again when it has them all.
            return Poll::Pending;
        }
        let reply = ready!(self.replies.poll_next_unpin(context));
        Poll::Ready(reply.map(|reply| {
            *self.under_way.lock() = Some(ReplyFrames::new(reply?));
            Ok(R::default())
        }))
    }
}

struct Spelled {
    body: Body,
    under_way: UnderWay,
}

impl HttpBody for Spelled {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            let mut under_way = self.under_way.lock();
            if let Some(frame) = under_way.as_mut().and_then(Iterator::next) {
                return Poll::Ready(Some(Ok(Frame::data(frame))));
            }
            *under_way = None;
            drop(under_way);
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                // The empty message of the one that is under way now.
                Some(Ok(frame)) if frame.is_data() => {}
                other => return Poll::Ready(other),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.under_way.lock().is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
