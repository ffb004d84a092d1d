//! Connections to the servers, and the one loop that tries a request until it is answered.
//!
//! Must hold: every server takes its turn, one that failed is passed over for a while; one that
//! is silent costs a part of the time of a request, never all of it, and the time in which it takes
//! what is sent doesn't count; an error names each server that was tried and what it said.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dl_proto::pb::GetDatasetRequest;
use dl_proto::pb::diesel_client::DieselClient;
use dl_proto::{KEY_HEADER, MESSAGE_BYTES_MAX, USER_HEADER};
use dl_runtime::{Backoff, Clock, Deadline, Random, retry};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Request, Response, Status, Streaming};

use crate::error::{Error, Kind};
use crate::remote::endpoint::endpoint;
use crate::remote::failure::{Failure, is_answer, is_refused};
use crate::remote::flow::{Flow, Moment};
use crate::remote::options::{ConnectOptions, OnRetry, Retry, masked};
use crate::remote::process::Process;
use crate::remote::wire::Wire;

/// How long a server that failed is passed over while there are others,
const PASS_OVER: Duration = Duration::from_secs(2);
/// and one that was silent, which costs a try all of its time.
const PASS_OVER_SILENT: Duration = Duration::from_secs(30);
/// A server that has been silent for this long is told of, and again after each.
const SILENCE: Duration = Duration::from_secs(5);
/// Within this a server that is new, or was silent, shows that it lives, where there are others.
const MET_WITHIN: Duration = Duration::from_secs(4);
/// For how long one try waits at least, where that leaves time for another one: a server that has no
/// room says so after 10 s.
const TRY_AT_LEAST: Duration = Duration::from_secs(12);
/// How many times longer than others a request may take that makes the server work through a
/// whole dataset.
const LONG: u32 = 60;

/// How long a request may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// All tries together.
    total: Duration,
    /// One try; of a stream, until each next message.
    attempt: Duration,
    /// Whether an answer should have come after [`SILENCE`].
    is_short: bool,
}

impl Patience {
    /// Shared among so many servers, so that a silent one costs a part of it.
    fn among(servers: usize, total: Duration) -> Self {
        let servers = u32::try_from(servers).unwrap_or(u32::MAX);
        let attempt = total / servers.saturating_add(1);
        Self { total, attempt, is_short: true }
    }

    /// With tries that are long enough for a busy server to say so.
    fn patient(self) -> Self {
        Self { attempt: self.attempt.max(TRY_AT_LEAST.min(self.total / 2)), ..self }
    }

    /// What is left of it when some of the time has passed in silence.
    pub(crate) fn less(self, waited: Duration) -> Self {
        Self { total: self.total.saturating_sub(waited), ..self }
    }

    /// The same; none when nothing is left.
    pub(crate) fn left(self, waited: Duration) -> Option<Self> {
        Some(self.less(waited)).filter(|left| !left.total.is_zero())
    }
}

/// The servers of a client, seen from one process.
pub(crate) struct Connections {
    servers: Vec<Server>,
    turn: AtomicUsize,
    identity: Arc<Identity>,
    clock: Arc<dyn Clock>,
    random: Arc<dyn Random>,
    on_retry: Option<OnRetry>,
    connect: Patience,
    usual: Patience,
    is_met: Arc<AtomicBool>,
}

struct Server {
    address: Arc<str>,
    channels: Vec<Connection>,
    turn: AtomicUsize,
    /// Whether it has to show that it lives: no try has ended there, or the last one was silent.
    is_new: AtomicBool,
    /// Passed over until then.
    avoid_until: Moment,
    /// When bytes last went there or came from it.
    moved: Arc<Moment>,
}

/// Who is asking, as every request says it.
struct Identity {
    user: Option<MetadataValue<Ascii>>,
    key: Option<MetadataValue<Ascii>>,
}

/// What each server said last.
type Said = BTreeMap<usize, Word>;

/// What a server said last, or that it is silent.
#[derive(Debug)]
struct Word {
    last: Failure,
    /// The answer before the silence.
    before: Option<Failure>,
}

/// One connection to a server.
pub(crate) type Connection = DieselClient<Wire>;

/// One try: who is asking, and how long to wait.
pub(crate) struct Try {
    server: Arc<str>,
    identity: Arc<Identity>,
    clock: Arc<dyn Clock>,
    attempt: Duration,
    deadline: Deadline,
    awaited: Arc<Awaited>,
    flow: Flow,
}

/// What a try waits for.
#[derive(Debug, Default)]
struct Awaited {
    /// When the server was last heard or began to be waited for.
    since: Moment,
    /// When the try is given up if nothing comes.
    until: Moment,
}

/// Neither addresses nor who is asking: nobody needs them, and a key must not show.
impl fmt::Debug for Connections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connections").field("servers", &self.servers.len()).finish_non_exhaustive()
    }
}

impl Connections {
    /// Opens nothing yet: connections are made when a request needs them, and again when they
    /// broke. `is_met` says whether a server has answered before.
    pub(crate) fn new(
        options: &ConnectOptions,
        process: &Process,
        is_met: Arc<AtomicBool>,
    ) -> Result<Self, Error> {
        let invalid = |subject: &str, why: String| {
            Error::new(Kind::Invalid, "connect to", subject, Failure::new(Kind::Invalid, why))
        };
        if options.servers.is_empty() {
            return Err(invalid("a server", "no address was given".to_owned()));
        }
        let text = |name: &'static str, value: &str| {
            let why = format!("the {name} has characters that can't be sent; use ASCII text");
            let servers: Vec<_> = options.servers.iter().map(|server| masked(server)).collect();
            value.parse().map_err(|_| invalid(&servers.join(", "), why))
        };
        let user = match options.user.as_str() {
            "" => None,
            user => Some(text("user", user)?),
        };
        let mut key: Option<MetadataValue<Ascii>> =
            options.key.as_deref().map(|key| text("key", key)).transpose()?;
        if let Some(key) = &mut key {
            key.set_sensitive(true);
        }
        let patience = |total| Patience::among(options.servers.len(), total);
        // Connections start tasks.
        let _inside = process.runtime.enter();
        let mut servers = Vec::with_capacity(options.servers.len());
        for address in &options.servers {
            let endpoint =
                endpoint(address, options).map_err(|why| invalid(&masked(address), why))?;
            let channels = (0..options.connections_per_server.max(1))
                .map(|_| {
                    DieselClient::new(Wire(endpoint.connect_lazy()))
                        .max_decoding_message_size(MESSAGE_BYTES_MAX)
                        .max_encoding_message_size(MESSAGE_BYTES_MAX)
                })
                .collect();
            servers.push(Server {
                address: address.as_str().into(),
                channels,
                turn: AtomicUsize::new(0),
                is_new: AtomicBool::new(true),
                avoid_until: Moment::default(),
                moved: Arc::default(),
            });
        }
        Ok(Self {
            servers,
            // So that many clients started at once spread out.
            turn: AtomicUsize::new(process.random.u64() as usize),
            identity: Arc::new(Identity { user, key }),
            clock: Arc::clone(&process.clock),
            random: Arc::clone(&process.random),
            on_retry: options.on_retry.clone(),
            connect: patience(options.connect_timeout),
            usual: patience(options.time_of_a_request()).patient(),
            is_met,
        })
    }

    /// The monotonic time of the process.
    pub(crate) fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// For requests that are answered at once.
    pub(crate) fn usual(&self) -> Patience {
        self.usual
    }

    /// For requests that make the server work through a whole dataset. A server that died in
    /// between is noticed by its connection.
    pub(crate) fn long(&self) -> Patience {
        let Patience { total, attempt, .. } = self.usual;
        let (total, attempt) = (total.saturating_mul(LONG), attempt.saturating_mul(LONG));
        Patience { total, attempt, is_short: false }
    }

    /// How many requests keep all connections busy.
    pub(crate) fn width(&self) -> usize {
        self.servers.iter().map(|server| server.channels.len()).sum()
    }

    /// Waits until one server answers, to somebody it knows.
    pub(crate) async fn check(&self) -> Result<(), Error> {
        // The reason names each of them.
        let subject = || match self.servers.len() {
            1 => "the server".to_owned(),
            count => format!("{count} servers"),
        };
        let met = self
            .tried("connect to", subject, self.connect, false, |server, this| this.meet(server));
        met.await?;
        self.is_met.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Tries until it succeeds, fails for good, or the time is over; each try at the next server.
    /// Before a server has ever answered, one is waited for no longer than a connect may take.
    pub(crate) async fn call<T, Attempt: Future<Output = Result<T, Failure>>>(
        &self,
        action: &'static str,
        subject: impl Fn() -> String,
        patience: Patience,
        attempt: impl Fn(Connection, Try) -> Attempt,
    ) -> Result<T, Error> {
        if !self.is_met.load(Ordering::Relaxed) {
            Box::pin(self.check()).await?;
        }
        // One of several that hangs is found out by a question that costs nothing.
        self.tried(action, subject, patience, self.servers.len() > 1, attempt).await
    }

    async fn tried<T, Attempt: Future<Output = Result<T, Failure>>>(
        &self,
        action: &'static str,
        subject: impl Fn() -> String,
        patience: Patience,
        meets: bool,
        attempt: impl Fn(Connection, Try) -> Attempt,
    ) -> Result<T, Error> {
        let clock = self.clock.as_ref();
        let began = clock.monotonic();
        let last = Deadline::after(clock, patience.total.saturating_mul(LONG));
        // It moves while bytes do, up to the last one.
        let moving = Mutex::new((Deadline::after(clock, patience.total), last));
        let deadline = || moving.lock().unwrap_or_else(PoisonError::into_inner).0;
        let said = Mutex::<Said>::default();
        // For how much longer it is tried: a stream on its way may go on when the time is over.
        let tell = |until: Duration| {
            if let (Some(on_retry), Some(reason)) = (&self.on_retry, joined(&said)) {
                on_retry(&Retry {
                    action,
                    subject: subject(),
                    reason,
                    waited: clock.monotonic().saturating_sub(began),
                    left: deadline().remaining(clock).max(until.saturating_sub(clock.monotonic())),
                });
            }
        };
        let tried = retry(
            clock,
            self.random.as_ref(),
            Backoff::default(),
            deadline,
            |failure: &Failure| failure.kind.is_retryable(),
            || {
                tell(Duration::ZERO);
                let (index, server, connection) = self.next();
                let started = clock.monotonic();
                let awaited = Arc::<Awaited>::default();
                awaited.since.set(started);
                let flow = Flow::new(Arc::clone(&self.clock), Arc::clone(&server.moved));
                let this = |attempt: Duration| Try {
                    server: Arc::clone(&server.address),
                    identity: Arc::clone(&self.identity),
                    clock: Arc::clone(&self.clock),
                    attempt,
                    deadline: deadline(),
                    awaited: Arc::clone(&awaited),
                    flow: flow.clone(),
                };
                let is_new = meets && server.is_new.load(Ordering::Relaxed);
                let first =
                    is_new.then(|| (connection.clone(), this(MET_WITHIN.min(patience.attempt))));
                let attempted = attempt(connection, this(patience.attempt));
                // On the heap, as it would be here twice, in futures of callers that are large already.
                let attempted = Box::pin(async move {
                    if let Some((server, first)) = first {
                        first.meet(server).await?;
                    }
                    attempted.await
                });
                let (said, tell, moving) = (&said, &tell, &moving);
                async move {
                    let silent = |silent: Duration| {
                        let why = format!("no answer for {} s", silent.as_secs());
                        hear(said, index, Failure::silence(why).at(&server.address));
                        tell(awaited.until.get());
                    };
                    let heard = || awaited.since.get().max(flow.moved());
                    let ended = if patience.is_short {
                        attended(clock, heard, attempted, silent).await
                    } else {
                        attempted.await
                    };
                    // One that was silent has to show again that it lives.
                    let is_silent = ended.as_ref().is_err_and(Failure::is_silence);
                    server.is_new.store(is_silent, Ordering::Relaxed);
                    let failure = match ended {
                        Ok(done) => return Ok(done),
                        Err(failure) => failure.at(&server.address),
                    };
                    if failure.kind.is_retryable() {
                        let pass_over = if is_silent { PASS_OVER_SILENT } else { PASS_OVER };
                        server.avoid_until.set(clock.monotonic().saturating_add(pass_over));
                    }
                    let got_on_for = flow.got_on().saturating_sub(started);
                    let limit = started.max(flow.got_on()).saturating_add(patience.attempt);
                    let lost = overslept(limit, clock.monotonic());
                    let mut moving = moving.lock().unwrap_or_else(PoisonError::into_inner);
                    let (deadline, last) = *moving;
                    let last = last.later(lost);
                    *moving = (deadline.later(got_on_for).later(lost).min(last), last);
                    drop(moving);
                    hear(said, index, failure.clone());
                    Err(failure)
                }
            },
        )
        .await;
        tried.map_err(|last| {
            if !last.kind.is_retryable() {
                return Error::new(last.kind, action, subject(), last);
            }
            let reason = joined(&said).unwrap_or_default();
            let said = said.into_inner().unwrap_or_else(PoisonError::into_inner);
            let kind = if said.values().all(|word| word.last.kind == Kind::Unreachable) {
                Kind::Unreachable
            } else {
                last.kind
            };
            Error::new(kind, action, subject(), Failure::new(kind, reason))
        })
    }

    /// Waits for what comes next of an answer, and tells of silence as in a call.
    pub(crate) async fn next_of<T>(
        &self,
        this: &Try,
        action: &'static str,
        subject: &str,
        stream: &mut Streaming<T>,
    ) -> Result<Option<T>, Failure> {
        let tell = |waited: Duration| {
            if let Some(on_retry) = &self.on_retry {
                let why = format!("no answer for {} s", waited.as_secs());
                let reason = Failure::silence(why).at(&this.server).to_string();
                let left = self.usual.total.saturating_sub(waited);
                let subject = subject.to_owned();
                on_retry(&Retry { action, subject, reason, waited, left });
            }
        };
        this.awaited.since.set(this.now());
        let heard = || this.awaited.since.get().max(this.flow.moved());
        attended(&*self.clock, heard, Box::pin(this.message(stream)), tell).await
    }

    fn next(&self) -> (usize, &Server, Connection) {
        let count = self.servers.len();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let now = self.clock.monotonic();
        let in_turn = |step: usize| turn.wrapping_add(step) % count;
        let index = (0..count)
            .map(in_turn)
            .find(|index| self.servers[*index].avoid_until.get() <= now)
            .unwrap_or(in_turn(0));
        let server = &self.servers[index];
        let turn = server.turn.fetch_add(1, Ordering::Relaxed);
        (index, server, server.channels[turn % server.channels.len()].clone())
    }
}

impl Try {
    /// Waits for a sign of life, to somebody whom the server knows.
    async fn meet(self, mut server: Connection) -> Result<(), Failure> {
        // No dataset has an empty name: refused at once, which is the answer wanted here.
        let request = self.request(GetDatasetRequest::default());
        match self.limit().bound(self.clock.as_ref(), server.get_dataset(request)).await {
            Ok(Err(status)) if is_refused(&status) || !is_answer(&status) => {
                Err(Failure::from(status).at_first())
            }
            Ok(_) => Ok(()),
            Err(_) => Err(self.silence()),
        }
    }

    /// The message, saying who is asking.
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

    /// Waits for an answer for as long as one try may take. That begins anew when the connection
    /// takes a piece of what is sent meanwhile.
    pub(crate) async fn answer<T>(
        &self,
        answer: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, Failure> {
        let clock = self.clock.as_ref();
        let mut answer = std::pin::pin!(answer);
        let patience = self.limit().remaining(clock);
        let mut limit = Deadline::after(clock, patience);
        self.listen(limit);
        loop {
            if let Ok(answer) = limit.bound(clock, answer.as_mut()).await {
                return Ok(answer?.into_inner());
            }
            let until = self.flow.got_on().saturating_add(patience);
            let left = until.saturating_sub(clock.monotonic());
            if left.is_zero() {
                return Err(self.silence());
            }
            limit = Deadline::after(clock, left);
            self.awaited.until.set(until);
        }
    }

    /// Waits for the next message of a stream for as long as one try may take. The time of the
    /// whole request doesn't count while messages come.
    pub(crate) async fn message<T>(&self, stream: &mut Streaming<T>) -> Result<Option<T>, Failure> {
        let limit = Deadline::after(self.clock.as_ref(), self.attempt);
        self.listen(limit);
        match limit.bound(self.clock.as_ref(), stream.message()).await {
            Ok(message) => Ok(message?),
            Err(_) => Err(self.silence()),
        }
    }

    /// The failure, with the server that it was tried at.
    pub(crate) fn at_server(&self, failure: Failure) -> Failure {
        failure.at(&self.server)
    }

    /// The server told that it works on the request: that time doesn't count.
    pub(crate) fn works(&self) {
        self.flow.goes();
    }

    /// The time by the clock of its process.
    pub(crate) fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// From now on the server is waited for.
    fn listen(&self, limit: Deadline) {
        let now = self.clock.monotonic();
        let until = now.saturating_add(limit.remaining(self.clock.as_ref()));
        self.awaited.since.set(now);
        self.awaited.until.set(until);
    }

    fn limit(&self) -> Deadline {
        Deadline::after(self.clock.as_ref(), self.attempt).min(self.deadline)
    }

    fn silence(&self) -> Failure {
        Failure::silence(format!("no answer within {:?}", self.attempt))
    }
}

/// Waits for a try, and tells for how long the server has been silent, whenever that is long.
async fn attended<T>(
    clock: &dyn Clock,
    heard: impl Fn() -> Duration,
    mut attempted: Pin<Box<impl Future<Output = T>>>,
    tell: impl Fn(Duration),
) -> T {
    let mut told = Duration::ZERO;
    loop {
        let heard_at = heard();
        let now = clock.monotonic();
        let due = heard_at.max(told).saturating_add(SILENCE);
        if due <= now {
            told = now;
            tell(now.saturating_sub(heard_at));
            continue;
        }
        tokio::select! {
            biased;
            done = &mut attempted => return done,
            () = clock.sleep(due.saturating_sub(now)) => {}
        }
    }
}

/// All that was said; none when nothing was yet.
fn joined(said: &Mutex<Said>) -> Option<String> {
    let said = said.lock().unwrap_or_else(PoisonError::into_inner);
    let all: Vec<_> = said.values().map(Word::told).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

/// Keeps what a server said. That it is silent says nothing against the reason it gave before.
fn hear(said: &Mutex<Said>, index: usize, failure: Failure) {
    let mut said = said.lock().unwrap_or_else(PoisonError::into_inner);
    let before = said.remove(&index).filter(|_| failure.is_silence());
    let before = before.and_then(|word| match word.last.is_silence() {
        true => word.before,
        false => Some(word.last),
    });
    said.insert(index, Word { last: failure, before });
}

impl Word {
    fn told(&self) -> String {
        match &self.before {
            Some(answer) => format!("{answer}; then {}", self.last.bare()),
            None => self.last.to_string(),
        }
    }
}

/// By how much later a try ended than it was to, where this process was stopped meanwhile: nobody had a
/// chance to answer it then.
fn overslept(limit: Duration, ended: Duration) -> Duration {
    let over = ended.saturating_sub(limit);
    if over > SILENCE { over } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stopped_process_slept_through_is_not_time_that_it_had() {
        let lost = |ended| overslept(Duration::from_secs(30), Duration::from_secs(ended)).as_secs();
        assert_eq!([20, 30, 34, 36, 100].map(lost), [0, 0, 0, 6, 70]);
    }

    #[test]
    fn a_try_waits_for_a_busy_server_however_many_there_are() {
        let tried_for = |servers| {
            let patience = Patience::among(servers, Duration::from_secs(60));
            (patience.attempt.as_secs(), patience.patient().attempt.as_secs())
        };
        assert_eq!([1, 2, 3, 100].map(tried_for), [(30, 30), (20, 20), (15, 15), (0, 12)]);
        let short = Patience::among(100, Duration::from_secs(2)).patient();
        assert_eq!(short.attempt, Duration::from_secs(1));
    }
}
