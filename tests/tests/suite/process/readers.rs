//! Readers that request more than the memory holds, or that never read their answers.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use dl_format::DatasetId;
use dl_meta::{Memory, Stop};
use dl_proto::pb::{self, read_item::Source};
use dl_proto::{
    MESSAGE_BYTES_MAX, ProtobufCodec, ReadItem, ReadRequest, ReadSource, STAT_PATHS_MAX,
};
use dl_runtime::Deadline;
use dl_server::{Limits, Parts, prepare};
use dl_tests::cluster::{Running, clock, parts};
use dl_tests::program::{Server, run};
use dl_tests::wire::{Wire, chunk};
use dl_tests::{folder, tell};
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status, Streaming};

/// Half of the memory limit: these readers are alone.
const MOST: u64 = 128 << 20;

/// The time limit for quick steps.
const MOMENT: Duration = Duration::from_secs(60);

/// A server with little patience and a file `a`; returns the server, its client and the dataset.
pub(super) async fn impatient(limits: Limits, bytes: &[u8]) -> Result<(Running, Wire, DatasetId)> {
    let store = dl_store::open("memory:").await?;
    let limits = Limits { patience: Duration::from_millis(600), ..limits };
    let parts = Parts { limits, ..parts(store, Arc::new(Memory::new())) };
    prepare(&parts, Stop::Fresh).await?;
    let server = Running::start(parts.clone()).await?;
    let client = Wire::connect(server.address()).await?;
    let dataset = client.create("ds").await?;
    let id = dl_format::ChunkIdMaker::new([7; 9]).next(parts.clock.now());
    client.put(dataset, &chunk(id, dataset, [(&b"a"[..], bytes)])?).await?;
    Ok((server, client, dataset))
}

/// Puts a sparse file; returns the client and the dataset.
async fn put(server: &Server, scene: &Path, length: u64) -> Result<(Wire, DatasetId)> {
    let file = scene.join("large");
    fs::File::create(&file)?.set_len(length)?;
    run(server.dlcmd()?.arg("put").arg(&file).arg("dl://ds"))?.code(0)?;
    let client = Wire::connect(server.address().parse()?).await?;
    let dataset = client.dataset("ds").await?.context("the dataset exists")?;
    Ok((client, dataset))
}

fn item(path: &str, offset: u64, length: u64) -> pb::ReadItem {
    let source = Some(Source::Path(Bytes::copy_from_slice(path.as_bytes())));
    pb::ReadItem { source, offset, length }
}

/// Starts a read; the answer comes on demand.
async fn ask(
    client: &Wire,
    dataset: DatasetId,
    items: Vec<pb::ReadItem>,
) -> Result<Streaming<pb::ReadReply>, Status> {
    let dataset = Bytes::copy_from_slice(dataset.as_bytes());
    Ok(client
        .stub()
        .read(pb::ReadRequest { dataset, items, ..Default::default() })
        .await?
        .into_inner())
}

/// Reads at most `most` bytes of an answer; all pieces must succeed.
async fn take(answer: &mut Streaming<pb::ReadReply>, most: usize) -> Result<usize> {
    let mut came = 0;
    while came < most {
        let next = timeout(MOMENT, answer.message()).await.context("nothing comes")?;
        let Some(reply) = next? else { break };
        for piece in reply.pieces {
            ensure!(piece.status() == pb::ItemStatus::Ok, "{}", piece.problem);
            came += piece.data.len();
        }
    }
    Ok(came)
}

fn check(what: &str, server: &mut Server) -> Result<()> {
    let peak = server.process().peak_memory().context("the server runs")?;
    tell(format_args!("{what}: at most {} MiB", peak >> 20));
    ensure!(peak < MOST, "{what} took {} MiB", peak >> 20);
    Ok(())
}

/// Keeps S-10 and S-16: 64 TiB in a request of half a MiB.
#[tokio::test(flavor = "multi_thread")]
async fn heavy_a_file_requested_many_times_takes_no_memory() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let mut server = Server::start(&scene.path().join("data"))?;
    let (client, dataset) = put(&server, scene.path(), 1 << 30).await?;
    let items = vec![item("large", 0, 0); 65_536];
    let mut answer = ask(&client, dataset, items).await?;
    ensure!(take(&mut answer, 64 << 20).await? >= 64 << 20, "the answer ended early");
    check("a file, 65,536 times", &mut server)?;
    drop(answer);
    run(server.dlcmd()?.args(["stat", "dl://ds/large"]))?.code(0)?;
    Ok(())
}

/// Keeps S-10 and S-16: 2 MiB on the wire, eighty times as much in memory.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_many_empty_items_take_no_memory_heavy() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let mut server = Server::start(&scene.path().join("data"))?;
    let mut asked = Vec::new();
    for _ in 0..3 {
        let mut stub = Wire::connect(server.address().parse()?).await?.stub();
        let items = vec![pb::ReadItem::default(); 1_000_000];
        let dataset = Bytes::from(vec![7; 16]);
        let request = pb::ReadRequest { dataset, items, ..Default::default() };
        asked.push(dl_runtime::spawn(async move { stub.read(request).await.map(drop) }));
    }
    for asked in asked {
        let status = timeout(MOMENT, asked).await??.err().context("the request was answered")?;
        ensure!(status.code() == Code::InvalidArgument, "{status}");
    }
    check("millions of empty items", &mut server)
}

/// Keeps S-10 and S-16: scattered ranges of a large file, by known places.
#[tokio::test(flavor = "multi_thread")]
async fn heavy_a_large_header_is_not_held_for_each_range() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let mut server = Server::start(&scene.path().join("data"))?;
    let (client, dataset) = put(&server, scene.path(), 1 << 30).await?;
    let (_, record) = client.list(dataset).await?.pop().context("the file is listed")?;
    let of = |n: u64| (n * 7_919 * 4_096) % (1 << 30);
    let ranges = (0..20_000).map(|n| ReadItem {
        source: ReadSource::File(record),
        offset: of(n),
        length: Some(10),
    });
    let request = pb::ReadRequest::from(ReadRequest {
        dataset,
        items: ranges.collect(),
        pass_copies: false,
        check_headers: false,
    });
    let mut answer = ask(&client, dataset, request.items).await?;
    ensure!(take(&mut answer, usize::MAX).await? == 200_000, "the answer ended early");
    check("20,000 ranges of one file", &mut server)
}

/// Keeps S-10: reads of small files include the gaps between them.
#[tokio::test(flavor = "multi_thread")]
async fn heavy_readers_of_scattered_small_files_hold_no_gaps() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let source = scene.path().join("src");
    for number in 0..6_000 {
        let length = if number % 2 == 0 { 1_000 } else { 15_000 };
        folder::write(&source, format!("{number:05}"), "x".repeat(length))?;
    }
    let mut server = Server::start(&scene.path().join("data"))?;
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://ds"))?.code(0)?;
    let client = Wire::connect(server.address().parse()?).await?;
    let dataset = client.dataset("ds").await?.context("the dataset exists")?;
    let mut answers = Vec::new();
    for _ in 0..20 {
        let client = Wire::connect(server.address().parse()?).await?;
        let items = (0..3_000).map(|n| item(&format!("{:05}", 2 * n), 0, 0)).collect();
        // More than the connection buffers.
        answers.push(ask(&client, dataset, items).await?);
    }
    for answer in &mut answers {
        ensure!(take(answer, usize::MAX).await? == 3_000_000, "the answer ended early");
    }
    check("small files with gaps", &mut server)
}

/// Keeps S-10 and S-16: waiting readers are answered before the stalled readers are given up.
#[tokio::test(flavor = "multi_thread")]
async fn heavy_two_hundred_stalled_readers_hold_bounded_memory() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let mut server = Server::start(&scene.path().join("data"))?;
    let (_, dataset) = put(&server, scene.path(), 64 << 20).await?;
    let address = server.address().parse()?;
    let mut answers = Vec::new();
    for _ in 0..200 {
        let client = Wire::connect(address).await?;
        answers.push(ask(&client, dataset, vec![item("large", 0, 0)]).await?);
    }
    let cat = run(server.dlcmd()?.args(["cat", "dl://ds/large"]))?.code(0)?;
    ensure!(cat.stdout.len() == 64 << 20, "{} bytes", cat.stdout.len());
    check("200 readers that take nothing", &mut server)
}

/// Keeps S-16: the memory of a closed reader serves the next reader.
#[tokio::test(flavor = "multi_thread")]
async fn stalled_readers_are_cut_off_for_memory() -> Result<()> {
    let bytes = vec![7; 600_000];
    let limits = Limits { read_bytes: 4 << 20, ..Limits::default() };
    let (server, honest, dataset) = impatient(limits, &bytes).await?;
    let mut stuck = Vec::new();
    for _ in 0..8 {
        let client = Wire::connect(server.address()).await?;
        let items = vec![item("a", 0, 0); 100];
        stuck.push(ask(&client, dataset, items).await);
    }
    let mut tries = 0;
    loop {
        let read = async {
            let mut answer = ask(&honest, dataset, vec![item("a", 0, 0)]).await?;
            let mut came = 0;
            while let Some(reply) = answer.message().await? {
                came += reply.pieces.iter().map(|piece| piece.data.len()).sum::<usize>();
            }
            Ok::<_, Status>(came)
        };
        match timeout(MOMENT, read).await.context("nothing comes")? {
            Ok(came) => break ensure!(came == bytes.len(), "{came} bytes"),
            Err(status) => ensure!(status.code() == Code::Unavailable, "{status}"),
        }
        tries += 1;
        ensure!(tries < 20, "an honest reader never gets its turn");
    }
    Ok(())
}

/// Keeps S-10: with the smallest permitted read budget.
#[tokio::test(flavor = "multi_thread")]
async fn two_readers_of_a_large_file_get_on_with_little_memory_heavy() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let flags = ["--read-memory", "4MiB"];
    let mut server = Server::start_with(&scene.path().join("data"), "127.0.0.1:0", &flags)?;
    put(&server, scene.path(), 100 << 20).await?;
    let mut cats = [server.dlcmd()?, server.dlcmd()?];
    std::thread::scope(|scope| -> Result<()> {
        let running: Vec<_> = cats
            .iter_mut()
            .map(|cat| scope.spawn(|| run(cat.args(["cat", "dl://ds/large"]))))
            .collect();
        for cat in running {
            let ended = cat.join().map_err(|_| anyhow::anyhow!("a cat panicked"))??.code(0)?;
            ensure!(ended.stdout.len() == 100 << 20, "{} bytes", ended.stdout.len());
        }
        Ok(())
    })?;
    check("two readers with 4 MiB", &mut server)
}

/// Keeps S-10 and S-16.
#[tokio::test(flavor = "multi_thread")]
async fn heavy_two_hundred_stalled_listings_hold_bounded_memory() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let source = scene.path().join("src");
    for number in 0..4_000 {
        folder::write(&source, format!("{}{number:05}", "m".repeat(200)), "x")?;
    }
    let mut server = Server::start(&scene.path().join("data"))?;
    let deep = vec!["d".repeat(255); 12].join("/");
    run(server.dlcmd()?.arg("put").arg(&source).arg(format!("dl://ds/{deep}")))?.code(0)?;
    let client = Wire::connect(server.address().parse()?).await?;
    let dataset = client.dataset("ds").await?.context("the dataset exists")?;
    let mut stuck = Vec::new();
    for _ in 0..200 {
        let client = Wire::connect(server.address().parse()?).await?;
        let dataset = Bytes::copy_from_slice(dataset.as_bytes());
        let request = pb::ListRequest { dataset, recursive: true, ..Default::default() };
        stuck.push(client.stub().list(request).await?);
    }
    let listed = run(server.dlcmd()?.args(["ls", "-R", "dl://ds"]))?.code(0)?.text();
    ensure!(listed.lines().count() == 4_000, "{} lines", listed.lines().count());
    check("200 listings that nobody takes", &mut server)
}

/// Looks a path up many times on a new connection; the answer comes on demand.
async fn look_up(
    address: SocketAddr,
    dataset: DatasetId,
    times: usize,
) -> Result<Streaming<pb::StatReply>> {
    let channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
    let mut client = Grpc::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX);
    client.ready().await?;
    let dataset = Bytes::copy_from_slice(dataset.as_bytes());
    let request = pb::StatRequest { dataset, paths: vec![Bytes::from_static(b"a"); times] };
    let path = PathAndQuery::from_static("/diesel.v1.Diesel/Stat");
    let codec = ProtobufCodec::<pb::StatRequest, pb::StatReply>::default();
    Ok(client.server_streaming(Request::new(request), path, codec).await?.into_inner())
}

/// Keeps S-10 and S-16: with the most paths per request, and with libdiesel's number of paths.
#[tokio::test(flavor = "multi_thread")]
async fn heavy_lookups_whose_answers_nobody_takes_hold_bounded_memory() -> Result<()> {
    let scene = tempfile::tempdir()?;
    folder::write(scene.path(), "src/a", "a file")?;
    let mut server = Server::start(&scene.path().join("data"))?;
    run(server.dlcmd()?.arg("put").arg(scene.path().join("src")).arg("dl://ds"))?.code(0)?;
    let address = server.address().parse()?;
    let dataset =
        Wire::connect(address).await?.dataset("ds").await?.context("the dataset exists")?;
    let times = std::iter::repeat_n(STAT_PATHS_MAX, 60).chain(std::iter::repeat_n(8_192, 200));
    let asked: Vec<_> =
        times.map(|times| dl_runtime::spawn(look_up(address, dataset, times))).collect();
    // Without a limit, the server would answer all lookups in this time.
    clock().sleep(Duration::from_secs(8)).await;
    check("lookups that nobody takes", &mut server)?;
    let mut answered = 0;
    for asked in asked.into_iter().filter(|asked| asked.is_finished()) {
        answered += usize::from(asked.await?.is_ok());
    }
    ensure!(answered > 0, "none is answered");
    Ok(())
}

/// Keeps S-16.
#[tokio::test(flavor = "multi_thread")]
async fn stalled_lookups_are_cut_off_for_waiting_requests() -> Result<()> {
    let (server, _honest, dataset) = impatient(Limits::default(), b"a file").await?;
    let address = server.address();
    let stuck =
        futures::future::join_all((0..8).map(|_| look_up(address, dataset, STAT_PATHS_MAX)));
    let stuck = stuck.await;
    let answered = stuck.iter().filter(|stuck| stuck.is_ok()).count();
    // On a busy machine the first lookup may be cut off before the last request.
    ensure!((1..8).contains(&answered), "{answered} answers are held");
    let deadline = Deadline::after(&*clock(), MOMENT);
    loop {
        let answer = timeout(MOMENT, look_up(address, dataset, 1_000)).await;
        let answer = match answer.context("nothing comes")? {
            Ok(mut answer) => answer.message().await,
            Err(error) => Err(error.downcast::<Status>()?),
        };
        match answer {
            Ok(reply) => {
                let items = reply.context("an answer")?.items;
                break ensure!(items.len() == 1_000, "{} items", items.len());
            }
            Err(status) => ensure!(status.code() == Code::Unavailable, "{status}"),
        }
        ensure!(
            !deadline.remaining(&*clock()).is_zero(),
            "the waiting request never gets its turn"
        );
    }
    Ok(())
}
