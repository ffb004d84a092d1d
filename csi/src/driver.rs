//! The driver: answers the kubelet on Unix sockets.
//!
//! Must hold: the driver keeps no state but its folder, so that it can be killed and replaced.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use dl_runtime::{Shutdown, blocking};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Endpoint, Server};
use tonic::{Request, Response, Status};

use crate::NAME;
use crate::holder::greet_holder;
use crate::launcher::greet_launcher;
use crate::node::NodeService;
use crate::pb;
use crate::pb::identity_client::IdentityClient;
use crate::pb::identity_server::{Identity, IdentityServer};
use crate::pb::node_server::NodeServer;
use crate::registration::RegistrationService;
use crate::registration_pb::registration_server::RegistrationServer;
use crate::sessions::if_there;
use crate::settings::Driver;

/// Time for an answer to a probe.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Serves the kubelet until a stop is requested.
///
/// # Errors
/// Errors of the sockets and of the folder.
pub async fn serve(driver: Driver, shutdown: Shutdown) -> io::Result<()> {
    let driver = Arc::new(driver);
    let node = NodeService::new(Arc::clone(&driver));
    let tidying = node.clone();
    blocking::run(move || tidying.tidy()).await.map_err(io::Error::other)??;
    // For the holder, which has no rights and may have begun before.
    for socket in [&driver.holder, &driver.launcher] {
        give_folder(socket)?;
    }
    let identity = IdentityServer::new(IdentityService(Arc::clone(&driver)));
    let server = Server::builder().add_service(identity).add_service(NodeServer::new(node));
    let stop = shutdown.clone();
    let listening = listen(&driver.endpoint)?;
    let csi = server.serve_with_incoming_shutdown(listening, async move { stop.requested().await });
    let Some(registration) = driver.registration.clone() else {
        return csi.await.map_err(io::Error::other);
    };
    let registered = RegistrationServer::new(RegistrationService(Arc::clone(&driver)));
    let listening = listen(&registration)?;
    let registered = Server::builder()
        .add_service(registered)
        .serve_with_incoming_shutdown(listening, async move { shutdown.requested().await });
    let ended = tokio::try_join!(csi, registered);
    // The kubelet then knows that there is no driver.
    if_there(fs::remove_file(&registration))?;
    ended.map(drop).map_err(io::Error::other)
}
fn listen(path: &Path) -> io::Result<UnixListenerStream> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    if_there(fs::remove_file(path))?;
    Ok(UnixListenerStream::new(UnixListener::bind(path)?))
}

/// The user of the holder and of the servers, as in the image.
const USER: u32 = 65_532;

/// Gives the folder of a socket to the holder, unless the driver has no such rights.
fn give_folder(socket: &Path) -> io::Result<()> {
    let Some(folder) = socket.parent() else { return Ok(()) };
    fs::create_dir_all(folder)?;
    if rustix::process::geteuid().is_root() && fs::read_dir(folder)?.next().is_none() {
        std::os::unix::fs::chown(folder, Some(USER), Some(USER))?;
    }
    Ok(())
}

#[derive(Debug)]
struct IdentityService(Arc<Driver>);

#[tonic::async_trait]
impl Identity for IdentityService {
    async fn get_plugin_info(
        &self,
        _: Request<pb::GetPluginInfoRequest>,
    ) -> Result<Response<pb::GetPluginInfoResponse>, Status> {
        Ok(Response::new(pb::GetPluginInfoResponse {
            name: NAME.to_owned(),
            vendor_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..pb::GetPluginInfoResponse::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<pb::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<pb::GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(pb::GetPluginCapabilitiesResponse {}))
    }

    async fn probe(
        &self,
        _: Request<pb::ProbeRequest>,
    ) -> Result<Response<pb::ProbeResponse>, Status> {
        let driver = Arc::clone(&self.0);
        let greeted = blocking::run(move || {
            greet_holder(&driver.holder).and_then(|()| greet_launcher(&driver.launcher))
        });
        let greeted = greeted.await.map_err(|why| Status::internal(why.to_string()))?;
        if let Err(why) = &greeted {
            tracing::info!(%why, "the holder or the servers are away");
        }
        Ok(Response::new(pb::ProbeResponse { ready: Some(greeted.is_ok()) }))
    }
}

/// Asks a driver whether it is ready, or only whether it lives.
///
/// # Errors
/// For a driver that does not answer.
pub async fn probe(endpoint: &Path, is_about_life: bool) -> io::Result<bool> {
    let address = format!("unix://{}", endpoint.display());
    let channel = Endpoint::from_shared(address).map_err(io::Error::other)?;
    let channel = channel.timeout(TIMEOUT).connect().await.map_err(io::Error::other)?;
    let mut driver = IdentityClient::new(channel);
    if is_about_life {
        driver.get_plugin_info(pb::GetPluginInfoRequest {}).await.map_err(io::Error::other)?;
        return Ok(true);
    }
    let answer = driver.probe(pb::ProbeRequest {}).await;
    Ok(answer.map_err(io::Error::other)?.into_inner().ready.unwrap_or_default())
}
