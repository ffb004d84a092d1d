//! Answers of Read and GetChunks past the generated server, which would copy every byte: the server gets
//! an empty message in place of each message, and the connection gets the frames of the real message.
//!
//! Must hold: a single message at a time is under way, so that messages are made as the client takes
//! them; frames come in the order of the messages.

use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, ready};

use bytes::Bytes;
use dl_proto::{PiecedReply, ReplyFrames};
use dl_runtime::locked;
use futures::{StreamExt, stream};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use tonic::body::Body;
use tonic::{Response, Status};

use crate::answers::answer::Replies;

/// The message that is under way, among the extensions of an answer.
#[derive(Debug, Clone, Default)]
struct MessageFrames(Arc<Mutex<Option<ReplyFrames>>>);

impl MessageFrames {
    fn lock(&self) -> MutexGuard<'_, Option<ReplyFrames>> {
        locked(&self.0)
    }

    /// The next frame of the message; none when the connection has all of them.
    fn next(&self) -> Option<Bytes> {
        let mut message = self.lock();
        let frame = message.as_mut().and_then(Iterator::next);
        if frame.is_none() {
            *message = None;
        }
        frame
    }
}

/// The answer with empty messages; [`with_frames`] puts the real messages back.
pub(crate) fn without_frames<R: PiecedReply>(answer: Response<Replies<R>>) -> Response<Replies<R>> {
    let frames_left = MessageFrames::default();
    let mut answer = answer.map(|mut replies| -> Replies<R> {
        let frames_left = frames_left.clone();
        Box::pin(stream::poll_fn(move |context| {
            if frames_left.lock().is_some() {
                // The body asks again when all frames were sent.
                return Poll::Pending;
            }
            let reply = ready!(replies.poll_next_unpin(context));
            Poll::Ready(reply.map(|reply| -> Result<R, Status> {
                *frames_left.lock() = Some(ReplyFrames::new(reply?));
                Ok(R::default())
            }))
        }))
    });
    answer.extensions_mut().insert(frames_left);
    answer
}

/// An answer from [`without_frames`] with the frames of the real messages; other answers unchanged.
pub(crate) fn with_frames(
    mut response: tonic::codegen::http::Response<Body>,
) -> tonic::codegen::http::Response<Body> {
    match response.extensions_mut().remove::<MessageFrames>() {
        Some(frames_left) => response.map(|body| {
            let frames =
                stream::unfold((body, frames_left), |(mut body, frames_left)| async move {
                    let frame = next(&mut body, &frames_left).await?;
                    Some((frame, (body, frames_left)))
                });
            Body::new(StreamBody::new(frames))
        }),
        None => response,
    }
}

async fn next(
    body: &mut Body,
    frames_left: &MessageFrames,
) -> Option<Result<Frame<Bytes>, Status>> {
    loop {
        if let Some(frame) = frames_left.next() {
            return Some(Ok(Frame::data(frame)));
        }
        match body.frame().await? {
            // The empty message in place of the message that is under way now.
            Ok(frame) if frame.is_data() => {}
            other => return Some(other),
        }
    }
}
