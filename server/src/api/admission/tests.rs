//! Requests in line, requests without a key, and slow requests.

use std::task::{Context, Poll};
use std::time::UNIX_EPOCH;

use dl_runtime::ManualClock;
use futures::{FutureExt, future};
use http_body::Frame;

use super::*;
use crate::net::connections::ConnectionLimiter;

const TIMEOUT: Duration = Duration::from_secs(30);

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

struct Rig {
    clock: Arc<ManualClock>,
    requests: RequestLimiter,
    connection: Arc<Connection>,
}

fn rig() -> Rig {
    let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
    let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
    let auth = Arc::new(Auth::new(None, Arc::clone(&time)));
    let metrics = Arc::new(Metrics::new(Arc::clone(&time)));
    let requests =
        RequestLimiter::new(TIMEOUT, Arc::clone(&time), auth, Settings::default(), metrics);
    let connection = ConnectionLimiter::new(8, TIMEOUT, Vec::new(), time).enter(None);
    Rig { clock, requests, connection }
}

impl Rig {
    async fn ask(&self, path: &str) -> Response<Body> {
        let request = Request::builder().uri(path).body(Body::empty()).unwrap();
        let Ok(response) = self.requests.answer(Stuck, &self.connection, request).await;
        response
    }
}

#[tokio::test]
async fn a_request_that_waits_behind_others_is_refused_in_time() {
    let rig = rig();
    let get = format!("{}GetDataset", auth::SERVICE);
    let mut asked: Vec<_> = (0..AT_ONCE + 20).map(|_| Box::pin(rig.ask(&get))).collect();
    assert!(asked.iter_mut().all(|request| request.now_or_never().is_none()));
    rig.clock.advance(TIMEOUT);
    for waiting in asked.iter_mut().skip(AT_ONCE) {
        let answer = waiting.now_or_never().expect("an answer");
        assert_eq!(answer.headers().get("grpc-status").unwrap(), "14", "unavailable");
    }
}

#[tokio::test]
async fn requests_without_a_key_take_no_places_of_others() {
    let rig = rig();
    let health = || Box::pin(rig.ask("/grpc.health.v1.Health/Check"));
    let mut stuck: Vec<_> = (0..OTHERS_IN_LINE).map(|_| health()).collect();
    assert!(stuck.iter_mut().all(|request| request.now_or_never().is_none()));
    assert!(health().now_or_never().is_some(), "it is refused");
    assert_eq!(rig.requests.datasets.line.available_permits(), IN_LINE);
    assert_eq!(rig.requests.datasets.room.available_permits(), AT_ONCE);
}

/// Receives frames of a length, with a pause before each; gives how many came.
async fn came(length: usize, pause: Duration, count: usize) -> usize {
    let rig = rig();
    let (send, frames) = futures::channel::mpsc::unbounded();
    let intake = Arc::new(Intake::new(Arc::clone(&rig.connection.share), false));
    let mut body = rig.requests.receive(Body::new(StreamBody::new(frames)), &intake, TIMEOUT);
    for number in 0..count {
        let mut frame = Box::pin(body.frame());
        assert!((&mut frame).now_or_never().is_none());
        rig.clock.advance(pause);
        if let Some(ended) = (&mut frame).now_or_never() {
            let status = ended.unwrap().unwrap_err();
            assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
            return number;
        }
        let data = Frame::data(Bytes::from(vec![0; length]));
        send.unbounded_send(Ok::<_, Status>(data)).unwrap();
        frame.await.unwrap().unwrap();
    }
    count
}

#[tokio::test]
async fn a_silent_or_slow_client_is_given_up_alone() {
    let second = Duration::from_secs(1);
    assert_eq!(came(1 << 20, TIMEOUT, 5).await, 0, "silent");
    assert_eq!(came(1, second, 1_000).await, 30, "a byte each second");
    assert_eq!(came(PACE as usize, second, 1_000).await, 1_000, "the least pace");
    assert_eq!(came(1 << 20, TIMEOUT - second, 100).await, 100, "large pieces");
}
