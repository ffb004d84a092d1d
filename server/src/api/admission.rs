//! Admission of requests: caller, counts, and bounds on memory before any look into a request.
//!
//! Must hold: no request reaches a method without a caller and the method's rule. Request messages being
//! received fit into memory. Clients that stop or are too slow in a request are given up, and so are requests
//! that wait too long.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dl_proto::Kind;
use dl_runtime::{Clock, Deadline};
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use tokio::sync::Semaphore;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};

use crate::answers::reservation::Reservation;
use crate::api::frames::with_frames;
use crate::auth::{self, Auth, Caller, Rule};
use crate::error::Error;
use crate::metrics::Metrics;
use crate::net::connections::Connection;
use crate::net::inflight::Intake;
use crate::settings::Settings;

/// Requests being received or worked on until their answers begin; 96 MiB at `REQUEST_BYTES_MAX` each.
const AT_ONCE: usize = 48;

/// Requests that wait for a place or come in pieces. Each costs some KiB before its first byte.
const IN_LINE: usize = 4_096;

/// The same for requests about the server itself, which need no key and take no other places.
const OTHERS_AT_ONCE: usize = 4;
const OTHERS_IN_LINE: usize = 64;

/// Least pace of a request in bytes per second, after its patience: 4 MiB take nine minutes at most. A line of
/// 100 kB/s is faster with libdiesel's eight chunks at once.
const PACE: u64 = 8 << 10;

/// Part of the patience for a request with a place while its bytes come.
const RECEIVE_PART: u32 = 3;

/// The method with streamed pieces, which have a separate budget.
const STREAMED: &str = "PutChunk";

/// The caller of a request and the rule of its method; an extension of the request.
#[derive(Debug, Clone)]
pub(crate) struct Admitted {
    pub(crate) caller: Caller,
    pub(crate) rule: Rule,
}

/// Limits requests.
#[derive(Debug)]
pub(crate) struct RequestLimiter {
    datasets: Places,
    others: Places,
    patience: Duration,
    clock: Arc<dyn Clock>,
    auth: Arc<Auth>,
    settings: Settings,
    metrics: Arc<Metrics>,
}

#[derive(Debug)]
struct Places {
    line: Semaphore,
    room: Semaphore,
}

impl Places {
    fn new(line: usize, room: usize) -> Self {
        Self { line: Semaphore::new(line), room: Semaphore::new(room) }
    }
}

struct Receiving {
    body: Body,
    intake: Arc<Intake>,
    clock: Arc<dyn Clock>,
    patience: Duration,
    waited: Duration,
    came: u64,
}

impl RequestLimiter {
    /// Bounds by `patience` silence within a request, and waits for earlier requests.
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

    /// Admits a request, and answers by `methods`.
    pub(crate) async fn answer<S, B>(
        &self,
        methods: S,
        connection: &Connection,
        request: Request<B>,
    ) -> Result<Response<Body>, Infallible>
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
        B: http_body::Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>
            + Send
            + 'static,
    {
        let path = request.uri().path();
        let measured = self.metrics.begin(path.strip_prefix(auth::SERVICE));
        let response = self.admit(methods, connection, request.map(Body::new)).await;
        Ok(measured.answer(response.unwrap_or_else(Status::into_http)))
    }

    async fn admit<S>(
        &self,
        mut methods: S,
        connection: &Connection,
        request: Request<Body>,
    ) -> Result<Response<Body>, Status>
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    {
        let (mut parts, body) = request.into_parts();
        let method = parts.uri.path().strip_prefix(auth::SERVICE);
        let is_streamed = method == Some(STREAMED);
        let intake = Arc::new(Intake::new(Arc::clone(&connection.share), is_streamed));
        let places = if method.is_some() { &self.datasets } else { &self.others };
        let Ok(_turn) = places.line.try_acquire() else {
            return Err(Status::unavailable("too many requests wait here; try again"));
        };
        if let Some(method) = method {
            let caller = match self.auth.caller(&parts.headers, connection.peer) {
                Ok(caller) => caller,
                Err(refused) => {
                    // A refused request holds no memory during the delay of its answer.
                    drop((body, intake));
                    self.metrics.refused_key();
                    return Err(self.auth.refuse(refused).await);
                }
            };
            let admitted = self.allow(method, caller)?;
            parts.extensions.insert(admitted);
        }
        // Health and reflection need no key: with keys, a connection does not stay for such a request.
        let may_stay = (method.is_none() && self.auth.is_on()) || connection.keep();
        if !may_stay {
            let why = "this server has as many connections as it can; ask another";
            return Err(Status::unavailable(why));
        }
        let patience = if is_streamed { self.patience } else { self.patience / RECEIVE_PART };
        let body = self.receive(body, &intake, patience);
        let mut place = None;
        if is_streamed {
            parts.extensions.insert(intake);
        } else {
            let room = places.room.acquire();
            let room = Deadline::after(&*self.clock, self.patience).bound(&*self.clock, room).await;
            let Ok(room) = room else {
                return Err(Status::unavailable("this server is busy with others; try again"));
            };
            place = Some(room.expect("the semaphore is never closed"));
        }
        let Ok(response) = methods.call(Request::from_parts(parts, body)).await;
        drop(place);
        let mut response = with_frames(response);
        Ok(match response.extensions_mut().remove::<Arc<Reservation>>() {
            Some(memory) => response.map(|body| connection.unsent.hold(body, memory)),
            None => response,
        })
    }

    fn allow(&self, method: &str, caller: Caller) -> Result<Admitted, Status> {
        let Some(rule) = auth::rule(method) else {
            return Err(Status::unimplemented("this server knows no such method"));
        };
        if auth::is_change(method) && self.settings.is_read_only() {
            let why = "the servers are read-only: their admin set live.read_only";
            return Err(Status::permission_denied(why));
        }
        Ok(Admitted { caller, rule })
    }

    /// The body of a request, which fails when its client is too slow.
    fn receive(&self, body: Body, intake: &Arc<Intake>, patience: Duration) -> Body {
        let (intake, clock) = (Arc::clone(intake), Arc::clone(&self.clock));
        let waited = Duration::ZERO;
        let receiving = Receiving { body, intake, clock, patience, waited, came: 0 };
        let frames = stream::unfold(Some(receiving), |receiving| async move {
            let mut receiving = receiving?;
            let frame = receiving.next().await?;
            let goes_on = frame.is_ok();
            Some((frame, goes_on.then_some(receiving)))
        });
        Body::new(StreamBody::new(frames))
    }
}

impl Receiving {
    async fn next(&mut self) -> Option<Result<http_body::Frame<Bytes>, Status>> {
        let began = self.clock.monotonic();
        let earned = Duration::from_millis(self.came.saturating_mul(1_000) / PACE);
        let left = (self.patience + earned).saturating_sub(self.waited).min(self.patience);
        let frame = tokio::select! {
            biased;
            frame = self.body.frame() => frame?,
            () = self.clock.sleep(left) => {
                let why = format!("it came slowly, {} bytes so far; send it again", self.came);
                Err(Error::new(Kind::TimedOut, "receive", "a request", why).into())
            }
        };
        self.waited += self.clock.monotonic().saturating_sub(began);
        if let Ok(frame) = &frame {
            self.came += frame.data_ref().map_or(0, Bytes::len) as u64;
            self.intake.came(frame);
        }
        Some(frame)
    }
}

#[cfg(test)]
mod tests;
