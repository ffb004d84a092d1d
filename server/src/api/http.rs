//! The HTTP port: liveness, health with the command that helps, and metrics.
//!
//! Must hold: the port answers from its opening on, also while the server starts and stops. No client delays it
//! by many, slow or missing requests. Pages say nothing of datasets' contents, and name a dataset only beside a
//! training job on a server without users.

use std::convert::Infallible;
use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use dl_format::{IDENTITY_KEY, IdentityRecord, StoreId};
use dl_meta::{Damage, DatasetRecord, DatasetState, Refusal};
use dl_runtime::{Clock, Deadline, Elapsed};
use dl_store::StoreExt;
use futures::{FutureExt, future};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::datasets::identity;
use crate::error::causes;
use crate::memory;
use crate::metrics::{self, Loss, Metrics, Readings, Watched};
use crate::net::connections::{ConnectionLimiter, FIRST_REQUEST, accept};
use crate::net::socket::Socket;
use crate::shared::parts::{Parts, key};
use crate::shared::room::Disk;

/// Limit for an answer of each store.
const PATIENCE: Duration = Duration::from_secs(1);

/// Time for which an answer of the stores is reused, so that many clients are no load.
const HOLDS: Duration = Duration::from_secs(1);

/// Time for which stores may fail to answer before the server is unhealthy: a slow bucket is no reason to take a
/// server away from its clients.
const TOLERATED: Duration = Duration::from_secs(10);

/// Limit for a connection, which has a single request.
const CONNECTION: Duration = Duration::from_secs(10);

const REQUEST_BYTES: usize = 16 << 10;

/// The sources of the pages.
#[derive(Debug)]
pub(crate) struct Site {
    parts: Parts,
    metrics: Arc<Metrics>,
    watched: Watched,
    last: Mutex<Option<Health>>,
    /// A single client at a time asks the stores; other clients take the answer.
    turn: Semaphore,
}

#[derive(Debug, Clone)]
struct Health {
    at: Duration,
    /// The last known loss.
    loss: Loss,
    /// Datasets refused until their recovery, as last known.
    recovering: u64,
    /// None when the stores are well.
    problem: Option<Problem>,
    /// The first question without an answer since the last good answer; none when the stores are well.
    silent_since: Option<Duration>,
    /// Whether the stores were ever well.
    was_well: bool,
}

impl Health {
    /// Whether a missing answer is tolerated for now.
    fn is_tolerated(&self) -> bool {
        let is_short = self.silent_since.is_some_and(|since| self.at < since + TOLERATED);
        self.was_well && is_short
    }
}

/// A reason not to be well.
#[derive(Debug, Clone)]
struct Problem {
    why: String,
    /// Whether a store gave no answer, which may pass.
    is_silence: bool,
}

impl Problem {
    fn certain(why: String) -> Self {
        Self { why, is_silence: false }
    }

    fn silence(why: String) -> Self {
        Self { why, is_silence: true }
    }
}

/// An HTTP port, open until its last clone is dropped.
#[derive(Debug, Clone)]
pub struct HttpPort(Arc<Port>);

#[derive(Debug)]
struct Port {
    address: SocketAddr,
    stage: Arc<Mutex<Stage>>,
    /// Ends with the port.
    _answering: JoinSet<Infallible>,
}

#[derive(Debug, Clone)]
struct Stage {
    /// Why the server does not serve; none while serving.
    pending: Option<String>,
    /// None before the stores are open.
    site: Option<Arc<Site>>,
}

impl HttpPort {
    /// Begins to answer, with the state "starting".
    ///
    /// # Errors
    /// When the listener has no address.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open(listener: TcpListener, clock: Arc<dyn Clock>) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let pending = Some("starting".to_owned());
        let stage = Arc::new(Mutex::new(Stage { pending, site: None }));
        let mut answering = JoinSet::new();
        answering.spawn(serve(listener, Arc::clone(&stage), clock));
        Ok(Self(Arc::new(Port { address, stage, _answering: answering })))
    }

    /// The address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Reports the step of a start.
    pub fn starting(&self, doing: &str) {
        lock(&self.0.stage).pending = Some(format!("starting: {doing}"));
    }

    /// The server serves; pages ask the stores from now on.
    pub(crate) fn serving(&self, site: Site) {
        *lock(&self.0.stage) = Stage { pending: None, site: Some(Arc::new(site)) };
    }

    /// The server stops; clients should send no new requests.
    pub(crate) fn stopping(&self) {
        let doing = "stopping: what is in flight ends within the grace period";
        lock(&self.0.stage).pending = Some(doing.to_owned());
    }
}

fn lock<T>(held: &Mutex<T>) -> MutexGuard<'_, T> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn serve(
    listener: TcpListener,
    stage: Arc<Mutex<Stage>>,
    clock: Arc<dyn Clock>,
) -> Infallible {
    let wrong_method = (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are understood\n");
    let no_such_page =
        (StatusCode::NOT_FOUND, "this is dlserver: /healthz, /livez and /metrics are here\n");
    let pages = Router::new()
        .route("/livez", get("ok\n"))
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics))
        .method_not_allowed_fallback(move || future::ready(wrong_method))
        .fallback(move || future::ready(no_such_page))
        .with_state(stage);
    // All connections are newcomers: the oldest end when many come.
    let limiter = ConnectionLimiter::new(0, FIRST_REQUEST, Vec::new(), Arc::clone(&clock));
    let converse = |stream| converse(limiter.clone(), stream, pages.clone(), Arc::clone(&clock));
    accept(&listener, &*clock, &mut JoinSet::new(), converse).await
}

async fn converse(
    limiter: ConnectionLimiter,
    stream: TcpStream,
    pages: Router,
    clock: Arc<dyn Clock>,
) {
    let connection = limiter.enter(stream.peer_addr().ok());
    let socket = Socket::new(stream, &connection, CONNECTION, &clock);
    let served = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(REQUEST_BYTES)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(pages));
    let served = Deadline::after(&*clock, CONNECTION).bound(&*clock, served);
    // A client that breaks off or stalls knows the reason.
    limiter.bound(&connection, served.map(drop)).await;
}

/// The reason not to serve, or the state of the stores.
async fn healthz(State(stage): State<Arc<Mutex<Stage>>>) -> Response {
    let Stage { pending, site } = lock(&stage).clone();
    match (pending, site) {
        (Some(pending), _) => unwell(&pending),
        (None, None) => unwell("starting"),
        (None, Some(site)) => match site.health().await {
            health @ Health { problem: Some(_), .. } if health.is_tolerated() => {
                let why = health.problem.map(|problem| problem.why).unwrap_or_default();
                format!("ok\nfor less than {TOLERATED:?}: {why}\n").into_response()
            }
            Health { problem: Some(problem), .. } => unwell(&problem.why),
            Health { recovering: 0, .. } => "ok\n".into_response(),
            // All other datasets are served.
            Health { recovering, .. } => format!(
                "ok\ndatasets that are refused until they are recovered: {recovering}; run \
                 `dlcmd recover --all`, unless one is under way\n"
            )
            .into_response(),
        },
    }
}

/// The metrics, also while the server stops.
async fn metrics(State(stage): State<Arc<Mutex<Stage>>>) -> Response {
    let Stage { pending, site } = lock(&stage).clone();
    let Some(site) = site else { return unwell(&pending.unwrap_or_default()) };
    let (health, resident, disks) =
        future::join3(site.health(), site.resident(), site.disks()).await;
    let now = site.parts.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let readings = Readings {
        loss: health.loss,
        recovering: health.recovering,
        resident,
        disks,
        seconds: i64::try_from(now).unwrap_or(i64::MAX),
    };
    let text = site.metrics.text(&site.watched, &readings);
    ([(CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response()
}

fn unwell(why: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response()
}

impl Site {
    pub(crate) fn new(parts: Parts, metrics: Arc<Metrics>, watched: Watched) -> Self {
        Self { parts, metrics, watched, last: Mutex::default(), turn: Semaphore::new(1) }
    }

    fn of_another(&self, bound: Option<StoreId>, identity: &[u8]) -> Option<String> {
        match IdentityRecord::decode(identity) {
            Ok(IdentityRecord { store }) => {
                let compared = identity::compare(&self.parts, bound?, store);
                compared.err().map(|error| error.chain())
            }
            Err(error) => Some(format!("the chunk store's `{IDENTITY_KEY}` is damaged: {error}")),
        }
    }

    /// Bytes of memory in use; zero while all threads for blocking work wait for disks.
    async fn resident(&self) -> u64 {
        let clock = &*self.parts.clock;
        let resident = Deadline::after(clock, PATIENCE).bound(clock, memory::resident());
        resident.await.ok().flatten().unwrap_or_default()
    }

    /// The room on the disks; none while all threads for blocking work wait for disks.
    async fn disks(&self) -> Vec<Disk> {
        let clock = &*self.parts.clock;
        let disks = Deadline::after(clock, PATIENCE).bound(clock, self.parts.room.disks());
        disks.await.unwrap_or_default()
    }

    /// The number of datasets refused until their recovery; none without an answer of the metadata store.
    async fn recovering(&self) -> Option<u64> {
        let clock = &*self.parts.clock;
        let records = Deadline::after(clock, PATIENCE).bound(clock, self.parts.meta.records());
        let records = records.await.ok()?.ok()?;
        let is_refused = |record: &&DatasetRecord| record.state == DatasetState::Recovering;
        Some(records.iter().filter(is_refused).count() as u64)
    }

    /// The state of the stores, at most [`HOLDS`] old.
    async fn health(&self) -> Health {
        let _turn = self.turn.acquire().await;
        let last = lock(&self.last).clone();
        let now = self.parts.clock.monotonic();
        match last {
            Some(health) if now < health.at + HOLDS => health,
            last => {
                let health = self.ask(last).await;
                *lock(&self.last) = Some(health.clone());
                health
            }
        }
    }

    async fn ask(&self, last: Option<Health>) -> Health {
        let clock = &*self.parts.clock;
        let (before, refused) =
            last.as_ref().map_or((Loss::None, 0), |last| (last.loss, last.recovering));
        let deadline = Deadline::after(clock, PATIENCE);
        let identity = key(IDENTITY_KEY.to_owned());
        let meta = &*self.parts.meta;
        // A separate call: the refusal is known while a write to the metadata store waits.
        let refusal = deadline.bound(clock, meta.refusal());
        let meta = future::try_join(meta.identity(), meta.damage());
        let meta = deadline.bound::<Result<_, dl_meta::Error>>(clock, meta);
        let store = deadline.bound(clock, self.parts.store.read_all(&identity));
        let (meta, refusal, store, recovering) =
            future::join4(meta, refusal, store, self.recovering()).await;
        let loss = match &meta {
            Ok(Ok((None, _) | (_, Some(Damage::Everything)))) => Loss::All,
            Ok(Ok((_, Some(Damage::Shards)))) => Loss::Last,
            Ok(Ok((Some(_), None))) => Loss::None,
            Ok(Err(error)) if error.kind == dl_meta::Kind::Lost => Loss::All,
            Err(_) | Ok(Err(_)) => before,
        };
        // Metadata with losses, or without an answer, has no valid count.
        let recovering = recovering.filter(|_| loss == Loss::None && matches!(meta, Ok(Ok(_))));
        let problem = match (meta, store) {
            (Err(_), _) => Some(self.refused(refusal).unwrap_or_else(|| self.silent_meta())),
            (Ok(Err(error)), _) => Some(failed_meta(&error)),
            (_, Err(_)) => Some(Problem::silence(silent("chunk"))),
            (_, Ok(Err(error))) if error.kind == dl_store::Kind::Missing => {
                Some(Problem::certain(format!(
                    "the chunk store has no `{IDENTITY_KEY}`: check --store; {}",
                    lost(loss).unwrap_or(
                        "where it has all datasets that the metadata knows, the servers write it again \
                         within two minutes, or their logs say why not"
                    )
                )))
            }
            (_, Ok(Err(error))) => {
                let is_silence = error.kind == dl_store::Kind::Unavailable;
                Some(Problem { why: failed("chunk", &error), is_silence })
            }
            (Ok(Ok((bound, _))), Ok(Ok(identity))) => match lost(loss) {
                None => {
                    let other = self.of_another(bound, &identity).map(Problem::certain);
                    other.or_else(|| self.refused(refusal))
                }
                Some(lost) => Some(Problem::certain(lost.to_owned())),
            },
        };
        let at = clock.monotonic();
        let since = last.as_ref().and_then(|last| last.silent_since).unwrap_or(at);
        let is_silence = problem.as_ref().is_some_and(|problem| problem.is_silence);
        let was_well = problem.is_none() || last.is_some_and(|last| last.was_well);
        let recovering = recovering.unwrap_or(refused);
        Health {
            at,
            loss,
            recovering,
            problem,
            silent_since: is_silence.then_some(since),
            was_well,
        }
    }

    /// The reason for refused writes; none if the metadata store takes writes.
    fn refused(
        &self,
        refusal: Result<Result<Option<Refusal>, dl_meta::Error>, Elapsed>,
    ) -> Option<Problem> {
        match refusal {
            Err(Elapsed) => Some(self.silent_meta()),
            Ok(Err(error)) => Some(failed_meta(&error)),
            Ok(Ok(refusal)) => Some(Problem::certain(match refusal? {
                Refusal::Full(why) => format!(
                    "the metadata store takes no writes but deletes ({why}): give it more memory, \
                     or delete something and run `dlcmd purge`"
                ),
                Refusal::All(why) => format!("the metadata store takes no writes: {why}"),
            })),
        }
    }

    fn silent_meta(&self) -> Problem {
        let trouble = self.parts.meta.trouble();
        let trouble = trouble.map(|why| format!("; last waited for: {why}"));
        Problem::silence(silent("metadata") + &trouble.unwrap_or_default())
    }
}

fn silent(what: impl Display) -> String {
    format!("the {what} store did not answer within {PATIENCE:?}")
}

fn failed_meta(error: &dl_meta::Error) -> Problem {
    let is_silence = error.kind == dl_meta::Kind::Unavailable;
    Problem { why: failed("metadata", error), is_silence }
}

fn failed(what: impl Display, error: &dyn std::error::Error) -> String {
    format!("the {what} store can't be asked: {}", causes(error))
}

/// The message about a loss, with the command that helps.
fn lost(loss: Loss) -> Option<&'static str> {
    match loss {
        Loss::None => None,
        Loss::Last => Some(
            "the metadata store may have lost writes: the servers are rebuilding it from the chunk \
             store, which takes a moment",
        ),
        Loss::All => Some(
            "no part of the metadata store has its identity: check --meta, or run `dlcmd recover --all`",
        ),
    }
}
