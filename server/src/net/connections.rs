//! Connections: how many there may be, and for how long.
//!
//! Must hold: connections without a valid request are few and end soon; when more come, the oldest
//! ends, so that a client with a request always gets in. A connection whose client takes nothing of an
//! answer ends while memory for answers is short.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Duration;

use dl_runtime::{Clock, locked};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use crate::net::inflight::{InflightBytes, Share};
use crate::net::unsent::UnsentAnswers;
use crate::shared::context::Budget;

/// How long a connection may be open without a valid request.
pub(crate) const FIRST_REQUEST: Duration = Duration::from_secs(20);

/// Connections without a valid request at once.
const NEWCOMERS_MAX: usize = 512;

/// A connection is looked at so many times in the patience of a request.
const LOOKS: u32 = 6;

/// Pause after a connection that could not be accepted, as when the process has no descriptors left.
const PAUSE: Duration = Duration::from_millis(50);

/// Limits the connections of a port.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionLimiter(Arc<ConnectionLimits>);

#[derive(Debug)]
struct ConnectionLimits {
    /// Places of connections with a valid request.
    places: Arc<Semaphore>,
    places_max: usize,
    newcomers: Mutex<VecDeque<Weak<Connection>>>,
    inflight: Arc<InflightBytes>,
    traffic: Arc<Traffic>,
    patience: Duration,
    /// Memory for answers.
    memory: Vec<Budget>,
    clock: Arc<dyn Clock>,
}

/// Counts of all connections of a port.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) received_bytes: AtomicU64,
    pub(crate) sent_bytes: AtomicU64,
    /// Connections that the server closed.
    pub(crate) closed: AtomicU64,
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) peer: Option<IpAddr>,
    pub(crate) traffic: Arc<Traffic>,
    pub(crate) share: Arc<Share>,
    pub(crate) unsent: UnsentAnswers,
    places: Arc<Semaphore>,
    place: OnceLock<OwnedSemaphorePermit>,
    /// A newer connection takes the place of this newcomer.
    replaced: Notify,
}

impl ConnectionLimiter {
    /// Lets `places_max` connections stay after a valid request. `memory` is for their answers, of
    /// which a client has to take something within `patience`.
    pub(crate) fn new(
        places_max: usize,
        patience: Duration,
        memory: Vec<Budget>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let places = Arc::new(Semaphore::new(places_max));
        let (newcomers, inflight, traffic) = (Mutex::default(), Arc::default(), Arc::default());
        Self(Arc::new(ConnectionLimits {
            places,
            places_max,
            newcomers,
            inflight,
            traffic,
            patience,
            memory,
            clock,
        }))
    }

    /// Counts a new connection; one too many without a valid request ends the oldest.
    pub(crate) fn enter(&self, peer: Option<SocketAddr>) -> Arc<Connection> {
        let connection = Arc::new(Connection {
            peer: peer.map(|address| address.ip()),
            traffic: Arc::clone(&self.0.traffic),
            share: Arc::new(Share::new(Arc::clone(&self.0.inflight))),
            unsent: UnsentAnswers::new(Arc::clone(&self.0.clock)),
            places: Arc::clone(&self.0.places),
            place: OnceLock::new(),
            replaced: Notify::new(),
        });
        let mut newcomers = self.0.newcomers();
        if newcomers.len() >= NEWCOMERS_MAX
            && let Some(oldest) = newcomers.pop_front().and_then(|oldest| oldest.upgrade())
        {
            oldest.replaced.notify_one();
        }
        newcomers.push_back(Arc::downgrade(&connection));
        connection
    }

    /// Serves a connection, until its time is over at the latest.
    pub(crate) async fn bound(&self, connection: &Connection, served: impl Future<Output = ()>) {
        tokio::select! {
            () = served => {}
            why = self.overstayed(connection) => {
                tracing::debug!(peer = ?connection.peer, why, "a connection is closed");
                self.0.traffic.closed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    async fn overstayed(&self, connection: &Connection) -> &'static str {
        let ConnectionLimits { patience, memory, clock, .. } = &*self.0;
        let began = clock.monotonic();
        loop {
            let is_replaced = tokio::select! {
                () = clock.sleep((*patience / LOOKS).min(FIRST_REQUEST)) => false,
                () = connection.replaced.notified() => true,
            };
            let is_late = clock.monotonic().saturating_sub(began) >= FIRST_REQUEST;
            if (is_late || is_replaced) && connection.is_new() {
                return "it asks nothing";
            }
            if memory.iter().any(Budget::is_short) && connection.unsent.is_stuck(*patience) {
                return "its client takes nothing and others want the memory";
            }
        }
    }

    pub(crate) fn traffic(&self) -> &Traffic {
        &self.0.traffic
    }

    /// Bytes from clients that no request has taken.
    pub(crate) fn inflight_bytes(&self) -> u64 {
        self.0.inflight.bytes()
    }

    /// Numbers of open connections without and with a valid request.
    pub(crate) fn open(&self) -> (usize, usize) {
        let new = self.0.newcomers().len();
        (new, self.0.places_max.saturating_sub(self.0.places.available_permits()))
    }
}

impl ConnectionLimits {
    /// Connections without a valid request so far.
    fn newcomers(&self) -> MutexGuard<'_, VecDeque<Weak<Connection>>> {
        let mut newcomers = locked(&self.newcomers);
        let is_new = |one: &Weak<Connection>| one.upgrade().is_some_and(|one| one.is_new());
        newcomers.retain(is_new);
        newcomers
    }
}

impl Connection {
    /// The connection had a valid request and may stay from now on. False when too many stay already.
    pub(crate) fn keep(&self) -> bool {
        if !self.is_new() {
            return true;
        }
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { return false };
        // Two requests may come at once: the place of the second is free again.
        let _ = self.place.set(place);
        true
    }

    /// Whether the connection had no valid request yet.
    pub(crate) fn is_new(&self) -> bool {
        self.place.get().is_none()
    }
}

/// Accepts connections, each of which is a task.
pub(crate) async fn accept<F>(
    listener: &TcpListener,
    clock: &dyn Clock,
    tasks: &mut JoinSet<()>,
    converse: impl Fn(TcpStream) -> F,
) -> Infallible
where
    F: Future<Output = ()> + Send + 'static,
{
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(tasks.spawn(converse(stream))),
                Err(error) => {
                    tracing::warn!(%error, "a connection can't be accepted");
                    clock.sleep(PAUSE).await;
                }
            },
            Some(_) = tasks.join_next() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use bytes::Bytes;
    use dl_runtime::ManualClock;
    use futures::{FutureExt, future};
    use http_body_util::{BodyExt, Full};
    use tonic::body::Body;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(30);

    struct Rig {
        limiter: ConnectionLimiter,
        clock: Arc<ManualClock>,
    }

    fn rig(places: usize, memory: Vec<Budget>) -> Rig {
        let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
        let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        Rig { limiter: ConnectionLimiter::new(places, TIMEOUT, memory, time), clock }
    }

    impl Rig {
        /// Whether a connection with a request that is never answered ends while the time passes.
        fn ends_within(&self, connection: &Connection, time: Duration) -> bool {
            let mut served = Box::pin(self.limiter.bound(connection, future::pending()));
            let look = TIMEOUT / LOOKS;
            for _ in 0..time.as_secs() / look.as_secs() {
                if (&mut served).now_or_never().is_some() {
                    return true;
                }
                self.clock.advance(look);
            }
            served.now_or_never().is_some()
        }
    }

    #[test]
    fn an_idle_connection_ends_and_places_are_bounded() {
        let rig = rig(1, Vec::new());
        let (silent, asking) = (rig.limiter.enter(None), rig.limiter.enter(None));
        assert!(asking.keep() && asking.keep());
        assert_eq!(rig.limiter.open(), (1, 1));
        assert!(rig.ends_within(&silent, FIRST_REQUEST));
        assert!(!rig.ends_within(&asking, 5 * FIRST_REQUEST));
        assert_eq!(rig.limiter.traffic().closed.load(Ordering::Relaxed), 1);
        assert!(!silent.keep());
        drop(asking);
        assert!(silent.keep());
        drop(silent);
        assert_eq!(rig.limiter.open(), (0, 0));
    }

    #[test]
    fn the_oldest_idle_connection_makes_room() {
        let rig = rig(8, Vec::new());
        let (asking, oldest) = (rig.limiter.enter(None), rig.limiter.enter(None));
        assert!(asking.keep());
        let mut others = Vec::new();
        for _ in 0..NEWCOMERS_MAX {
            others.push(rig.limiter.enter(None));
        }
        assert_eq!(rig.limiter.open(), (NEWCOMERS_MAX, 1));
        assert!(rig.ends_within(&oldest, Duration::ZERO));
        assert!(!rig.ends_within(&asking, Duration::ZERO));
        assert!(!rig.ends_within(others.last().unwrap(), Duration::ZERO));
    }

    #[tokio::test]
    async fn a_connection_with_a_stuck_answer_ends_once_memory_is_short() {
        let budget = Budget::new(100, "test");
        let rig = rig(8, vec![budget.clone()]);
        let (stuck, other) = (rig.limiter.enter(None), rig.limiter.enter(None));
        assert!(stuck.keep() && other.keep());
        let body = Body::new(Full::new(Bytes::from_static(b"answer")));
        let mut body = stuck.unsent.hold(body, Arc::default());
        let _piece = body.frame().await.unwrap().unwrap();
        assert!(!rig.ends_within(&stuck, 3 * TIMEOUT));
        let _memory = budget.try_take(51, 0).unwrap();
        assert!(rig.ends_within(&stuck, TIMEOUT));
        assert!(!rig.ends_within(&other, 3 * TIMEOUT));
    }
}
