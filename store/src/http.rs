//! How requests to a cloud travel: an answer counts when all of it has come.
//!
//! Must hold: a request that failed on the way, or whose answer stalls or is cut, comes out as one that may be
//! sent again, whatever its method. That is sound because each of ours is: a create carries a mark of its own,
//! and no key is used again once its object was deleted. But for two that a late delete may take away: a name
//! that a recovery puts in the place of another one, which the next `dlcmd recover` writes again while the
//! metadata has its dataset, and the parts of a snapshot, which are made again.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use dl_runtime::{Clock, Deadline};
use http_body::Body;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};

/// How long the answer to a ranged read may keep silent, at its beginning or within. A healthy
/// store begins in milliseconds; asking again elsewhere beats waiting for a stuck connection.
const SILENCE: Duration = Duration::from_secs(5);

/// Bytes reserved for an answer on its word alone.
const TRUSTED_LENGTH: usize = 4 << 20;

/// Makes clients whose requests can all be tried again.
#[derive(Debug)]
pub(crate) struct WholeAnswers {
    clock: Arc<dyn Clock>,
}

impl WholeAnswers {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock }
    }
}

impl HttpConnector for WholeAnswers {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let inner = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(WholeAnswer { inner, clock: Arc::clone(&self.clock) }))
    }
}

#[derive(Debug)]
struct WholeAnswer {
    inner: HttpClient,
    clock: Arc<dyn Clock>,
}

/// Nothing came for too long.
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
}

#[async_trait]
impl HttpService for WholeAnswer {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        // Listings of large buckets and the storing of chunks may take their time, up to the
        // time-out of the whole request; reads of objects, which have no query, may not.
        let is_read = matches!(request.method().as_str(), "GET" | "HEAD");
        let silence = (is_read && request.uri().query().is_none()).then_some(SILENCE);
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
}

/// As one of a request that was never sent, which object_store tries again for every method.
fn unsent(error: HttpError) -> HttpError {
    match error.kind() {
        HttpErrorKind::Timeout | HttpErrorKind::Interrupted | HttpErrorKind::Decode => {
            HttpError::new(HttpErrorKind::Request, error)
        }
        _ => error,
    }
}

/// The bytes of a body: the only piece as it came, several copied together.
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
