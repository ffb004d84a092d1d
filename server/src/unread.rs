//! Bytes that clients have sent and that no request has taken into its own memory yet: they lie in
//! the buffers of connections, and in messages that wait for their turn.
//!
//! Must hold: however many the connections are, together they keep little more than `UNREAD_MAX` of
//! them. Above that, one that has more than its share is not read from until that is worked off, so
//! that the rest stays with its client; one that a request with memory of its own waits for is.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use dl_proto::SERVER_WINDOW_BYTES;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

/// Most bytes of all connections before shares count.
const UNREAD_MAX: u64 = 32 << 20;

/// Most bytes of all connections before no more puts may wait for memory of their own: a connection is read
/// from while any of its requests has some, and brings those of all others.
const WAITING_MAX: u64 = 3 * UNREAD_MAX;

/// Of so many bytes of a body, one was spent on frames and TLS around them, at least.
const OVERHEAD_PART: u64 = 64;

/// What goes around each piece of a body, at least.
const OVERHEAD: u64 = 64;

/// Frames that are counted when their body is dropped, at most: while they are, more may come.
const LAST_FRAMES: usize = 256;

/// What all connections have.
#[derive(Debug, Default)]
pub(crate) struct Unread {
    bytes: AtomicU64,
    connections: AtomicU64,
}

/// What one connection has of it.
#[derive(Debug)]
pub(crate) struct Share {
    all: Arc<Unread>,
    bytes: AtomicU64,
    /// Requests whose bodies have not ended.
    bodies: AtomicU64,
    /// Requests that have memory for what is still to come.
    expected: AtomicU64,
}

impl Unread {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

impl Share {
    pub(crate) fn new(all: Arc<Unread>) -> Self {
        all.connections.fetch_add(1, Ordering::Relaxed);
        let none = || AtomicU64::new(0);
        Self { all, bytes: none(), bodies: none(), expected: none() }
    }

    /// Bytes came from the client.
    pub(crate) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.all.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes are elsewhere now, or gone.
    fn remove(&self, bytes: u64) {
        let less = |had: u64| Some(had.saturating_sub(bytes));
        let had = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.all.bytes.fetch_sub(had.unwrap_or_default().min(bytes), Ordering::Relaxed);
    }

    /// Whether no more is to be read now.
    pub(crate) fn is_full(&self) -> bool {
        let connections = self.all.connections.load(Ordering::Relaxed).max(1);
        self.all.bytes() > UNREAD_MAX
            && self.bytes.load(Ordering::Relaxed) > UNREAD_MAX / connections
            && self.expected.load(Ordering::Relaxed) == 0
    }

    /// Whether all have so much, and this one more than its share, that no more can wait here.
    fn is_over(&self) -> bool {
        let connections = self.all.connections.load(Ordering::Relaxed).max(1);
        let fair = (UNREAD_MAX / connections).max(SERVER_WINDOW_BYTES.into());
        self.all.bytes() > WAITING_MAX && self.bytes.load(Ordering::Relaxed) > fair
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.remove(u64::MAX);
        self.all.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a request that comes in pieces says of them; among its extensions.
#[derive(Debug, Clone)]
pub(crate) struct Intake(Arc<Held>);

#[derive(Debug)]
struct Held {
    share: Option<Arc<Share>>,
    bytes: AtomicU64,
}

impl Intake {
    /// Where nothing is counted.
    pub(crate) fn uncounted() -> Self {
        Self(Arc::new(Held { share: None, bytes: AtomicU64::new(0) }))
    }

    /// What came so far is in the memory of the request.
    pub(crate) fn taken(&self) {
        self.0.give_back(0);
    }

    /// Whether so much has come that its request can't wait for memory.
    pub(crate) fn is_over(&self) -> bool {
        self.0.share.as_ref().is_some_and(|share| share.is_over())
    }

    /// There is memory for all that comes, until the guard is dropped.
    pub(crate) fn expect(&self) -> Expected {
        if let Some(share) = &self.0.share {
            share.expected.fetch_add(1, Ordering::Relaxed);
        }
        Expected(Arc::clone(&self.0))
    }
}

/// Has a connection read from.
#[derive(Debug)]
pub(crate) struct Expected(Arc<Held>);

impl Drop for Expected {
    fn drop(&mut self) {
        if let Some(share) = &self.0.share {
            share.expected.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Held {
    /// So many bytes of the body, and those that were held, are elsewhere now.
    fn give_back(&self, bytes: u64) {
        let bytes = bytes.saturating_add(self.bytes.swap(0, Ordering::Relaxed));
        if let Some(share) = &self.share {
            share.remove(bytes);
        }
    }
}

/// The body of a request, counted as it leaves the connection's buffers.
pub(crate) struct Counted {
    body: Body,
    held: Arc<Held>,
    /// Whether its bytes count until the request says that it has taken them.
    is_held: bool,
}

impl Counted {
    /// A body whose bytes count no more once they are read.
    pub(crate) fn new(body: Body, share: Option<Arc<Share>>) -> Self {
        if let Some(share) = &share {
            share.bodies.fetch_add(1, Ordering::Relaxed);
        }
        let held = Arc::new(Held { share, bytes: AtomicU64::new(0) });
        Self { body, held, is_held: false }
    }

    /// Has its bytes count until the intake says otherwise.
    pub(crate) fn hold(mut self) -> (Self, Intake) {
        self.is_held = true;
        let intake = Intake(Arc::clone(&self.held));
        (self, intake)
    }

    fn count(&self, frame: &Frame<Bytes>) {
        let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
        let bytes = bytes.saturating_add(bytes / OVERHEAD_PART).saturating_add(OVERHEAD);
        if self.is_held {
            self.held.bytes.fetch_add(bytes, Ordering::Relaxed);
        } else {
            self.held.give_back(bytes);
        }
    }
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.count(frame);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        // What nobody reads any more goes with it, and was counted as it came.
        let mut context = Context::from_waker(Waker::noop());
        for _ in 0..LAST_FRAMES {
            match Pin::new(&mut self.body).poll_frame(&mut context) {
                Poll::Ready(Some(Ok(frame))) => self.count(&frame),
                _ => break,
            }
        }
        self.held.give_back(0);
        if let Some(share) = &self.held.share
            && share.bodies.fetch_sub(1, Ordering::Relaxed) == 1
        {
            // Nothing is left to be read; what still counts are headers and the like.
            share.remove(u64::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Full};

    use super::*;

    fn body(bytes: usize) -> Body {
        Body::new(Full::new(Bytes::from(vec![0; bytes])))
    }

    #[tokio::test]
    async fn what_a_body_gave_counts_until_it_is_taken_or_the_body_is_gone() {
        let all = Arc::new(Unread::default());
        let share = Arc::new(Share::new(Arc::clone(&all)));
        let idle = Counted::new(body(0), Some(Arc::clone(&share)));
        share.add(3_000);
        let mut read = Counted::new(body(1_000), Some(Arc::clone(&share)));
        read.frame().await.unwrap().unwrap();
        assert!(all.bytes() < 2_000);
        let (mut held, intake) = Counted::new(body(1_000), Some(Arc::clone(&share))).hold();
        let before = all.bytes();
        held.frame().await.unwrap().unwrap();
        assert_eq!(all.bytes(), before);
        intake.taken();
        assert!(all.bytes() < 1_000);
        drop(Counted::new(body(500), Some(Arc::clone(&share))));
        assert!(all.bytes() < 500, "what nobody reads goes with its body");
        drop((idle, read, held));
        assert_eq!(all.bytes(), 0, "nothing is left to be read");
        share.add(7);
        drop((share, intake));
        assert_eq!((all.bytes(), all.connections.load(Ordering::Relaxed)), (0, 0));
    }

    #[tokio::test]
    async fn who_has_more_than_a_share_is_full_once_all_have_too_much() {
        let all = Arc::new(Unread::default());
        let [greedy, modest] = [(); 2].map(|()| Arc::new(Share::new(Arc::clone(&all))));
        greedy.add(UNREAD_MAX);
        assert!(!greedy.is_full());
        modest.add(UNREAD_MAX / 4);
        assert!(greedy.is_full() && !modest.is_full());
        let (_body, intake) = Counted::new(body(1), Some(Arc::clone(&greedy))).hold();
        let expected = intake.expect();
        assert!(!greedy.is_full(), "its request would wait for ever");
        greedy.add(WAITING_MAX - UNREAD_MAX);
        assert!(greedy.is_over() && !greedy.is_full(), "it may go on, and others not begin");
        drop(expected);
        assert!(greedy.is_full());
    }
}
