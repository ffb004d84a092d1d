//! Who has room for what they send and has not sent all of it: memory for a chunk, or a place among
//! the requests that are received.
//!
//! Must hold: nobody is given up while nobody waits for room, however slow; while somebody waits, the
//! slowest goes, and again after a while, until none is left that needs longer than it may. So room
//! comes back in bounded time, whatever is sent.

use std::collections::BTreeMap;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use dl_proto::Kind;
use dl_runtime::Clock;
use http_body::{Body as HttpBody, Frame, SizeHint};
use tokio::sync::oneshot;
use tonic::Status;
use tonic::body::Body;

use crate::error::Error;

/// Parts of patience: after one, senders are looked at by who waits, and a sender may be slow. A
/// second, as clients wait for their first answer for two and a half.
const PARTS: u32 = 30;

/// How many times patience a sender may take to send as much as it has room for: a chunk of 4 MiB
/// comes with 17 kB/s in time, so that a client whose own chunks wait for each other on a slow line is
/// left alone.
const WHOLE: u32 = 8;

/// All who have room of one kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Senders {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    all: BTreeMap<u64, Sender>,
}

#[derive(Debug)]
struct Sender {
    began: Duration,
    room: u64,
    came: Arc<AtomicU64>,
    /// Dropped, it gives the sender up.
    _given_up: oneshot::Sender<()>,
}

/// Somebody who sends. Dropped, all has come or is of no interest.
#[derive(Debug)]
pub(crate) struct Sending {
    senders: Senders,
    number: u64,
    came: Arc<AtomicU64>,
    given_up: oneshot::Receiver<()>,
}

impl Senders {
    /// Somebody has room for so many bytes, and begins to send.
    pub(crate) fn begin(&self, clock: &dyn Clock, room: u64) -> Sending {
        let (sender, given_up) = oneshot::channel();
        let (began, came) = (clock.monotonic(), Arc::<AtomicU64>::default());
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        let sender = Sender { began, room, came: Arc::clone(&came), _given_up: sender };
        state.all.insert(number, sender);
        drop(state);
        Sending { senders: self.clone(), number, came, given_up }
    }

    /// Waits for room, and gives up the slowest sender again and again meanwhile.
    pub(crate) async fn press<T>(
        &self,
        clock: &dyn Clock,
        patience: Duration,
        room: impl Future<Output = T>,
    ) -> T {
        let mut room = pin!(room);
        loop {
            tokio::select! {
                biased;
                room = &mut room => return room,
                () = clock.sleep(patience / PARTS) => {
                    self.give_up_slowest(clock.monotonic(), patience);
                }
            }
        }
    }

    /// Gives up the slowest of those who are slow.
    fn give_up_slowest(&self, now: Duration, patience: Duration) {
        let mut state = self.state();
        let paces = state.all.iter().map(|(number, sender)| (*number, sender.pace(now, patience)));
        let slow = paces.filter_map(|(number, pace)| Some((number, pace?)));
        let slowest = slow.min_by(|(_, one), (_, other)| one.total_cmp(other));
        if let Some((number, _)) = slowest {
            state.all.remove(&number);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sender {
    /// What has come of what should have; none when it is enough, or too early to tell.
    fn pace(&self, now: Duration, patience: Duration) -> Option<f64> {
        let sent_for = now.saturating_sub(self.began);
        let part = sent_for.as_secs_f64() / (patience * WHOLE).as_secs_f64();
        let pace = self.came.load(Ordering::Relaxed) as f64 / (part * self.room as f64);
        (sent_for > patience / PARTS && pace < 1.0).then_some(pace)
    }
}

impl Sending {
    /// So many bytes came.
    pub(crate) fn came(&self, bytes: usize) {
        self.came.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Waits until the sender is given up; gives what it is told. `what` it sends, as in "a chunk".
    pub(crate) async fn given_up(&mut self, what: &str) -> Error {
        // There is nothing to be received: the other end is dropped.
        let _ = (&mut self.given_up).await;
        self.refusal(what)
    }

    fn refusal(&self, what: &str) -> Error {
        let came = self.came.load(Ordering::Relaxed);
        let why = format!("it came slowly, {came} bytes so far, and others wait; send it again");
        Error::new(Kind::TimedOut, "receive", what, why)
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.senders.state().all.remove(&self.number);
    }
}

/// The body of a request that has room until all of it came.
pub(crate) struct Paced {
    body: Body,
    senders: Senders,
    clock: Arc<dyn Clock>,
    room: u64,
    /// None while nothing had to be waited for.
    sending: Option<Sending>,
    is_over: bool,
}

impl Paced {
    pub(crate) fn new(body: Body, senders: &Senders, clock: &Arc<dyn Clock>, room: u64) -> Self {
        let (senders, clock) = (senders.clone(), Arc::clone(clock));
        Self { body, senders, clock, room, sending: None, is_over: false }
    }
}

impl HttpBody for Paced {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        if this.is_over {
            return Poll::Ready(None);
        }
        if let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(context) {
            match (&frame, &this.sending) {
                (Some(Ok(frame)), Some(sending)) => {
                    sending.came(frame.data_ref().map_or(0, Bytes::len));
                }
                (Some(Ok(_)), None) => {}
                (Some(Err(_)) | None, _) => this.is_over = true,
            }
            return Poll::Ready(frame);
        }
        let sending =
            this.sending.get_or_insert_with(|| this.senders.begin(&*this.clock, this.room));
        if Pin::new(&mut sending.given_up).poll(context).is_pending() {
            return Poll::Pending;
        }
        this.is_over = true;
        Poll::Ready(Some(Err(sending.refusal("a request").into())))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over || self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use dl_runtime::ManualClock;
    use futures::{FutureExt, future};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn the_slowest_goes_when_somebody_waits_and_who_keeps_the_pace_never_does() {
        let clock = ManualClock::new(UNIX_EPOCH);
        let senders = Senders::default();
        let [mut trickling, mut slow, mut good] = [(); 3].map(|()| senders.begin(&clock, 240_000));
        let is_given_up = |sending: &mut Sending| sending.given_up("it").now_or_never().is_some();
        // Nobody waits, whatever the time.
        clock.advance(Duration::from_secs(10));
        trickling.came(1);
        slow.came(9_000);
        good.came(11_000);
        assert!(![&mut trickling, &mut slow, &mut good].map(is_given_up).contains(&true));
        let mut waiting = Box::pin(senders.press(&clock, PATIENCE, future::pending::<()>()));
        assert!((&mut waiting).now_or_never().is_none());
        assert!(!is_given_up(&mut trickling), "somebody may have to wait for a moment");
        let mut round = || {
            clock.advance(PATIENCE / PARTS);
            assert!((&mut waiting).now_or_never().is_none());
        };
        good.came(20_000);
        round();
        assert!(is_given_up(&mut trickling) && !is_given_up(&mut slow));
        round();
        assert!(is_given_up(&mut slow) && !is_given_up(&mut good));
        round();
        assert!(!is_given_up(&mut good));
    }

    #[tokio::test]
    async fn who_has_just_begun_is_not_slow_and_who_has_ended_is_not_looked_for() {
        let clock = ManualClock::new(UNIX_EPOCH);
        let senders = Senders::default();
        let mut begun = senders.begin(&clock, 240_000);
        clock.advance(PATIENCE / PARTS);
        senders.give_up_slowest(clock.monotonic(), PATIENCE);
        assert!(begun.given_up("it").now_or_never().is_none());
        drop(begun);
        assert!(senders.state().all.is_empty());
    }
}
