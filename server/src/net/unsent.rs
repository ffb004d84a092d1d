//! Unsent answers of a connection, with the reserved memory of their requests.
//!
//! Must hold: no byte of an answer outlives its request's reservation in any buffer. A stuck client is told
//! apart from an answer that waits for the server.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use dl_runtime::{Clock, locked};
use http_body_util::BodyExt;
use tonic::body::Body;

use crate::answers::reservation::Reservation;

/// Answers of one connection.
#[derive(Debug)]
pub(crate) struct UnsentAnswers {
    clock: Arc<dyn Clock>,
    answers: Mutex<Vec<Weak<Answer>>>,
}

/// An answer until its last byte is sent.
#[derive(Debug)]
struct Answer {
    _memory: Arc<Reservation>,
    clock: Arc<dyn Clock>,
    /// Pieces in the buffers of the connection.
    pieces: AtomicUsize,
    /// When a piece last came or went, in milliseconds.
    moved: AtomicU64,
}

/// Bytes in a buffer of the connection, dropped after the write.
struct Piece {
    bytes: Bytes,
    answer: Arc<Answer>,
}

impl UnsentAnswers {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, answers: Mutex::default() }
    }

    /// The body of an answer, which holds the memory until its last byte is sent.
    pub(crate) fn hold(&self, body: Body, memory: Arc<Reservation>) -> Body {
        let (clock, pieces) = (Arc::clone(&self.clock), AtomicUsize::new(0));
        let answer = Arc::new(Answer { _memory: memory, clock, pieces, moved: AtomicU64::new(0) });
        let mut answers = locked(&self.answers);
        answers.retain(|answer| answer.strong_count() > 0);
        answers.push(Arc::downgrade(&answer));
        drop(answers);
        Body::new(body.map_frame(move |frame| {
            frame.map_data(|bytes| Bytes::from_owner(Piece::new(bytes, &answer)))
        }))
    }

    /// Whether the client took nothing of an answer for `patience`.
    pub(crate) fn is_stuck(&self, patience: Duration) -> bool {
        let now = millis(&*self.clock);
        let is_stuck = |answer: Arc<Answer>| {
            let waited = now.saturating_sub(answer.moved.load(Ordering::Relaxed));
            answer.pieces.load(Ordering::Relaxed) > 0 && u128::from(waited) >= patience.as_millis()
        };
        let answers = locked(&self.answers);
        answers.iter().filter_map(Weak::upgrade).any(is_stuck)
    }
}

fn millis(clock: &dyn Clock) -> u64 {
    u64::try_from(clock.monotonic().as_millis()).unwrap_or(u64::MAX)
}

impl Answer {
    fn moves(&self) {
        self.moved.store(millis(&*self.clock), Ordering::Relaxed);
    }
}

impl Piece {
    fn new(bytes: Bytes, answer: &Arc<Answer>) -> Self {
        answer.moves();
        answer.pieces.fetch_add(1, Ordering::Relaxed);
        Self { bytes, answer: Arc::clone(answer) }
    }
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        self.answer.moves();
        self.answer.pieces.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use dl_runtime::ManualClock;
    use futures::stream;
    use http_body::Frame;
    use http_body_util::StreamBody;
    use tonic::Status;

    use super::*;
    use crate::shared::context::Budget;

    const TIMEOUT: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn memory_is_used_until_the_last_piece_is_sent() {
        let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
        let unsent = UnsentAnswers::new(Arc::<ManualClock>::clone(&clock));
        let budget = Budget::new(100, "test");
        let memory = Arc::<Reservation>::default();
        assert!(memory.grow(&budget, 60));
        let frames =
            [b"one", b"two"].map(|bytes| Ok::<_, Status>(Frame::data(Bytes::from(&bytes[..]))));
        let body = Body::new(StreamBody::new(stream::iter(frames)));
        let mut body = unsent.hold(body, memory);
        clock.advance(TIMEOUT);
        assert!(!unsent.is_stuck(TIMEOUT), "it waits for the server");
        let first = body.frame().await.unwrap().unwrap();
        clock.advance(TIMEOUT / 2);
        drop(first);
        let second = body.frame().await.unwrap().unwrap();
        clock.advance(TIMEOUT / 2);
        assert!(!unsent.is_stuck(TIMEOUT), "it moves");
        drop(body);
        clock.advance(TIMEOUT / 2);
        assert!(unsent.is_stuck(TIMEOUT));
        assert_eq!(budget.total_and_used(), (100, 60));
        drop(second);
        assert!(!unsent.is_stuck(TIMEOUT));
        assert_eq!(budget.total_and_used(), (100, 0));
    }
}
