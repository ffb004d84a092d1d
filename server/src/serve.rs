//! A running server: what `start(doors, parts, shutdown)` gives answers until it is told to stop, and
//! ends what is in flight within the grace period.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dl_meta::Stop;
use dl_proto::pb::diesel_server::DieselServer;
use dl_proto::{
    DESCRIPTORS, Kind, SERVER_FRAME_BYTES, SERVER_STREAM_WINDOW_BYTES, SERVER_WINDOW_BYTES,
};
use dl_runtime::{Clock, Shutdown};
use dl_store::TierStore;
use futures::{Stream, TryStreamExt, future};
use tokio::net::TcpListener;
use tonic::server::NamedService;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::auth::{Auth, People};
use crate::catalog;
use crate::door::{Door, Stalls};
use crate::error::Error;
use crate::guard::GuardLayer;
use crate::held::HeldLayer;
use crate::http::{HttpPort, Site};
use crate::identity::{self, Bound};
use crate::leftovers;
use crate::live;
use crate::metrics::{Metrics, Sources, Watched};
use crate::parts::Parts;
use crate::rebuild;
use crate::recover;
use crate::service::Service;
use crate::settings::{Live, Settings};
use crate::snapshot;
use crate::source::Followed;
use crate::tls::{Certificate, Line};

/// Requests of one connection that are worked on at once; more wait in the client.
const STREAMS_PER_CONNECTION: u32 = 128;

/// A client whose host vanished is noticed after this long.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Puts the stores together before the first request: checks that they belong to each other,
/// makes deletions certain that were cut off, and rolls the metadata forward when the last stop was not
/// clean. Done once by whoever owns the metadata store.
///
/// # Errors
/// When the stores don't belong together or can't be read.
pub async fn prepare(parts: &Parts, last_stop: Stop) -> Result<(), Error> {
    if identity::bind(parts).await? == Bound::Lost {
        tracing::warn!(
            "the metadata is empty and the chunk store is not: run `dlcmd recover --all`"
        );
        return Ok(());
    }
    catalog::settle_deletions(parts).await?;
    match last_stop {
        Stop::Clean | Stop::Fresh => {}
        Stop::Unclean => {
            tracing::info!("the last stop was not clean: looking for chunks the metadata lacks");
            let adopted = recover::roll_forward(parts).await?;
            tracing::info!(adopted, "metadata rolled forward from the chunk store");
        }
    }
    Ok(())
}

/// Pause after a connection that could not be taken, as when there are no descriptors left.
const PAUSE: Duration = Duration::from_millis(50);

/// Most connections of clients, unless the process may have fewer files open.
const CONNECTIONS_MAX: usize = 4_096;

/// Where a server listens, and to whom.
#[derive(Debug)]
pub struct Doors {
    /// Where it answers gRPC.
    pub grpc: TcpListener,
    /// Where it answers HTTP, if anywhere.
    pub http: Option<HttpPort>,
    /// The certificate for gRPC; none for plain text.
    pub tls: Option<Arc<Certificate>>,
    /// Who may ask; none when everybody may.
    pub users: Option<Arc<Followed<People>>>,
    /// What may change meanwhile; none when nothing may.
    pub settings: Option<Arc<Followed<Live>>>,
    /// Most connections of clients that have asked something.
    pub connections_max: usize,
    /// The store in front of the chunk store, for its counts.
    pub fast_store: Option<Arc<TierStore>>,
}

impl Doors {
    /// gRPC in plain text, for everybody.
    pub fn open(grpc: TcpListener) -> Self {
        let connections_max = CONNECTIONS_MAX;
        let (http, tls, users, settings, fast_store) = (None, None, None, None, None);
        Self { grpc, http, tls, users, settings, connections_max, fast_store }
    }
}

/// Opens the doors: from now on the HTTP port tells how the stores are. What it gives serves requests
/// until `shutdown` is requested and what is in flight has ended, or its grace period has. The metadata
/// is left open.
///
/// # Errors
/// When the listener fails for good.
pub async fn start(
    doors: Doors,
    parts: Parts,
    shutdown: Shutdown,
) -> Result<impl Future<Output = Result<(), Error>> + Send + 'static, Error> {
    let metrics = Arc::new(Metrics::new(Arc::clone(&parts.clock)));
    let parts = metrics.measure(parts);
    let settings = match &doors.settings {
        Some(followed) => Settings::of(Some(&**followed)),
        None => parts.settings.clone(),
    };
    let parts = Parts { settings: settings.clone(), ..parts };
    let auth = Arc::new(Auth::new(doors.users.clone(), Arc::clone(&parts.clock)));
    let (reporter, health) = tonic_health::server::health_reporter();
    let service = Service::new(parts.clone(), metrics.snapshots(), metrics.tasks());
    let (gauges, left) = (service.gauges(), service.leftovers());
    let stalls = Stalls { patience: parts.limits.patience, memory: service.answers() };
    let clock = Arc::clone(&parts.clock);
    let door = Door::new(doors.connections_max, doors.tls.is_some(), stalls, clock);
    let bounds =
        live::bound(settings.clone(), gauges.writes.clone(), gauges.reads.clone(), parts.limits);
    let kept = live::keep(settings.clone(), parts.clone(), doors.fast_store.clone());
    let service = service.into_server();
    reporter.set_serving::<DieselServer<Service>>().await;
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
    };
    let indescribable = |error| Error::new(Kind::Internal, "describe", "the service", error);
    let described = reflection().build_v1().map_err(indescribable)?;
    // Of the version that older tools ask for, and newer ones first.
    let described_before = reflection().build_v1alpha().map_err(indescribable)?;
    let server = Server::builder()
        .max_frame_size(SERVER_FRAME_BYTES)
        .initial_stream_window_size(SERVER_STREAM_WINDOW_BYTES)
        .initial_connection_window_size(SERVER_WINDOW_BYTES)
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .layer(GuardLayer::new(
            parts.limits.patience,
            Arc::clone(&parts.clock),
            auth,
            settings,
            Arc::clone(&metrics),
        ))
        .layer(HeldLayer)
        .add_service(service)
        .add_service(health)
        .add_service(described)
        .add_service(described_before);
    let sources = Sources {
        settings: doors.settings.clone(),
        users: doors.users.clone(),
        certificate: doors.tls.clone(),
    };
    let watched = Watched { gauges, door: door.clone(), fast_store: doors.fast_store, sources };
    if let Some(http) = &doors.http {
        http.serving(Site { parts: parts.clone(), metrics, watched, looks: Mutex::default() });
    }
    let (stop, http) = (shutdown.clone(), doors.http.clone());
    let running = server.serve_with_incoming_shutdown(
        entering(doors.grpc, door, doors.tls.clone(), Arc::clone(&parts.clock)),
        async move {
            stop.requested().await;
            if let Some(http) = http {
                http.stopping();
            }
            close(reporter).await;
        },
    );
    Ok(async move {
        // Open until the end.
        let _http = doors.http;
        tokio::select! {
            error = rebuild::watch(&parts) => Err(error),
            never = follow(doors.users) => match never {},
            never = follow(doors.settings) => match never {},
            never = follow(doors.tls) => match never {},
            never = bounds => match never {},
            never = kept => match never {},
            never = snapshot::watch(&parts) => match never {},
            never = leftovers::watch(&parts, &left) => match never {},
            ended = running => {
                ended.map_err(|error| Error::new(Kind::Internal, "serve", "requests", error))
            }
            () = shutdown.expired(&*parts.clock) => {
                tracing::warn!("stopped before all requests had ended");
                Ok(())
            }
        }
    })
}

/// Connections, as they come through the door.
fn entering(
    listener: TcpListener,
    door: Door,
    certificate: Option<Arc<Certificate>>,
    clock: Arc<dyn Clock>,
) -> impl Stream<Item = io::Result<Line>> + Send + 'static {
    let incoming =
        TcpIncoming::from(listener).with_nodelay(Some(true)).with_keepalive(Some(KEEPALIVE));
    let enter = move |stream| Line::new(door.enter(stream), certificate.as_deref());
    incoming.map_ok(enter).or_else(move |error| {
        let pause = clock.sleep(PAUSE);
        async move {
            tracing::warn!(%error, "a connection can't be taken");
            pause.await;
            Err(error)
        }
    })
}

async fn follow<T: Send + Sync + 'static>(followed: Option<Arc<Followed<T>>>) -> Infallible {
    match followed {
        Some(followed) => followed.follow().await,
        None => future::pending().await,
    }
}

/// Tells those who watch the health of this server that it serves no more, and ends their streams:
/// what is in flight is waited for, and they are in flight for ever.
async fn close(mut health: HealthReporter) {
    for service in ["", <DieselServer<Service> as NamedService>::NAME] {
        health.set_service_status(service, ServingStatus::NotServing).await;
        health.clear_service_status(service).await;
    }
}
