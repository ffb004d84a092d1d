//! Health checks and reflection, as used by generic tools.

use anyhow::{Context, Result, ensure};
use dl_tests::scene::Scene;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1alpha as before;

const SERVICE: &str = "diesel.v1.Diesel";

// The stop of the server waits for its client, so both need threads.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_answers_health_and_reflection_requests() -> Result<()> {
    let scene = Scene::new()?;
    let server = scene.start()?;
    let channel = Endpoint::from_shared(format!("http://{}", server.address()))?.connect().await?;

    let request = HealthCheckRequest { service: SERVICE.to_owned() };
    let health = HealthClient::new(channel.clone()).check(request).await?.into_inner();
    ensure!(health.status() == ServingStatus::Serving, "{health:?}");

    let request = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::FileContainingSymbol(SERVICE.to_owned())),
    };
    let mut described = ServerReflectionClient::new(channel.clone())
        .server_reflection_info(tokio_stream::once(request))
        .await?
        .into_inner();
    let answer = described.message().await?.context("no answer")?.message_response;
    let Some(MessageResponse::FileDescriptorResponse(files)) = answer else {
        anyhow::bail!("{SERVICE} is not described: {answer:?}");
    };
    let names_it = |file: &Vec<u8>| file.windows(9).any(|window| window == b"PutChunk\x12");
    ensure!(files.file_descriptor_proto.iter().any(names_it), "PutChunk is not described");

    // Tools may use the older reflection protocol.
    let request = before::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(before::server_reflection_request::MessageRequest::ListServices(
            String::new(),
        )),
    };
    let mut services = before::server_reflection_client::ServerReflectionClient::new(channel)
        .server_reflection_info(tokio_stream::once(request))
        .await?
        .into_inner();
    let answer = services.message().await?.context("no answer")?;
    ensure!(format!("{answer:?}").contains(SERVICE), "{answer:?}");
    server.stop()?;
    Ok(())
}
