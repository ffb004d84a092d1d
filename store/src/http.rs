//! Requests to a cloud: an answer counts when it is complete.
//!
//! Must hold: a request without a complete answer ends in an error after which object_store sends it again,
//! whatever its method; a create or delete that stalls for all of its time is not sent again. Sending again
//! is sound: a create recognises its own object, and keys are not used again. A late delete may remove a
//! restored dataset name or a part of a snapshot, which the servers write again.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use dl_runtime::{Clock, Deadline};
use futures::future;
use http_body::Body;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};

use crate::proxy::{Proxies, Through};

/// Longest silence of an answer to a ranged read: a new request is faster than a stuck connection.
const SILENCE: Duration = Duration::from_secs(5);

/// Time after which a page of a listing is requested a second time, as the first may have stalled.
const LATE_PAGE: Duration = Duration::from_secs(10);

/// Most bytes reserved for the announced length of an answer.
const TRUSTED_LENGTH: usize = 4 << 20;

/// Makes clients whose requests can all be sent again.
#[derive(Debug)]
pub(crate) struct WholeAnswers {
    clock: Arc<dyn Clock>,
    proxies: Arc<Proxies>,
    until: Option<Deadline>,
}

impl WholeAnswers {
    pub(crate) fn new(clock: Arc<dyn Clock>, proxies: Arc<Proxies>) -> Self {
        Self { clock, proxies, until: None }
    }

    /// Requests without an answer are sent again until `until`.
    pub(crate) fn until(self, until: Deadline) -> Self {
        Self { until: Some(until), ..self }
    }
}

impl HttpConnector for WholeAnswers {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        let (clock, proxies) = (Arc::clone(&self.clock), Arc::clone(&self.proxies));
        Ok(HttpClient::new(WholeAnswer { inner, clock, proxies, until: self.until }))
    }
}

#[derive(Debug)]
struct WholeAnswer {
    inner: HttpClient,
    clock: Arc<dyn Clock>,
    proxies: Arc<Proxies>,
    until: Option<Deadline>,
}

/// The innermost cause of a failed request; object_store shows the outermost.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
struct Caused {
    cause: String,
    #[source]
    error: HttpError,
}

/// The server was silent for too long.
#[derive(Debug, thiserror::Error)]
#[error("the server kept silent for {0:?}")]
struct Silent(Duration);

impl WholeAnswer {
    async fn heard<T>(
        &self,
        silence: Option<Duration>,
        work: impl Future<Output = T>,
    ) -> Result<T, HttpError> {
        let Some(silence) = silence else { return Ok(work.await) };
        let deadline = Deadline::after(&*self.clock, silence);
        let heard = deadline.bound(&*self.clock, work).await;
        heard.map_err(|_| HttpError::new(HttpErrorKind::Request, Silent(silence)))
    }

    /// The whole answer to a request.
    async fn whole(
        &self,
        request: HttpRequest,
        silence: Option<Duration>,
    ) -> Result<HttpResponse, HttpError> {
        let answer = self.heard(silence, self.inner.execute(request)).await?;
        let (parts, mut body) = answer.map_err(unsent)?.into_parts();
        let mut whole = Parts::default();
        loop {
            let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
            match self.heard(silence, frame).await? {
                Some(Ok(frame)) => whole.add(frame.into_data().unwrap_or_default(), &body),
                Some(Err(error)) => return Err(HttpError::new(HttpErrorKind::Request, error)),
                None => return Ok(HttpResponse::from_parts(parts, whole.joined().into())),
            }
        }
    }

    /// The first whole answer to a request, which is sent a second time when it is late.
    async fn listed(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let mut first = Box::pin(self.whole(request.clone(), None));
        let in_time =
            Deadline::after(&*self.clock, LATE_PAGE).bound(&*self.clock, &mut first).await;
        match in_time {
            Ok(answer) => answer,
            Err(_) => {
                let second = Box::pin(self.whole(request, None));
                Ok(future::select_ok([first, second]).await?.0)
            }
        }
    }
}

#[async_trait]
impl HttpService for WholeAnswer {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let through = self.proxies.through(request.uri()).map(|through| {
            let Through { proxy, variable, .. } = through;
            format!(", through the proxy {proxy} of {variable}")
        });
        // Reads of objects have no query. Writes of chunks may take up to the time-out of the request.
        let is_read = matches!(request.method().as_str(), "GET" | "HEAD");
        let answer = match (is_read, request.uri().query()) {
            (true, None) => self.whole(request, Some(SILENCE)).await,
            (true, Some(_)) => self.listed(request).await,
            (false, _) => self.whole(request, None).await,
        };
        answer.map_err(|error| {
            let is_over = self.until.is_some_and(|until| until.remaining(&*self.clock).is_zero());
            let kind = if is_over { HttpErrorKind::Unknown } else { error.kind() };
            let cause = format!("{}{}", innermost(&error), through.unwrap_or_default());
            HttpError::new(kind, Caused { cause, error })
        })
    }
}

fn innermost<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> &'a (dyn std::error::Error + 'static) {
    let mut cause = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause
}

/// Turns an error into the error of an unsent request, which object_store sends again for every method.
fn unsent(error: HttpError) -> HttpError {
    match error.kind() {
        HttpErrorKind::Timeout | HttpErrorKind::Interrupted | HttpErrorKind::Decode => {
            HttpError::new(HttpErrorKind::Request, error)
        }
        _ => error,
    }
}

/// The bytes of a body: a single piece as it came, several pieces copied together.
#[derive(Debug, Default)]
struct Parts {
    first: Bytes,
    joined: BytesMut,
}

impl Parts {
    fn add(&mut self, piece: Bytes, rest: &HttpResponseBody) {
        if self.first.is_empty() && self.joined.is_empty() {
            self.first = piece;
            return;
        }
        if self.joined.is_empty() {
            let rest = usize::try_from(rest.size_hint().lower()).unwrap_or(TRUSTED_LENGTH);
            let so_far = self.first.len() + piece.len();
            self.joined.reserve(so_far + rest.min(TRUSTED_LENGTH));
            self.joined.extend_from_slice(&std::mem::take(&mut self.first));
        }
        self.joined.extend_from_slice(&piece);
    }

    fn joined(self) -> Bytes {
        if self.joined.is_empty() { self.first } else { self.joined.freeze() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::task::Poll;
    use std::time::UNIX_EPOCH;

    use dl_runtime::ManualClock;

    use super::*;

    /// Takes so many seconds for each request, and answers with them.
    #[derive(Debug)]
    struct Slow {
        takes: Mutex<std::vec::IntoIter<u64>>,
        clock: Arc<dyn Clock>,
    }

    #[async_trait]
    impl HttpService for Slow {
        async fn call(&self, _: HttpRequest) -> Result<HttpResponse, HttpError> {
            let takes = self.takes.lock().unwrap().next().expect("nobody asks so often");
            self.clock.sleep(Duration::from_secs(takes)).await;
            Ok(HttpResponse::new(Bytes::from(takes.to_string()).into()))
        }
    }

    #[tokio::test]
    async fn a_page_that_stalls_is_requested_a_second_time() {
        for (takes, answered, after) in
            [(vec![9], "9", 9), (vec![60, 2], "2", 12), (vec![15, 60], "15", 15)]
        {
            let time = Arc::new(ManualClock::new(UNIX_EPOCH));
            let clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(&time);
            let slow = Slow { takes: Mutex::new(takes.into_iter()), clock: Arc::clone(&clock) };
            let proxies = Arc::new(Proxies::of(&[], ""));
            let inner = HttpClient::new(slow);
            let client = WholeAnswer { inner, clock, proxies, until: None };
            let mut request = HttpRequest::new(Bytes::new().into());
            *request.uri_mut() = "http://bucket/?list-type=2".parse().unwrap();
            let mut answer = client.call(request);
            let answer = loop {
                match futures::poll!(&mut answer) {
                    Poll::Ready(answer) => break answer.unwrap(),
                    Poll::Pending => time.advance(Duration::from_secs(1)),
                }
            };
            assert_eq!(answer.into_body().bytes().await.unwrap(), answered);
            assert_eq!(time.monotonic(), Duration::from_secs(after));
        }
    }
}
