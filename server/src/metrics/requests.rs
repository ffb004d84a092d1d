//! Requests by method: counts, codes, and times until the end of the answer.
//!
//! Must hold: each request counts once, even if its client goes away. Labels are known methods and codes only.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dl_format::Stamp;
use dl_proto::MethodCounters;
use dl_runtime::Clock;
use http_body_util::BodyExt;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Response};
use tonic::{Code, Status};

use super::failures::{Failures, is_failure};
use super::histogram::Histogram;
use crate::auth::RULES;

/// Codes of gRPC, by their numbers.
pub(crate) const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// Index of all methods outside the service, such as health and reflection.
const OTHER: usize = RULES.len();

/// Counters of requests.
#[derive(Debug)]
pub(crate) struct Requests {
    methods: [Method; RULES.len() + 1],
    in_flight: AtomicU64,
    pub(crate) failures: Failures,
    clock: Arc<dyn Clock>,
}

/// Counters of a method.
#[derive(Debug, Default)]
pub(crate) struct Method {
    pub(crate) took: Histogram,
    pub(crate) ended: [AtomicU64; CODES.len()],
}

impl Requests {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let (methods, failures) = (Default::default(), Failures::default());
        Self { methods, in_flight: AtomicU64::new(0), failures, clock }
    }

    /// All methods, by name.
    pub(crate) fn methods(&self) -> impl Iterator<Item = (&'static str, &Method)> {
        let names = RULES.iter().map(|(name, _)| *name).chain(["other"]);
        names.zip(&self.methods)
    }

    /// Requests that ended, and those of them that failed for a reason in the server.
    pub(crate) fn ended(&self) -> (u64, u64) {
        let (mut all, mut failed) = (0, 0);
        for ended in self.methods.iter().flat_map(|method| method.ended.iter().enumerate()) {
            let count = ended.1.load(Ordering::Relaxed);
            all += count;
            failed += if is_failure(Code::from_i32(ended.0 as i32)) { count } else { 0 };
        }
        (all, failed)
    }

    /// The counts of the methods that were called.
    pub(crate) fn counters(&self) -> Vec<MethodCounters> {
        let counters = self.methods().map(|(name, method)| {
            let (up_to, requests, _) = method.took.read();
            MethodCounters { method: name.to_owned(), requests, up_to }
        });
        counters.filter(|method| method.requests > 0).collect()
    }

    /// Requests that have not ended.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Begins to measure a request; none for methods outside the service.
    pub(crate) fn begin(self: &Arc<Self>, method: Option<&str>) -> Measured {
        let of = |method| RULES.iter().position(|(name, _)| *name == method);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Measured {
            method: method.and_then(of).unwrap_or(OTHER),
            began: self.clock.monotonic(),
            // A request dropped before its answer was abandoned by its client.
            ended: Code::Cancelled,
            why: None,
            requests: Arc::clone(self),
        }
    }
}

/// A request, until it is dropped.
#[derive(Debug)]
pub(crate) struct Measured {
    requests: Arc<Requests>,
    method: usize,
    began: Duration,
    ended: Code,
    /// The reason for a failure in the server.
    why: Option<String>,
}

impl Measured {
    /// Measures until the end of the answer.
    pub(crate) fn answer(mut self, response: Response<Body>) -> Response<Body> {
        // An answer without a body has its code in the headers.
        self.read(response.headers());
        response.map(|body| {
            Body::new(body.map_frame(move |frame| {
                // Captures the whole measurement, which ends with the body.
                let measured = &mut self;
                if let Some(trailers) = frame.trailers_ref() {
                    measured.read(trailers);
                }
                frame
            }))
        })
    }
}

impl Measured {
    /// Takes the code of the answer, and the reason for a failure.
    fn read(&mut self, headers: &HeaderMap) {
        let Some(code) = code(headers) else { return };
        self.ended = code;
        if is_failure(code) {
            let status = Status::from_header_map(headers);
            self.why = status.map(|status| status.message().to_owned());
        }
    }
}

impl Drop for Measured {
    fn drop(&mut self) {
        self.requests.in_flight.fetch_sub(1, Ordering::Relaxed);
        let name = CODES.get(self.ended as usize).copied().unwrap_or_default();
        let method = RULES.get(self.method).map_or("other", |(name, _)| name);
        let now = Stamp::at(self.requests.clock.now());
        let why = self.why.take().unwrap_or_default();
        self.requests.failures.note(now, method, (self.ended, name), || why);
        let took = self.requests.clock.monotonic().saturating_sub(self.began);
        if let Some(method) = self.requests.methods.get(self.method) {
            method.took.add(took);
            if let Some(ended) = method.ended.get(self.ended as usize) {
                ended.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

fn code(headers: &HeaderMap) -> Option<Code> {
    headers.get(Status::GRPC_STATUS).map(|code| Code::from_bytes(code.as_bytes()))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use dl_runtime::ManualClock;

    use super::*;

    #[test]
    fn a_request_is_counted_once_with_its_end_and_its_time() {
        let clock = Arc::new(ManualClock::new(UNIX_EPOCH));
        let time: Arc<dyn Clock> = Arc::<ManualClock>::clone(&clock);
        let requests = Arc::new(Requests::new(time));
        let refused = requests.begin(Some("Stat"));
        assert_eq!(requests.in_flight(), 1);
        clock.advance(Duration::from_secs(2));
        drop(refused.answer(Status::not_found("gone").into_http()));
        drop(requests.begin(Some("NoSuchMethod")));
        drop(requests.begin(None));
        assert_eq!(requests.in_flight(), 0);
        let counted: Vec<_> = requests
            .methods()
            .flat_map(|(name, method)| {
                let ended = CODES.iter().zip(&method.ended);
                ended.map(move |(code, count)| (name, *code, count.load(Ordering::Relaxed)))
            })
            .filter(|(_, _, count)| *count > 0)
            .collect();
        assert_eq!(counted, [("Stat", "NOT_FOUND", 1), ("other", "CANCELLED", 2)]);
        let (_, stat) = requests.methods().find(|(name, _)| *name == "Stat").unwrap();
        assert_eq!((stat.took.read().1, stat.took.read().2), (1, 2.0));
    }

    #[test]
    fn codes_stand_at_their_numbers() {
        for (number, name) in (0..).zip(CODES) {
            let code = format!("{:?}", Code::from_i32(number)).to_lowercase();
            assert_eq!(name.replace('_', "").to_lowercase(), code);
        }
    }
}
