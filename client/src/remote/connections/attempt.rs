//! One try of a request at a server.
//!
//! Must hold: a try ends when the server is silent for the time of a try.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use dl_proto::pb::GetDatasetRequest;
use dl_proto::pb::diesel_client::DieselClient;
use dl_proto::{KEY_HEADER, USER_HEADER};
use dl_runtime::{Clock, Deadline};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Request, Response, Status, Streaming};

use crate::remote::failure::{Failure, is_answer, is_refused};
use crate::remote::flow::{Flow, Moment};
use crate::remote::options::ConnectOptions;
use crate::remote::wire::Wire;

pub(crate) type Connection = DieselClient<Wire>;

/// Time between reports of a silent server.
pub(super) const SILENCE: Duration = Duration::from_secs(5);

/// The user and the key, as sent with every request.
pub(super) struct Identity {
    user: Option<MetadataValue<Ascii>>,
    key: Option<MetadataValue<Ascii>>,
}

impl Identity {
    /// Fails for text that can't be sent.
    pub(super) fn new(options: &ConnectOptions) -> Result<Self, String> {
        let text = |name: &'static str, value: &str| {
            let why = || format!("the {name} has characters that can't be sent; use ASCII text");
            value.parse().map_err(|_| why())
        };
        let user = Some(options.user.as_str()).filter(|user| !user.is_empty());
        let user = user.map(|user| text("user", user)).transpose()?;
        let mut key: Option<MetadataValue<Ascii>> =
            options.key.as_deref().map(|key| text("key", key)).transpose()?;
        if let Some(key) = &mut key {
            key.set_sensitive(true);
        }
        Ok(Self { user, key })
    }
}

/// A try: the server, the user, and the time to wait. Clones are the same try.
#[derive(Clone)]
pub(crate) struct Try {
    server: Arc<str>,
    identity: Arc<Identity>,
    clock: Arc<dyn Clock>,
    pub(super) began: Duration,
    attempt: Duration,
    deadline: Deadline,
    pub(super) awaited: Arc<Awaited>,
    pub(super) flow: Flow,
}

/// The wait of a try for the server.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    /// Begin of the wait, or the last message of the server.
    since: Moment,
    /// End of the try if no message comes.
    pub(super) until: Moment,
}

impl Try {
    pub(super) fn new(
        server: &Arc<str>,
        identity: &Arc<Identity>,
        clock: &Arc<dyn Clock>,
        deadline: Deadline,
        flow: Flow,
    ) -> Self {
        let this = Self {
            server: Arc::clone(server),
            identity: Arc::clone(identity),
            clock: Arc::clone(clock),
            began: clock.monotonic(),
            attempt: Duration::ZERO,
            deadline,
            awaited: Arc::default(),
            flow,
        };
        this.restart();
        this
    }

    /// The same try, with a time limit.
    pub(super) fn within(&self, attempt: Duration) -> Self {
        Self { attempt, ..self.clone() }
    }

    /// Asks a cheap question, and waits until the server answers and accepts the user.
    pub(super) async fn probe(self, mut server: Connection) -> Result<(), Failure> {
        // No dataset has an empty name, so a live server refuses at once.
        let request = self.request(GetDatasetRequest::default());
        match self.end().bound(self.clock.as_ref(), server.get_dataset(request)).await {
            Ok(Err(status)) if is_refused(&status) || !is_answer(&status) => {
                Err(Failure::from(status).before_any_answer())
            }
            Ok(_) => Ok(()),
            Err(_) => Err(self.silence()),
        }
    }

    /// A request with user and key.
    pub(crate) fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        request.extensions_mut().insert(self.flow.clone());
        let metadata = request.metadata_mut();
        if let Some(user) = &self.identity.user {
            metadata.insert(USER_HEADER, user.clone());
        }
        if let Some(key) = &self.identity.key {
            metadata.insert(KEY_HEADER, key.clone());
        }
        request
    }

    /// Waits for an answer, for the time of a try. The time starts anew whenever the connection takes
    /// a piece of the request.
    pub(crate) async fn answer<T>(
        &self,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Failure> {
        let clock = self.clock.as_ref();
        let mut answer = std::pin::pin!(answer);
        let patience = self.end().remaining(clock);
        let mut limit = Deadline::after(clock, patience);
        self.listen(limit);
        loop {
            if let Ok(answer) = limit.bound(clock, answer.as_mut()).await {
                return Ok(answer?.into_inner());
            }
            let until = self.flow.last_progress().saturating_add(patience);
            let left = until.saturating_sub(clock.monotonic());
            if left.is_zero() {
                return Err(self.silence());
            }
            limit = Deadline::after(clock, left);
            self.awaited.until.set(until);
        }
    }

    /// Waits for the next message of a stream, for the time of a try. The time of the whole request
    /// doesn't count while messages come.
    pub(crate) async fn message<T>(&self, stream: &mut Streaming<T>) -> Result<Option<T>, Failure> {
        let limit = Deadline::after(self.clock.as_ref(), self.attempt);
        self.listen(limit);
        match limit.bound(self.clock.as_ref(), stream.message()).await {
            Ok(message) => Ok(message?),
            Err(_) => Err(self.silence()),
        }
    }

    /// The failure, with the address of the server.
    pub(crate) fn at_server(&self, failure: Failure) -> Failure {
        failure.at(&self.server)
    }

    /// Notes a sign of work by the server, so the time until now doesn't count.
    pub(crate) fn note_progress(&self) {
        self.flow.progressed();
    }

    pub(crate) fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// The last sign of life of the server, or the begin of the wait.
    pub(super) fn last_sign(&self) -> Duration {
        self.awaited.since.get().max(self.flow.last_transfer())
    }

    /// Begins to wait for the server.
    pub(super) fn restart(&self) {
        self.awaited.since.set(self.now());
    }

    fn listen(&self, limit: Deadline) {
        self.restart();
        let left = limit.remaining(self.clock.as_ref());
        self.awaited.until.set(self.now().saturating_add(left));
    }

    fn end(&self) -> Deadline {
        Deadline::after(self.clock.as_ref(), self.attempt).min(self.deadline)
    }

    fn silence(&self) -> Failure {
        Failure::silence(format!("no answer within {:?}", self.attempt))
    }
}

/// Waits for a try. Reports the duration of the server's silence every [`SILENCE`].
pub(super) async fn attended<T>(
    clock: &dyn Clock,
    last_sign: impl Fn() -> Duration,
    mut attempted: Pin<Box<impl Future<Output = T>>>,
    report: impl Fn(Duration),
) -> T {
    let mut reported = Duration::ZERO;
    loop {
        let heard = last_sign();
        let now = clock.monotonic();
        let due = heard.max(reported).saturating_add(SILENCE);
        if due <= now {
            reported = now;
            report(now.saturating_sub(heard));
            continue;
        }
        tokio::select! {
            biased;
            done = &mut attempted => return done,
            () = clock.sleep(due.saturating_sub(now)) => {}
        }
    }
}
