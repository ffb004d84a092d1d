//! A running server: `serve(listener, parts, shutdown)` answers until it is told to stop, ends
//! what is in flight within the grace period, and closes the metadata.

use std::time::Duration;

use dl_meta::Stop;
use dl_proto::{DESCRIPTORS, FRAME_BYTES, Kind, SERVER_WINDOW_BYTES, STREAM_WINDOW_BYTES};
use dl_runtime::Shutdown;
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::catalog;
use crate::error::Error;
use crate::guard::GuardLayer;
use crate::identity::{self, Bound};
use crate::mend;
use crate::parts::Parts;
use crate::recover;
use crate::service::Service;

/// Requests of one connection that are worked on at once; more wait in the client.
const STREAMS_PER_CONNECTION: u32 = 128;

/// A client whose host vanished is noticed after this long.
const KEEPALIVE: Duration = Duration::from_secs(20);

/// Puts the stores together before the first request: checks that they belong to each other,
/// ends deletions that were cut off, and rolls the metadata forward when the last stop was not
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
    catalog::finish_deletions(parts).await?;
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

/// Serves requests until `shutdown` is requested and what is in flight has ended, or its grace
/// period has. The metadata is left open.
///
/// # Errors
/// When the listener fails for good.
pub async fn serve(listener: TcpListener, parts: Parts, shutdown: Shutdown) -> Result<(), Error> {
    let (reporter, health) = tonic_health::server::health_reporter();
    let service = Service::new(parts.clone()).into_server();
    reporter.set_serving::<dl_proto::pb::diesel_server::DieselServer<Service>>().await;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .build_v1()
        .map_err(|error| Error::new(Kind::Internal, "describe", "the service", error))?;
    let incoming =
        TcpIncoming::from(listener).with_nodelay(Some(true)).with_keepalive(Some(KEEPALIVE));
    let server = Server::builder()
        .max_frame_size(FRAME_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(SERVER_WINDOW_BYTES)
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .layer(GuardLayer::new(parts.limits.patience))
        .add_service(service)
        .add_service(health)
        .add_service(reflection);
    let stop = shutdown.clone();
    let running =
        server.serve_with_incoming_shutdown(incoming, async move { stop.requested().await });
    tokio::select! {
        never = mend::watch(&parts) => match never {},
        ended = running => {
            ended.map_err(|error| Error::new(Kind::Internal, "serve", "requests", error))
        }
        () = shutdown.expired(&*parts.clock) => {
            tracing::warn!("stopped before all requests had ended");
            Ok(())
        }
    }
}
