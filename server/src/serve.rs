//! A running server: the result of `start(doors, parts, shutdown)` answers until a stop is requested, and
//! ends requests in flight within the grace period.

use std::convert::Infallible;
use std::sync::Arc;

use dl_meta::Stop;
use dl_proto::pb::diesel_server::DieselServer;
use dl_proto::{DESCRIPTORS, Kind};
use dl_runtime::Shutdown;
use dl_store::TierStore;
use futures::future;
use tokio::net::TcpListener;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::api::admission::RequestLimiter;
use crate::api::grpc::GrpcPort;
use crate::api::http::{HttpPort, Site};
use crate::api::service::Service;
use crate::api::web::{Openness, Web};
use crate::auth::{Auth, People};
use crate::datasets::catalog;
use crate::datasets::identity::{self, Bound};
use crate::datasets::leftovers;
use crate::error::Error;
use crate::live;
use crate::metrics::{Gauges, Metrics, Sources, Watched};
use crate::net::connections::ConnectionLimiter;
use crate::net::tls::Certificate;
use crate::recovery::recover;
use crate::recovery::watch;
use crate::settings::{Live, Settings};
use crate::shared::context::ServerContext;
use crate::snapshot;
use crate::source::Followed;
use crate::status::health::HealthProbe;
use crate::status::{self, Board};

/// Prepares the stores before the first request: checks whether they belong to each other, completes
/// deletions that were cut off, and rolls the metadata forward when the last stop was not clean. The
/// owner of the metadata store does this once.
///
/// # Errors
/// When the stores don't belong together or can't be read.
pub async fn prepare(context: &ServerContext, last_stop: Stop) -> Result<(), Error> {
    if identity::bind(context).await? == Bound::Lost {
        tracing::warn!(
            "the metadata is empty and the chunk store is not: run `dlcmd recover --all`"
        );
        return Ok(());
    }
    catalog::finish_deletions(context).await?;
    match last_stop {
        Stop::Clean | Stop::Fresh => {}
        Stop::Unclean => {
            tracing::info!("the last stop was not clean: looking for chunks the metadata lacks");
            let adopted = recover::recover_unlogged(context).await?;
            tracing::info!(adopted, "metadata rolled forward from the chunk store");
        }
    }
    Ok(())
}

/// Most connections of clients, unless the process may have fewer files open.
const CONNECTIONS_MAX: usize = 4_096;

/// Most bytes of a request about the server itself, which needs no key.
const KEYLESS_BYTES_MAX: usize = 4 << 10;

/// The ports of a server, and their users.
#[derive(Debug)]
pub struct Doors {
    /// The port for gRPC.
    pub grpc: TcpListener,
    /// The port for HTTP, if there is any.
    pub http: Option<HttpPort>,
    /// The certificate for gRPC; none for plain text.
    pub tls: Option<Arc<Certificate>>,
    /// The users; none when everybody may ask.
    pub users: Option<Arc<Followed<People>>>,
    /// Settings that may change meanwhile; none when no setting may.
    pub settings: Option<Arc<Followed<Live>>>,
    /// Whether an admin opened a server without users to the network.
    pub without_keys: bool,
    /// Most connections of clients with a valid request.
    pub connections_max: usize,
    /// The store in front of the chunk store, for its counts.
    pub fast_store: Option<Arc<TierStore>>,
}

impl Doors {
    /// gRPC in plain text, for everybody.
    pub fn open(grpc: TcpListener) -> Self {
        let connections_max = CONNECTIONS_MAX;
        let (http, tls, users, settings, fast_store) = (None, None, None, None, None);
        let without_keys = true;
        Self { grpc, http, tls, users, settings, without_keys, connections_max, fast_store }
    }
}

/// Opens the doors: from now on the HTTP port reports on the stores. The result serves requests
/// until `shutdown` is requested and requests in flight have ended, or its grace period has. The
/// metadata store is left open.
///
/// # Errors
/// When the service can't be described.
pub async fn start(
    doors: Doors,
    context: ServerContext,
    shutdown: Shutdown,
) -> Result<impl Future<Output = Result<(), Error>> + Send + 'static, Error> {
    let metrics = Arc::new(Metrics::new(Arc::clone(&context.clock)));
    let context = metrics.measure(context);
    let settings = match &doors.settings {
        Some(followed) => Settings::of(Some(&**followed)),
        None => context.settings.clone(),
    };
    let context = ServerContext { settings: settings.clone(), ..context };
    let board = Arc::new(Board::new(context.clone()));
    let (snapshots, tasks) = (metrics.snapshots(), metrics.tasks());
    let service = Service::new(context.clone(), snapshots, tasks, Arc::clone(&board));
    let (left, rebuild, snapshots) = (service.leftovers(), metrics.rebuild(), metrics.snapshots());
    let background = background(&doors, &context, service.gauges());
    let (clock, patience) = (Arc::clone(&context.clock), context.limits.patience);
    let connections = ConnectionLimiter::new(
        doors.connections_max,
        patience,
        service.answers(),
        Arc::clone(&clock),
    );
    let health = Arc::new(HealthProbe::new(context.clone()));
    let sources = board_sources(&doors, &metrics, service.gauges(), &connections, &health);
    let auth = Arc::new(Auth::new(doors.users.clone(), Arc::clone(&clock)));
    if let Some(http) = &doors.http {
        let web = Web {
            board: Arc::clone(&board),
            auth: Arc::clone(&auth),
            metrics: Arc::clone(&metrics),
            browser: service.browser(),
            openness: openness(&doors),
        };
        let watched = watched(&doors, service.gauges(), &connections);
        http.serving(Site::new(context.clone(), Arc::clone(&metrics), watched, health), web);
    }
    let (reporter, methods) = methods(service).await?;
    let requests = RequestLimiter::new(patience, Arc::clone(&clock), auth, settings, metrics);
    let (requests, certificate) = (Arc::new(requests), doors.tls.clone());
    let stop = shutdown.clone();
    let port = GrpcPort { connections, requests, methods, certificate, patience, clock, stop };
    let (http, leaving) = (doors.http, Arc::clone(&board));
    let running = port.serve(doors.grpc, async move {
        if let Some(http) = &http {
            http.stopping();
        }
        future::join(close(reporter), leaving.leave()).await;
        // Open until the end.
        http
    });
    Ok(async move {
        tokio::select! {
            error = watch::watch(&context, &rebuild) => Err(error),
            never = background => match never {},
            never = board.watch(&sources) => match never {},
            never = snapshot::watch(&context, &snapshots) => match never {},
            never = leftovers::watch(&context, &left) => match never {},
            _http = running => Ok(()),
            () = shutdown.expired(&*context.clock) => {
                tracing::warn!("stopped before all requests had ended");
                Ok(())
            }
        }
    })
}

/// Follows the changes of an admin, and puts them in force.
fn background(
    doors: &Doors,
    context: &ServerContext,
    gauges: Gauges,
) -> impl Future<Output = Infallible> + Send + use<> {
    let (settings, fast_store) = (context.settings.clone(), doors.fast_store.clone());
    let bounds = live::bound(settings.clone(), gauges.writes, gauges.reads, context.limits);
    let kept = live::keep(settings, context.clone(), fast_store);
    let users = follow(doors.users.clone());
    let (settings, certificate) = (follow(doors.settings.clone()), follow(doors.tls.clone()));
    async move {
        tokio::select! {
            never = users => never,
            never = settings => never,
            never = certificate => never,
            never = bounds => never,
            never = kept => never,
        }
    }
}

/// Who may see datasets by HTTP without a key, as by gRPC.
fn openness(doors: &Doors) -> Openness {
    let asks_clients = doors.tls.as_ref().is_some_and(|tls| tls.now().asks_clients);
    match (asks_clients, doors.without_keys) {
        (true, _) => Openness::Certified,
        (false, true) => Openness::Network,
        (false, false) => Openness::Machine,
    }
}

/// What the HTTP port reports on.
fn watched(doors: &Doors, gauges: Gauges, connections: &ConnectionLimiter) -> Watched {
    let sources = Sources {
        settings: doors.settings.clone(),
        users: doors.users.clone(),
        certificate: doors.tls.clone(),
    };
    let (connections, fast_store) = (connections.clone(), doors.fast_store.clone());
    Watched { gauges, connections, fast_store, sources }
}

/// What the server tells other servers of itself.
fn board_sources(
    doors: &Doors,
    metrics: &Arc<Metrics>,
    gauges: Gauges,
    connections: &ConnectionLimiter,
    health: &Arc<HealthProbe>,
) -> status::Sources {
    let grpc = doors.grpc.local_addr().map(status::shown_address).unwrap_or_default();
    let http = doors.http.as_ref().map(|http| status::shown_address(http.address()));
    status::Sources {
        metrics: Arc::clone(metrics),
        gauges,
        connections: connections.clone(),
        health: Arc::clone(health),
        grpc,
        http: http.unwrap_or_default(),
    }
}

/// All methods of the port: of the service, of its health and of its description.
async fn methods(service: Service) -> Result<(HealthReporter, Routes), Error> {
    let (reporter, health) = tonic_health::server::health_reporter();
    reporter.set_serving::<DieselServer<Service>>().await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
    };
    let indescribable = |error| Error::new(Kind::Internal, "describe", "the service", error);
    let described = reflection().build_v1().map_err(indescribable)?;
    // For older tools.
    let described_before = reflection().build_v1alpha().map_err(indescribable)?;
    // Requests without a key take little memory.
    let health = health.max_decoding_message_size(KEYLESS_BYTES_MAX);
    let described = described.max_decoding_message_size(KEYLESS_BYTES_MAX);
    let described_before = described_before.max_decoding_message_size(KEYLESS_BYTES_MAX);
    let methods = Routes::new(service.into_server())
        .add_service(health)
        .add_service(described)
        .add_service(described_before)
        .prepare();
    Ok((reporter, methods))
}

async fn follow<T: Send + Sync + 'static>(followed: Option<Arc<Followed<T>>>) -> Infallible {
    match followed {
        Some(followed) => followed.follow().await,
        None => future::pending().await,
    }
}

/// Tells watchers of the health that this server serves no more, and ends their streams: a stop waits
/// for requests in flight, and a watch is in flight for ever.
async fn close(mut health: HealthReporter) {
    for service in ["", <DieselServer<Service> as NamedService>::NAME] {
        health.set_service_status(service, ServingStatus::NotServing).await;
        health.clear_service_status(service).await;
    }
}
