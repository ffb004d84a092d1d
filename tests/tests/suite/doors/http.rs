//! The HTTP port: health, metrics, and the states of a server.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::{DatasetRecord, DatasetState, Datasets, Memory, Stop};
use dl_proto::pb::PutChunkRequest;
use dl_runtime::fault::{CutPoint, Fault, Faults};
use dl_runtime::{SeededRandom, blocking};
use dl_server::{Doors, HttpPort, Limits, ServerContext, prepare};
use dl_store::{CountStore, FaultStore, Kind};
use dl_tests::cluster::{Running, clock, context, in_memory};
use dl_tests::http::{get, sample};
use dl_tests::program::{Process, Server, dl, dlcmd, run, server_command};
use dl_tests::scene::Scene;
use dl_tests::wire::Wire;
use dl_tests::{folder, s3, soon};
use tokio::net::TcpListener;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

/// Time for which missing answers of the stores are tolerated.
const TOLERATED: Duration = Duration::from_secs(10);

/// A server of these parts in this process, with the address of its HTTP port.
async fn serve(context: ServerContext) -> Result<(Running, String)> {
    let http = HttpPort::open(TcpListener::bind("127.0.0.1:0").await?, clock(), None)?;
    let address = http.address().to_string();
    prepare(&context, Stop::Fresh).await?;
    let grpc = TcpListener::bind("127.0.0.1:0").await?;
    let doors = Doors { http: Some(http), ..Doors::open(grpc) };
    Ok((Running::behind(doors, context).await?, address))
}

/// Asks for a path of an HTTP port.
async fn ask(address: &str, path: &'static str) -> Result<(u16, String)> {
    let address = address.to_owned();
    blocking::run(move || get(&address, path)).await?
}

/// Asks for the health once the last answer is forgotten.
async fn health(address: &str) -> Result<(u16, String)> {
    clock().sleep(Duration::from_millis(1_200)).await;
    ask(address, "/healthz").await
}

/// Keeps S-32 and S-69.
#[test]
fn metrics_count_requests_and_show_no_names() -> Result<()> {
    let scene = Scene::new()?;
    let server = scene.start()?;
    folder::write(&scene.src(), "secret-file", "a file")?;
    server.put(scene.src(), "dl://secret-set")?;
    dl(&server, ["cat", "dl://secret-set/secret-file"])?.code(0)?;
    dl(&server, ["cat", "dl://none/a"])?.code(3)?;
    let (status, text) = get(server.http(), "/metrics")?;
    ensure!(status == 200, "{text}");
    let value = |name: &str| sample(server.http(), name);
    for (name, least) in [
        ("diesel_requests_total{method=\"PutChunk\",code=\"OK\"}", 1.0),
        ("diesel_requests_total{method=\"Read\",code=\"OK\"}", 1.0),
        ("diesel_requests_total{method=\"GetDataset\",code=\"NOT_FOUND\"}", 1.0),
        ("diesel_request_seconds_count{method=\"PutChunk\"}", 1.0),
        ("diesel_store_operation_seconds_count{operation=\"create\"}", 2.0),
        ("diesel_store_bytes_total{operation=\"read\"}", 6.0),
        ("diesel_meta_operation_seconds_count{operation=\"append\"}", 1.0),
        ("diesel_read_ranges_total", 1.0),
        ("diesel_received_bytes_total", 100.0),
        ("diesel_memory_budget_bytes{budget=\"write\"}", 1e6),
        ("process_resident_memory_bytes", 1e6),
    ] {
        ensure!(value(name)? >= least, "{name} is {}", value(name)?);
    }
    ensure!(value("diesel_requests_in_flight")? == 0.0, "{text}");
    ensure!(value("diesel_memory_used_bytes{budget=\"read\"}")? == 0.0, "{text}");
    ensure!(!text.contains("secret"), "{text}");
    ensure!(get(server.http(), "/healthz")? == (200, "ok\n".to_owned()), "not well");
    ensure!(get(server.http(), "/none")?.0 == 404, "an unknown page");
    Ok(())
}

/// Keeps S-32.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_failing_or_silent_stores_is_unhealthy() -> Result<()> {
    let faults = Faults::new(Arc::new(SeededRandom::new(1)));
    let store = FaultStore::new(dl_store::memory(), clock(), faults.clone(), CutPoint::new());
    let context = context(Arc::new(store), Arc::new(Memory::new()));
    let (server, address) = serve(context).await?;
    ensure!(health(&address).await?.0 == 200, "not well from the start");
    for (fault, told) in [
        (Fault::Before(Kind::Unavailable), "the chunk store can't be asked: "),
        (Fault::Delay(Duration::from_secs(5)), "the chunk store did not answer within 1s"),
    ] {
        clock().sleep(Duration::from_millis(1_200)).await;
        let began = clock().monotonic();
        faults.script("read", vec![Some(fault); 14]);
        let (mut status, mut text) = ask(&address, "/healthz").await?;
        // A slow bucket is no reason to take the server away from its clients.
        ensure!(status == 200 && text.contains(told), "{status} {text}");
        while status == 200 {
            ensure!(clock().monotonic() - began < TOLERATED * 2, "{text}");
            clock().sleep(Duration::from_millis(500)).await;
            (status, text) = ask(&address, "/healthz").await?;
        }
        let took = clock().monotonic() - began;
        ensure!(took >= TOLERATED && text.starts_with(told), "{took:?}: {status} {text}");
        let until = clock().monotonic() + Duration::from_secs(20);
        while health(&address).await? != (200, "ok\n".to_owned()) {
            ensure!(clock().monotonic() < until, "not well again");
        }
    }
    server.stop().await
}

/// Keeps S-32.
#[tokio::test(flavor = "multi_thread")]
async fn concurrent_health_checks_share_an_answer() -> Result<()> {
    const ASKING: usize = 20;
    let faults = Faults::new(Arc::new(SeededRandom::new(1)));
    let store = FaultStore::new(dl_store::memory(), clock(), faults.clone(), CutPoint::new());
    let (store, counters) = CountStore::new(Arc::new(store));
    let context = context(Arc::new(store), Arc::new(Memory::new()));
    let (server, address) = serve(context).await?;
    faults.script("read", vec![Some(Fault::Delay(Duration::from_secs(5))); ASKING]);
    // The status board of the starting server may have asked; its answer counts for a second.
    clock().sleep(Duration::from_millis(1_100)).await;
    let (before, start) = (counters.counts().reads, clock().monotonic());
    let asking = (0..ASKING).map(|_| ask(&address, "/healthz"));
    for answer in futures::future::join_all(asking).await {
        let (status, text) = answer?;
        ensure!(status == 503 && text.contains("did not answer within 1s"), "{status} {text}");
    }
    let (reads, took) = (counters.counts().reads - before, clock().monotonic() - start);
    // The started server itself reads, too.
    ensure!(reads < 4, "{reads} reads for {ASKING} requests");
    ensure!(took < Duration::from_secs(4), "{took:?}");
    server.stop().await
}

/// Keeps S-32 and S-68.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_with_refused_datasets_is_healthy_and_counts_them() -> Result<()> {
    let meta = Arc::new(Memory::new());
    let context = context(dl_store::memory(), Arc::<Memory>::clone(&meta));
    let (server, address) = serve(context).await?;
    let wire = Wire::connect(server.address()).await?;
    wire.create("served").await?;
    let record = meta.record(wire.create("secret-set").await?).await?.context("a dataset")?;
    for (state, count) in
        [(DatasetState::Live, 0), (DatasetState::Recovering, 1), (DatasetState::Live, 0)]
    {
        meta.put_dataset(&DatasetRecord { state, ..record.clone() }).await?;
        let (status, text) = health(&address).await?;
        ensure!(status == 200 && text.starts_with("ok\n"), "{status} {text}");
        let told = text.contains(&format!("{count}; run `dlcmd recover --all`"));
        ensure!(told == (count > 0) && !text.contains("secret"), "{text}");
        let (_, metrics) = ask(&address, "/metrics").await?;
        let gauge = format!("\ndiesel_recovering_datasets {count}\n");
        ensure!(metrics.contains(&gauge), "{metrics}");
    }
    server.stop().await
}

/// Keeps S-32.
#[tokio::test(flavor = "multi_thread")]
async fn a_starting_or_stopping_server_is_alive_but_unhealthy() -> Result<()> {
    let context = in_memory(Limits::default());
    let http = HttpPort::open(TcpListener::bind("127.0.0.1:0").await?, clock(), None)?;
    let address = http.address().to_string();
    let ask = async |path| ask(&address, path).await;
    let until = async |path, part: &str| -> Result<()> {
        while !ask(path).await?.1.contains(part) {
            clock().sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    };
    http.starting("opening the stores");
    let starting = (503, "starting: opening the stores\n".to_owned());
    ensure!(
        ask("/healthz").await? == starting && ask("/metrics").await? == starting,
        "a starting server"
    );
    ensure!(ask("/livez").await? == (200, "ok\n".to_owned()), "a starting server is alive");
    prepare(&context, Stop::Fresh).await?;
    let grpc = TcpListener::bind("127.0.0.1:0").await?;
    let server = Running::behind(Doors { http: Some(http), ..Doors::open(grpc) }, context).await?;
    ensure!(ask("/healthz").await? == (200, "ok\n".to_owned()), "a serving server is healthy");

    let wire = Wire::connect(server.address()).await?;
    let dataset = wire.create("ds").await?;
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address()))?;
    let mut health = HealthClient::new(endpoint.connect().await?);
    let service = "diesel.v1.Diesel".to_owned();
    let mut watched = health.watch(HealthCheckRequest { service }).await?.into_inner();
    let status = watched.message().await?.context("a status")?.status();
    ensure!(status == ServingStatus::Serving, "{status:?}");
    // A put in flight during the stop.
    let (pieces, sent) = tokio::sync::mpsc::channel(1);
    let dataset = dataset.as_bytes().to_vec().into();
    pieces.send(PutChunkRequest { dataset, length: 9, data: Default::default() }).await?;
    let mut stub = wire.stub();
    let put = dl_runtime::spawn(async move { stub.put_chunk(ReceiverStream::new(sent)).await });
    until("/metrics", "diesel_memory_used_bytes{budget=\"write\"} 5").await?;
    let stopping = dl_runtime::spawn(server.stop());
    let status = watched.message().await?.context("another status")?.status();
    ensure!(status == ServingStatus::NotServing, "{status:?}");
    ensure!(watched.message().await?.is_none(), "the watching ends");
    let (status, text) = ask("/healthz").await?;
    ensure!(status == 503 && text.starts_with("stopping: "), "{status} {text}");
    ensure!(
        ask("/livez").await?.0 == 200 && ask("/metrics").await?.0 == 200,
        "a stopping server is alive"
    );
    drop(pieces);
    ensure!(put.await?.is_err(), "half a chunk");
    // Watchers of the health service do not delay the stop.
    tokio::time::timeout(Duration::from_secs(5), stopping).await???;
    Ok(())
}

/// Keeps S-32.
#[test]
fn a_server_reports_the_wait_for_its_bucket() -> Result<()> {
    let scene = Scene::new()?;
    // A silent bucket. The same port is free at the next address.
    let bucket = std::net::TcpListener::bind("127.0.0.1:0")?;
    let http = format!("127.0.0.2:{}", bucket.local_addr()?.port());
    let mut server = server_command()?;
    server.envs(s3::settings(bucket.local_addr()?)).args(["--listen", "127.0.0.1:0"]);
    server.args(["--http", &http, "--store", "s3://chunks/1", "--data"]).arg(scene.data());
    let _server = Process::start(&mut server)?;
    let starting = (503, "starting: opening the chunk store\n".to_owned());
    soon("the server reports its start", || {
        Ok(get(&http, "/healthz").ok().as_ref() == Some(&starting))
    })?;
    ensure!(get(&http, "/livez")? == (200, "ok\n".to_owned()), "a starting server is alive");
    Ok(())
}

/// Keeps S-12: the default HTTP port is optional.
#[test]
fn a_client_at_the_http_port_is_sent_to_the_grpc_port() -> Result<()> {
    let scene = Scene::new()?;
    let server = scene.start()?;
    let asked = run(dlcmd()?.args(["--server", server.http(), "datasets"]))?.code(5)?;
    ensure!(asked.stderr.contains("--listen"), "{}", asked.stderr);
    Ok(())
}

#[test]
fn a_taken_http_port_stops_a_server_only_if_requested() -> Result<()> {
    let scene = Scene::new()?;
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let refused = scene.fails(1, &["--http", &address])?;
    ensure!(refused.contains(&address), "{refused}");
    // Takes the default port, if free.
    let _usual = std::net::TcpListener::bind("127.0.0.1:7421");
    let mut server = server_command()?;
    server.env_remove("DIESEL_HTTP").args(["--listen", "127.0.0.1:0", "--data"]).arg(scene.data());
    Server::run(server, 1)?.stop().map(drop)
}
