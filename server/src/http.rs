//! The HTTP port: whether the server lives, whether it is well and, if not, which command mends it, and
//! what it counts.
//!
//! Must hold: it answers from the moment it is open, also while the server starts and stops; nobody
//! holds it up, by asking often, slowly or not at all; it says nothing of what is
//! in datasets, and names one only beside a training job, where the server has no users.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use dl_format::{IDENTITY_KEY, IdentityRecord, StoreId};
use dl_meta::{Damage, DatasetRecord, DatasetState, Refusal};
use dl_runtime::{Clock, Deadline};
use dl_store::StoreExt;
use futures::FutureExt;
use futures::future::{self, BoxFuture, Shared, WeakShared};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::door::{Door, Guest, Stalls};
use crate::error::causes;
use crate::identity;
use crate::memory;
use crate::metrics::{self, Loss, Metrics, Watched};
use crate::parts::{Parts, key};

/// How long each store may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// For how long an answer of the stores holds, so that many who ask are no load. Those who ask while
/// the stores are being asked wait for the same answer.
const HOLDS: Duration = Duration::from_secs(1);

/// Most time for a connection, which is for one request.
const CONNECTION: Duration = Duration::from_secs(10);

/// Most bytes of a request.
const REQUEST_BYTES: usize = 16 << 10;

/// Pause after a connection that could not be taken, as when there are no descriptors left.
const PAUSE: Duration = Duration::from_millis(50);

const TEXT: &str = "text/plain; charset=utf-8";

/// What the port tells of.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) parts: Parts,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) watched: Watched,
    pub(crate) looks: Mutex<Looks>,
}

/// How the stores were found.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    last: Option<Health>,
    /// The one under way, which ends with the last of those who wait for it.
    current: Option<WeakShared<BoxFuture<'static, Health>>>,
}

/// What the stores said.
#[derive(Debug, Clone)]
struct Health {
    at: Duration,
    /// As it was last known.
    loss: Loss,
    /// Datasets that are refused until they are recovered, as it was last known.
    recovering: u64,
    /// None when all is well.
    problem: Option<String>,
}

/// An HTTP port, which answers until the last clone of it is dropped.
#[derive(Debug, Clone)]
pub struct HttpPort(Arc<Port>);

#[derive(Debug)]
struct Port {
    address: SocketAddr,
    stage: Arc<Mutex<Stage>>,
    /// Ends with this.
    _answering: JoinSet<Infallible>,
}

/// How far the server is.
#[derive(Debug, Clone)]
struct Stage {
    /// What keeps it from serving; none while it does.
    pending: Option<String>,
    /// What there is to tell of, once there is anything.
    site: Option<Arc<Site>>,
}

impl HttpPort {
    /// Begins to answer: that the server lives, and that it is about to start.
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Says what a start is at.
    pub fn starting(&self, doing: &str) {
        lock(&self.0.stage).pending = Some(format!("starting: {doing}"));
    }

    /// From now on the stores are asked.
    pub(crate) fn serving(&self, site: Site) {
        *lock(&self.0.stage) = Stage { pending: None, site: Some(Arc::new(site)) };
    }

    /// Nothing new is to be sent here any more.
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
    // Nobody stays: the oldest ones go when many come.
    let door = Door::new(0, false, Stalls::never(), Arc::clone(&clock));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let guest = door.enter(stream);
                    connections.spawn(converse(guest, Arc::clone(&stage), Arc::clone(&clock)));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection to the HTTP port can't be taken");
                    clock.sleep(PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn converse(guest: Guest, stage: Arc<Mutex<Stage>>, clock: Arc<dyn Clock>) {
    let service = service_fn(move |request: Request<Incoming>| {
        let stage = lock(&stage).clone();
        async move { Ok::<_, Infallible>(stage.answer(request.method(), request.uri().path()).await) }
    });
    let connection = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(REQUEST_BYTES)
        .serve_connection(TokioIo::new(guest), service);
    // Whoever breaks off or stalls knows it.
    let _ = Deadline::after(&*clock, CONNECTION).bound(&*clock, connection).await;
}

impl Stage {
    async fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        if method != Method::GET && method != Method::HEAD {
            let why = "only GET and HEAD are understood\n";
            return response(StatusCode::METHOD_NOT_ALLOWED, TEXT, why.to_owned());
        }
        match (path, &self.site, &self.pending) {
            ("/livez", _, _) => response(StatusCode::OK, TEXT, "ok\n".to_owned()),
            ("/metrics", Some(site), _) => {
                // Of an earlier moment when nobody knows better.
                let (health, resident) = future::join(site.health(), site.resident()).await;
                let Health { loss, recovering, .. } = health;
                let text = site.metrics.text(&site.watched, loss, recovering, resident);
                response(StatusCode::OK, metrics::CONTENT_TYPE, text)
            }
            ("/healthz" | "/metrics", _, Some(pending)) => unwell(pending),
            ("/healthz", Some(site), None) => match site.health().await {
                Health { problem: Some(problem), .. } => unwell(&problem),
                Health { recovering: 0, .. } => response(StatusCode::OK, TEXT, "ok\n".to_owned()),
                // The others are served.
                Health { recovering, .. } => {
                    let text = format!(
                        "ok\ndatasets that are refused until they are recovered: {recovering}; run \
                         `dlcmd recover --all`, unless one is under way\n"
                    );
                    response(StatusCode::OK, TEXT, text)
                }
            },
            _ => {
                let what = "this is dlserver: /healthz, /livez and /metrics are here\n";
                response(StatusCode::NOT_FOUND, TEXT, what.to_owned())
            }
        }
    }
}

fn unwell(why: &str) -> Response<Full<Bytes>> {
    response(StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{why}\n"))
}

impl Site {
    /// What is wrong when the metadata is not that of the chunk store.
    fn of_another(&self, bound: Option<StoreId>, identity: &[u8]) -> Option<String> {
        match IdentityRecord::decode(identity) {
            Ok(IdentityRecord { store }) => {
                let compared = identity::compare(&self.parts, bound?, store);
                compared.err().map(|error| error.chain())
            }
            Err(error) => Some(format!("the chunk store's `{IDENTITY_KEY}` is damaged: {error}")),
        }
    }

    /// Bytes of memory that are in use; none while all threads that may wait for disks do.
    async fn resident(&self) -> u64 {
        let clock = &*self.parts.clock;
        let resident = Deadline::after(clock, PATIENCE).bound(clock, memory::resident());
        resident.await.ok().flatten().unwrap_or_default()
    }

    /// How many datasets are refused until they are recovered; none where that can't be learnt now.
    async fn recovering(&self) -> Option<u64> {
        let clock = &*self.parts.clock;
        let records = Deadline::after(clock, PATIENCE).bound(clock, self.parts.meta.records());
        let records = records.await.ok()?.ok()?;
        let is_refused = |record: &&DatasetRecord| record.state == DatasetState::Recovering;
        Some(records.iter().filter(is_refused).count() as u64)
    }

    /// How the stores are; what keeps the server from answering, if anything does.
    async fn health(self: &Arc<Self>) -> Health {
        let look = self.look();
        look.await
    }

    /// What was found a moment ago, or the one look that is under way.
    fn look(self: &Arc<Self>) -> Shared<BoxFuture<'static, Health>> {
        let mut looks = lock(&self.looks);
        let now = self.parts.clock.monotonic();
        if let Some(health) = looks.last.as_ref().filter(|last| now < last.at + HOLDS) {
            return future::ready(health.clone()).boxed().shared();
        }
        let current = looks.current.as_ref().and_then(WeakShared::upgrade);
        // One that has ended is old.
        if let Some(current) = current.filter(|current| current.peek().is_none()) {
            return current;
        }
        let (site, last) = (Arc::clone(self), looks.last.clone());
        let look = async move { site.ask(last).await }.boxed().shared();
        looks.current = look.downgrade();
        look
    }

    /// Asks the stores.
    async fn ask(&self, last: Option<Health>) -> Health {
        let clock = &*self.parts.clock;
        let (before, refused) = last.map_or((Loss::None, 0), |last| (last.loss, last.recovering));
        let deadline = Deadline::after(clock, PATIENCE);
        let identity = key(IDENTITY_KEY.to_owned());
        let meta = &*self.parts.meta;
        // Apart: where marks can't be written, which is waited for, the reason is known.
        let refusal = deadline.bound(clock, meta.refusal());
        let meta = future::try_join(meta.identity(), meta.damage());
        let meta = deadline.bound::<Result<_, dl_meta::Error>>(clock, meta);
        let store = deadline.bound(clock, self.parts.store.read_all(&identity));
        let (meta, refusal, store, recovering) =
            future::join4(meta, refusal, store, self.recovering()).await;
        let silent = |what| Some(format!("the {what} store did not answer within {PATIENCE:?}"));
        let silent_meta = || {
            let trouble = self.parts.meta.trouble();
            let trouble = trouble.map(|why| format!("; last waited for: {why}"));
            silent("metadata").map(|silent| silent + &trouble.unwrap_or_default())
        };
        let failed = |what, error: &dyn std::error::Error| {
            Some(format!("the {what} store can't be asked: {}", causes(error)))
        };
        let loss = match &meta {
            Ok(Ok((None, _) | (_, Some(Damage::Everything)))) => Loss::All,
            Ok(Ok((_, Some(Damage::Shards)))) => Loss::Last,
            Ok(Ok((Some(_), None))) => Loss::None,
            Ok(Err(error)) if error.kind == dl_meta::Kind::Lost => Loss::All,
            // Nobody can tell.
            Err(_) | Ok(Err(_)) => before,
        };
        // Metadata that lost something, or is silent, can't tell.
        let recovering = recovering.filter(|_| loss == Loss::None && matches!(meta, Ok(Ok(_))));
        let lost = match loss {
            Loss::None => None,
            Loss::Last => Some(
                "the metadata store may have lost writes: the servers are rebuilding it from the chunk \
                 store, which takes a moment",
            ),
            Loss::All => Some(
                "the metadata store lost what it held, or a part of it: run `dlcmd recover --all`",
            ),
        };
        let writes = match refusal {
            Ok(Ok(refusal)) => refusal.map(|refusal| match refusal {
                Refusal::Full(why) => {
                    format!("the metadata store takes no writes but deletes: {why}")
                }
                Refusal::All(why) => format!("the metadata store takes no writes: {why}"),
            }),
            Ok(Err(error)) => failed("metadata", &error),
            Err(_) => silent_meta(),
        };
        let problem = match (meta, store) {
            (Err(_), _) => writes.or_else(silent_meta),
            (Ok(Err(error)), _) => failed("metadata", &error),
            (_, Err(_)) => silent("chunk"),
            (_, Ok(Err(error))) if error.kind == dl_store::Kind::Missing => Some(format!(
                "the chunk store has no `{IDENTITY_KEY}`: check --store; {}",
                lost.unwrap_or(
                    "where it has all datasets that the metadata knows, the servers write it again \
                     within two minutes, or their logs say why not"
                )
            )),
            (_, Ok(Err(error))) => failed("chunk", &error),
            (Ok(Ok((bound, _))), Ok(Ok(identity))) => match lost {
                None => self.of_another(bound, &identity).or(writes),
                Some(lost) => Some(lost.to_owned()),
            },
        };
        let recovering = recovering.unwrap_or(refused);
        let health = Health { at: clock.monotonic(), loss, recovering, problem };
        lock(&self.looks).last = Some(health.clone());
        health
    }
}

fn response(status: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
