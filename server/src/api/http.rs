//! The HTTP port: liveness, health with the command that helps, metrics, and the status page.
//!
//! Must hold: the port answers from its opening on, also while the server starts and stops. No client delays it
//! by many, slow or missing requests. Without a key, pages say nothing of datasets' contents, and name a dataset
//! only beside a training job on a server without users. A client that speaks TLS gets the certificate.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, UNIX_EPOCH};

use axum::Router;
use axum::extract::{Extension, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use dl_runtime::{Clock, Deadline, locked};
use futures::{FutureExt, future};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::api::web::{self, Peer, Web};
use crate::memory;
use crate::metrics::{self, Metrics, Readings, Watched};
use crate::net::connections::{ConnectionLimiter, FIRST_REQUEST, accept};
use crate::net::socket::Socket;
use crate::net::tls::{Certificate, greet_web};
use crate::shared::context::ServerContext;
use crate::shared::disk_reserve::Disk;
use crate::status::health::{Health, HealthProbe, TOLERATED};

/// Limit for an answer of each store.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Limit for a connection, which has a single request.
const CONNECTION: Duration = Duration::from_secs(10);

const REQUEST_BYTES: usize = 32 << 10;

/// The first byte of TLS, and of no HTTP.
const TLS_RECORD: u8 = 0x16;

/// The sources of the pages.
#[derive(Debug)]
pub(crate) struct Site {
    context: ServerContext,
    metrics: Arc<Metrics>,
    watched: Watched,
    health: Arc<HealthProbe>,
}

/// An HTTP port, open until its last clone is dropped.
#[derive(Debug, Clone)]
pub struct HttpPort(Arc<Port>);

#[derive(Debug)]
struct Port {
    address: SocketAddr,
    stage: Stage,
    web: web::Slot,
    /// Ends with the port.
    _answering: JoinSet<Infallible>,
}

/// The state of the server.
#[derive(Debug, Clone)]
struct Stage(Arc<Mutex<Phase>>);

#[derive(Debug, Clone)]
struct Phase {
    /// Why the server does not serve; none while serving.
    pending: Option<String>,
    /// None before the stores are open.
    site: Option<Arc<Site>>,
}

impl Stage {
    fn phase(&self) -> MutexGuard<'_, Phase> {
        locked(&self.0)
    }
}

impl HttpPort {
    /// Begins to answer, with the state "starting". With a certificate, a client may speak TLS.
    ///
    /// # Errors
    /// When the listener has no address.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn open(
        listener: TcpListener,
        clock: Arc<dyn Clock>,
        certificate: Option<Arc<Certificate>>,
    ) -> io::Result<Self> {
        let address = listener.local_addr()?;
        let pending = Some("starting".to_owned());
        let stage = Stage(Arc::new(Mutex::new(Phase { pending, site: None })));
        let web = web::Slot::default();
        let pages = pages(stage.clone(), web.clone());
        let mut answering = JoinSet::new();
        answering.spawn(serve(listener, pages, clock, certificate));
        Ok(Self(Arc::new(Port { address, stage, web, _answering: answering })))
    }

    /// The address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }

    /// Reports the step of a start.
    pub fn starting(&self, doing: &str) {
        self.0.stage.phase().pending = Some(format!("starting: {doing}"));
    }

    /// The server serves; pages ask the stores from now on.
    pub(crate) fn serving(&self, site: Site, web: Web) {
        self.0.web.fill(web);
        *self.0.stage.phase() = Phase { pending: None, site: Some(Arc::new(site)) };
    }

    /// The server stops; clients should send no new requests.
    pub(crate) fn stopping(&self) {
        let doing = "stopping: what is in flight ends within the grace period";
        self.0.stage.phase().pending = Some(doing.to_owned());
    }
}

/// All pages of the port.
fn pages(stage: Stage, web: web::Slot) -> Router {
    let wrong_method = (StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD are understood\n");
    let no_such_page =
        (StatusCode::NOT_FOUND, "this is dlserver: /, /healthz, /livez and /metrics are here\n");
    Router::new()
        .route("/livez", get("ok\n"))
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics))
        .with_state(stage)
        .merge(web::pages(web))
        .method_not_allowed_fallback(move || future::ready(wrong_method))
        .fallback(move || future::ready(no_such_page))
}

async fn serve(
    listener: TcpListener,
    pages: Router,
    clock: Arc<dyn Clock>,
    certificate: Option<Arc<Certificate>>,
) -> Infallible {
    // All connections are newcomers: the oldest end when many come.
    let limiter = ConnectionLimiter::new(0, FIRST_REQUEST, Vec::new(), Arc::clone(&clock));
    let converse = |stream| {
        let (limiter, pages, clock) = (limiter.clone(), pages.clone(), Arc::clone(&clock));
        converse(limiter, stream, pages, clock, certificate.clone())
    };
    accept(&listener, &*clock, &mut JoinSet::new(), converse).await
}

async fn converse(
    limiter: ConnectionLimiter,
    stream: TcpStream,
    pages: Router,
    clock: Arc<dyn Clock>,
    certificate: Option<Arc<Certificate>>,
) {
    let connection = limiter.enter(stream.peer_addr().ok());
    let mut socket = Socket::new(stream, &connection, CONNECTION, &clock);
    let address = connection.peer;
    let served = async {
        let has_tls = socket.first_byte().await.is_ok_and(|first| first == Some(TLS_RECORD));
        let pages = pages.layer(Extension(Peer { address, has_tls }));
        match (has_tls, &certificate) {
            (true, Some(certificate)) => match greet_web(socket, certificate).await {
                Ok(stream) => answer(stream, pages).await,
                Err(error) => tracing::debug!(peer = ?address, %error, "no TLS came about"),
            },
            (true, None) => {}
            (false, _) => answer(socket, pages).await,
        }
    };
    let served = Deadline::after(&*clock, CONNECTION).bound(&*clock, Box::pin(served));
    // A client that breaks off or stalls knows the reason.
    limiter.bound(&connection, served.map(drop)).await;
}

/// Answers a single request.
async fn answer<S>(stream: S, pages: Router)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let served = http1::Builder::new()
        .keep_alive(false)
        .max_buf_size(REQUEST_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(pages));
    // As above.
    let _ = served.await;
}

/// The reason not to serve, or the state of the stores.
async fn healthz(State(stage): State<Stage>) -> Response {
    let Phase { pending, site } = stage.phase().clone();
    match (pending, site) {
        (Some(pending), _) => unwell(&pending),
        (None, None) => unwell("starting"),
        (None, Some(site)) => match site.health.health().await {
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
async fn metrics(State(stage): State<Stage>) -> Response {
    let Phase { pending, site } = stage.phase().clone();
    let Some(site) = site else { return unwell(&pending.unwrap_or_default()) };
    let (health, resident, disks) =
        future::join3(site.health.health(), site.resident(), site.disks()).await;
    let now = site.context.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
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
    pub(crate) fn new(
        context: ServerContext,
        metrics: Arc<Metrics>,
        watched: Watched,
        health: Arc<HealthProbe>,
    ) -> Self {
        Self { context, metrics, watched, health }
    }

    /// Bytes of memory in use; zero while all threads for blocking work wait for disks.
    async fn resident(&self) -> u64 {
        let clock = &*self.context.clock;
        let resident = Deadline::after(clock, TIMEOUT).bound(clock, memory::resident());
        resident.await.ok().flatten().unwrap_or_default()
    }

    /// The room on the disks; none while all threads for blocking work wait for disks.
    async fn disks(&self) -> Vec<Disk> {
        let clock = &*self.context.clock;
        let disks = Deadline::after(clock, TIMEOUT).bound(clock, self.context.reserve.disks());
        disks.await.unwrap_or_default()
    }
}
