//! Bytes from clients before a request takes them into its own memory: in the buffers of connections,
//! and in chunks that wait for memory.
//!
//! Must hold: all connections together keep little more than `INFLIGHT_MAX` bytes. Above that bound the
//! server does not read from a connection with more than its share, unless a request on the connection
//! already has memory for its bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use dl_proto::{Kind, SERVER_WINDOW_BYTES};
use http_body::Frame;
use tonic::Request;

use crate::error::Error;

/// Most bytes of all connections before shares count.
const INFLIGHT_MAX: u64 = 32 << 20;

/// Most bytes of all connections before a put without memory is refused. A connection with memory for
/// a chunk is read from, and brings the first bytes of other chunks.
const WAITING_MAX: u64 = 3 * INFLIGHT_MAX;

/// Frames and TLS around a body take at least a byte for so many of its bytes.
const OVERHEAD_PART: u64 = 64;

/// Bytes around each frame of a body, at least.
const OVERHEAD: u64 = 64;

/// The bytes of all connections.
#[derive(Debug, Default)]
pub(crate) struct InflightBytes {
    bytes: AtomicU64,
    connections: AtomicU64,
}

/// The bytes of a connection.
#[derive(Debug)]
pub(crate) struct Share {
    all: Arc<InflightBytes>,
    bytes: AtomicU64,
    /// Requests whose bodies have not ended.
    bodies: AtomicU64,
    /// Requests with memory for the rest of their bodies.
    funded: AtomicU64,
}

/// The bytes of a request.
#[derive(Debug)]
pub(crate) struct Intake {
    share: Arc<Share>,
    /// Whether bytes count until [`Intake::taken`].
    is_held: bool,
    held: AtomicU64,
    is_funded: AtomicBool,
}

impl InflightBytes {
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn fair(&self) -> u64 {
        INFLIGHT_MAX / self.connections.load(Ordering::Relaxed).max(1)
    }
}

impl Share {
    pub(crate) fn new(all: Arc<InflightBytes>) -> Self {
        all.connections.fetch_add(1, Ordering::Relaxed);
        let none = || AtomicU64::new(0);
        Self { all, bytes: none(), bodies: none(), funded: none() }
    }

    /// Counts bytes from the client.
    pub(crate) fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.all.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn remove(&self, bytes: u64) {
        let less = |had: u64| Some(had.saturating_sub(bytes));
        let had = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        self.all.bytes.fetch_sub(had.unwrap_or_default().min(bytes), Ordering::Relaxed);
    }

    /// Whether the server must not read from the connection now.
    pub(crate) fn is_full(&self) -> bool {
        self.all.bytes() > INFLIGHT_MAX
            && self.bytes.load(Ordering::Relaxed) > self.all.fair()
            && self.funded.load(Ordering::Relaxed) == 0
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.remove(u64::MAX);
        self.all.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Intake {
    /// The intake of an admitted request.
    pub(crate) fn of<M>(request: &Request<M>) -> Result<Arc<Self>, Error> {
        request.extensions().get().cloned().ok_or_else(|| {
            Error::new(Kind::Internal, "receive", "the request", "it was not admitted")
        })
    }

    /// A request on a connection. With `is_held` its bytes count until [`Intake::taken`].
    pub(crate) fn new(share: Arc<Share>, is_held: bool) -> Self {
        share.bodies.fetch_add(1, Ordering::Relaxed);
        Self { share, is_held, held: AtomicU64::new(0), is_funded: AtomicBool::new(false) }
    }

    /// A frame left the buffers of the connection.
    pub(crate) fn came(&self, frame: &Frame<Bytes>) {
        let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
        let bytes = bytes.saturating_add(bytes / OVERHEAD_PART).saturating_add(OVERHEAD);
        if self.is_held {
            self.held.fetch_add(bytes, Ordering::Relaxed);
        } else {
            self.share.remove(bytes);
        }
    }

    /// All bytes so far are in the memory of the request.
    pub(crate) fn taken(&self) {
        self.share.remove(self.held.swap(0, Ordering::Relaxed));
    }

    /// The request has memory for all of its bytes, until [`Intake::end`].
    pub(crate) fn fund(&self) {
        if !self.is_funded.swap(true, Ordering::Relaxed) {
            self.share.funded.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All bytes of the request came.
    pub(crate) fn end(&self) {
        self.taken();
        if self.is_funded.swap(false, Ordering::Relaxed) {
            self.share.funded.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Whether the request can't wait for memory, as too many bytes wait already.
    pub(crate) fn is_over(&self) -> bool {
        let fair = self.share.all.fair().max(SERVER_WINDOW_BYTES.into());
        self.share.all.bytes() > WAITING_MAX && self.share.bytes.load(Ordering::Relaxed) > fair
    }
}

impl Drop for Intake {
    fn drop(&mut self) {
        self.end();
        if self.share.bodies.fetch_sub(1, Ordering::Relaxed) == 1 {
            // Headers, and the rest of bodies that nobody read.
            self.share.remove(u64::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(bytes: usize) -> Frame<Bytes> {
        Frame::data(Bytes::from(vec![0; bytes]))
    }

    #[test]
    fn bytes_count_until_they_are_taken_or_all_requests_ended() {
        let all = Arc::new(InflightBytes::default());
        let share = Arc::new(Share::new(Arc::clone(&all)));
        let [read, held] = [false, true].map(|held| Intake::new(Arc::clone(&share), held));
        share.add(3_000);
        read.came(&frame(1_000));
        assert!(all.bytes() < 2_000);
        let before = all.bytes();
        held.came(&frame(1_000));
        assert_eq!(all.bytes(), before);
        held.taken();
        assert!(all.bytes() < 1_000);
        drop((read, held));
        assert_eq!(all.bytes(), 0);
        share.add(7);
        drop(share);
        assert_eq!((all.bytes(), all.connections.load(Ordering::Relaxed)), (0, 0));
    }

    #[test]
    fn a_connection_above_its_share_is_full_once_all_have_too_much() {
        let all = Arc::new(InflightBytes::default());
        let [greedy, modest] = [(); 2].map(|()| Arc::new(Share::new(Arc::clone(&all))));
        greedy.add(INFLIGHT_MAX);
        assert!(!greedy.is_full());
        modest.add(INFLIGHT_MAX / 4);
        assert!(greedy.is_full() && !modest.is_full());
        let intake = Intake::new(Arc::clone(&greedy), true);
        intake.fund();
        assert!(!greedy.is_full(), "its request would wait for ever");
        greedy.add(WAITING_MAX - INFLIGHT_MAX);
        assert!(intake.is_over() && !greedy.is_full());
        let _other = Intake::new(Arc::clone(&greedy), true);
        drop(intake);
        assert!(greedy.is_full());
    }
}
