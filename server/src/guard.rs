//! What stands before every request: who asks, what is counted, and bounds on what clients keep in
//! memory before anything about their requests is known.
//!
//! Must hold: no request reaches a method without a caller and that method's rule; no more request
//! messages are received at a time than fit into memory, and what is not received yet is counted; a
//! client that stops in the middle of one, or slows down while others wait, is given up, and so is one
//! that waits too long.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use dl_proto::REQUEST_BYTES_MAX;
use dl_runtime::{Clock, Deadline};
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};
use tower_http::timeout::TimeoutBody;
use tower_layer::Layer;

use crate::auth::{self, Auth, Caller, Rule};
use crate::door::Ticket;
use crate::metrics::Metrics;
use crate::senders::{Paced, Senders};
use crate::settings::Settings;
use crate::unread::Counted;

/// Requests that are received or worked on until their answers begin, in the whole server. At
/// `REQUEST_BYTES_MAX` each, together 96 MiB.
const AT_ONCE: usize = 48;

/// Requests that wait for that, or that come in pieces, in the whole server. Each costs some KiB
/// before a byte of it is looked at.
const IN_LINE: usize = 4_096;

/// The same of requests about the server and not about datasets, which nobody needs a key for: they
/// take no place of others.
const OTHERS_AT_ONCE: usize = 4;
const OTHERS_IN_LINE: usize = 64;

/// Takes its pieces one by one, out of a budget and with a patience of its own.
const STREAMED: &str = "/PutChunk";

/// Who asks, and what the method wants of them; among the extensions of a request.
#[derive(Debug, Clone)]
pub(crate) struct Admitted {
    pub(crate) caller: Caller,
    pub(crate) rule: Rule,
}

/// Puts a [`Guard`] before a service.
#[derive(Debug, Clone)]
pub(crate) struct GuardLayer {
    datasets: Places,
    others: Places,
    patience: Duration,
    clock: Arc<dyn Clock>,
    auth: Arc<Auth>,
    settings: Settings,
    metrics: Arc<Metrics>,
}

/// Where requests wait, where they are, and who of them is being received: the slow ones among these
/// make room for those that wait.
#[derive(Debug, Clone)]
struct Places {
    line: Arc<Semaphore>,
    room: Arc<Semaphore>,
    senders: Senders,
}

impl Places {
    fn new(line: usize, room: usize) -> Self {
        let [line, room] = [line, room].map(|places| Arc::new(Semaphore::new(places)));
        Self { line, room, senders: Senders::default() }
    }
}

impl GuardLayer {
    /// Gives up clients that send nothing for `patience` in the middle of a request, and requests
    /// that wait that long for those before them.
    pub(crate) fn new(
        patience: Duration,
        clock: Arc<dyn Clock>,
        auth: Arc<Auth>,
        settings: Settings,
        metrics: Arc<Metrics>,
    ) -> Self {
        let datasets = Places::new(IN_LINE, AT_ONCE);
        let others = Places::new(OTHERS_IN_LINE, OTHERS_AT_ONCE);
        Self { datasets, others, patience, clock, auth, settings, metrics }
    }

    /// Lets a request through to its method, or gives the answer to who may not ask.
    async fn admit(&self, request: Request<Body>) -> Result<Request<Body>, Status> {
        let (mut parts, body) = request.into_parts();
        let ticket = parts.extensions.get::<Ticket>().cloned();
        let method = parts.uri.path().strip_prefix(auth::SERVICE);
        match method {
            // Health and reflection tell nothing of datasets. Where keys are asked for, they are no
            // reason to stay.
            None if self.auth.is_on() => return Ok(Request::from_parts(parts, body)),
            None => {}
            Some(method) => {
                let peer = ticket.as_ref().and_then(Ticket::peer);
                let caller = match self.auth.caller(&parts.headers, peer) {
                    Ok(caller) => caller,
                    Err(refused) => {
                        // Nothing of the request is held while it waits for its answer.
                        drop((parts, body));
                        self.metrics.refused_key();
                        return Err(self.auth.refuse(refused).await);
                    }
                };
                let Some(rule) = auth::rule(method) else {
                    return Err(Status::unimplemented("this server knows no such method"));
                };
                if auth::is_change(method) && self.settings.is_read_only() {
                    return Err(Status::permission_denied(
                        "the servers are read-only: their admin set live.read_only",
                    ));
                }
                parts.extensions.insert(Admitted { caller, rule });
            }
        }
        if ticket.is_none_or(|ticket| ticket.keep()) {
            Ok(Request::from_parts(parts, body))
        } else {
            Err(Status::unavailable("this server has as many connections as it can; ask another"))
        }
    }
}

impl<S> Layer<S> for GuardLayer {
    type Service = Guard<S>;

    fn layer(&self, inner: S) -> Guard<S> {
        Guard { inner, limits: self.clone() }
    }
}

/// A service with bounds before it.
#[derive(Debug, Clone)]
pub(crate) struct Guard<S> {
    inner: S,
    limits: GuardLayer,
}

impl<S> Service<Request<Body>> for Guard<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        // The one that was asked whether it is ready is the one to call.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let limits = self.limits.clone();
        Box::pin(async move {
            let path = request.uri().path();
            let method = path.strip_prefix(auth::SERVICE);
            let measured = limits.metrics.begin(method);
            let places = if method.is_some() { &limits.datasets } else { &limits.others };
            let is_streamed = path.ends_with(STREAMED);
            let share = request.extensions().get::<Ticket>().map(Ticket::share);
            // Also of those that are refused: what nobody reads is no longer unread.
            let (mut parts, body) = request.into_parts();
            let mut body = Counted::new(body, share);
            if is_streamed {
                let intake;
                (body, intake) = body.hold();
                parts.extensions.insert(intake);
            }
            let request = Request::from_parts(parts, Body::new(body));
            let Ok(_turn) = places.line.try_acquire() else {
                let status = Status::unavailable("too many requests wait here; try again");
                return Ok(measured.answer(status.into_http()));
            };
            let request = match limits.admit(request).await {
                Ok(request) => request,
                Err(status) => return Ok(measured.answer(status.into_http())),
            };
            if is_streamed {
                return inner.call(request).await.map(|response| measured.answer(response));
            }
            let (clock, patience, senders) = (&*limits.clock, limits.patience, &places.senders);
            let place = senders.press(clock, patience, places.room.acquire());
            let Ok(place) = Deadline::after(clock, patience).bound(clock, place).await else {
                let status = Status::unavailable("this server is busy with others; try again");
                return Ok(measured.answer(status.into_http()));
            };
            let _place = place.expect("the semaphore is never closed");
            let request = request.map(|body| {
                let body = Body::new(TimeoutBody::new(patience, body));
                Body::new(Paced::new(body, senders, &limits.clock, REQUEST_BYTES_MAX as u64))
            });
            inner.call(request).await.map(|response| measured.answer(response))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::time::UNIX_EPOCH;

    use dl_runtime::ManualClock;
    use futures::{FutureExt, future};

    use super::*;

    /// Never answers.
    #[derive(Debug, Clone)]
    struct Stuck;

    impl Service<Request<Body>> for Stuck {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = future::Pending<Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            future::pending()
        }
    }

    #[tokio::test]
    async fn who_waits_behind_requests_that_get_no_answer_is_told_so_in_time() {
        let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
        let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let patience = Duration::from_secs(30);
        let auth = Arc::new(Auth::new(None, Arc::clone(&time)));
        let metrics = Arc::new(Metrics::new(Arc::clone(&time)));
        let guard = GuardLayer::new(patience, time, auth, Settings::default(), metrics);
        let mut guard = guard.layer(Stuck);
        let mut ask = |path: &str| {
            guard.call(Request::builder().uri(path).body(Body::empty()).expect("a request"))
        };
        let get = format!("{}GetDataset", auth::SERVICE);
        // Their places are taken, and nothing is waited for.
        let mut stuck: Vec<_> = (0..AT_ONCE).map(|_| ask(&get)).collect();
        assert!(stuck.iter_mut().all(|request| request.now_or_never().is_none()));
        let mut waiting: Vec<_> = (0..20).map(|_| ask(&get)).collect();
        assert!(waiting.iter_mut().all(|request| request.now_or_never().is_none()));
        clock.advance(patience);
        let answers = tokio::time::timeout(patience, future::join_all(waiting)).await;
        for answer in answers.expect("they wait on") {
            let answer = answer.expect("an answer");
            let status = answer.headers().get("grpc-status").expect("a status");
            assert_eq!(status, "14", "unavailable");
        }
    }

    #[tokio::test]
    async fn questions_that_need_no_key_take_no_places_of_others() {
        let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
        let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let auth = Arc::new(Auth::new(None, Arc::clone(&time)));
        let metrics = Arc::new(Metrics::new(Arc::clone(&time)));
        let patience = Duration::from_secs(30);
        let layer = GuardLayer::new(patience, time, auth, Settings::default(), metrics);
        let mut guard = layer.layer(Stuck);
        let mut ask = |path: &str| {
            guard.call(Request::builder().uri(path).body(Body::empty()).expect("a request"))
        };
        let health = "/grpc.health.v1.Health/Check";
        let mut stuck: Vec<_> = (0..OTHERS_IN_LINE).map(|_| ask(health)).collect();
        assert!(stuck.iter_mut().all(|request| request.now_or_never().is_none()));
        assert!(ask(health).now_or_never().is_some(), "it is refused");
        assert_eq!(layer.datasets.line.available_permits(), IN_LINE);
        assert_eq!(layer.datasets.room.available_permits(), AT_ONCE);
        let mut user = ask(&format!("{}GetDataset", auth::SERVICE));
        assert!((&mut user).now_or_never().is_none());
        assert_eq!(layer.datasets.room.available_permits(), AT_ONCE - 1);
    }
}
