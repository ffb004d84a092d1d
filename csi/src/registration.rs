//! The registration with the kubelet, which looks for sockets of drivers in a folder.
//!
//! Must hold: the kubelet is told the path at which it finds the driver.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::NAME;
use crate::registration_pb::registration_server::Registration;
use crate::registration_pb::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use crate::settings::Driver;

/// The versions of CSI that the driver speaks.
const VERSIONS: [&str; 1] = ["1.0.0"];

/// Answers the kubelet.
#[derive(Debug)]
pub(crate) struct RegistrationService(pub(crate) Arc<Driver>);

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: NAME.to_owned(),
            endpoint: self.0.endpoint.display().to_string(),
            supported_versions: VERSIONS.map(str::to_owned).into(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let RegistrationStatus { plugin_registered, error } = request.into_inner();
        if plugin_registered {
            tracing::info!("the kubelet has registered the driver");
        } else {
            tracing::error!(error, "the kubelet refuses the driver");
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
