//! Readers that request more than the memory holds, or that never read their answers.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use bytes::Bytes;
use dl_format::DatasetId;
use dl_proto::pb::{self, read_item::Source};
use dl_proto::{
    MESSAGE_BYTES_MAX, ProtobufCodec, ReadItem, ReadRequest, ReadSource, STAT_PATHS_MAX,
};
use dl_runtime::Deadline;
use dl_server::Limits;
use dl_tests::cluster::{Running, clock, in_memory};
use dl_tests::folder;
use dl_tests::program::run;
use dl_tests::scene::Scene;
use dl_tests::wire::{Wire, chunk, new_id};
use tokio::time::timeout;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status, Streaming};

/// The time limit for quick steps.
const MOMENT: Duration = Duration::from_secs(60);

/// A server with little patience and a file `a`; returns the server, its client and the dataset.
pub(super) async fn impatient(limits: Limits, bytes: &[u8]) -> Result<(Running, Wire, DatasetId)> {
    let limits = Limits { patience: Duration::from_millis(600), ..limits };
    let (server, client) = Running::fresh(in_memory(limits)).await?;
    let dataset = client.create("ds").await?;
    client.put(dataset, &chunk(new_id(), dataset, [(&b"a"[..], bytes)])?).await?;
    Ok((server, client, dataset))
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

/// Keeps S-10 and S-16: one file in all requests of a reader, scattered ranges by known places,
/// millions of empty items, and readers that take nothing while others are answered.
#[tokio::test(flavor = "multi_thread")]
async fn heavy_greedy_and_stalled_readers_hold_bounded_memory() -> Result<()> {
    let scene = Scene::new()?;
    let server = scene.start()?;
    fs::create_dir(scene.src())?;
    for (name, length) in [("large", 1 << 30), ("small", 64 << 20)] {
        fs::File::create(scene.src().join(name))?.set_len(length)?;
    }
    server.put(scene.src(), "dl://ds")?;
    let (client, dataset) = Wire::open(server.address(), "ds").await?;
    // 64 TiB in a request of half a MiB.
    let mut answer = ask(&client, dataset, vec![item("large", 0, 0); 65_536]).await?;
    ensure!(take(&mut answer, 64 << 20).await? >= 64 << 20, "the answer ended early");
    server.check_memory("a file, 65,536 times")?;
    drop(answer);

    let listed = client.list(dataset).await?;
    let (_, record) = listed.into_iter().next().context("the file is listed")?;
    let ranges = (0..20_000).map(|n| ReadItem {
        source: ReadSource::File(record),
        offset: (n * 7_919 * 4_096) % (1 << 30),
        length: Some(10),
    });
    let (items, pass_copies, check_headers) = (ranges.collect(), false, false);
    let request = pb::ReadRequest::from(ReadRequest { dataset, items, pass_copies, check_headers });
    let mut answer = ask(&client, dataset, request.items).await?;
    ensure!(take(&mut answer, usize::MAX).await? == 200_000, "the answer ended early");
    server.check_memory("20,000 ranges of one file")?;

    // 2 MiB on the wire, eighty times as much in memory.
    let empty = (0..3).map(|_| ask(&client, dataset, vec![pb::ReadItem::default(); 1_000_000]));
    for asked in timeout(MOMENT, futures::future::join_all(empty)).await? {
        let status = asked.err().context("the request was answered")?;
        ensure!(status.code() == Code::InvalidArgument, "{status}");
    }
    server.check_memory("millions of empty items")?;

    let mut stalled = Vec::new();
    for _ in 0..200 {
        let client = Wire::connect(server.address().parse()?).await?;
        stalled.push(ask(&client, dataset, vec![item("small", 0, 0)]).await?);
    }
    let cat = run(server.dlcmd()?.args(["cat", "dl://ds/small"]))?.code(0)?;
    ensure!(cat.stdout.len() == 64 << 20, "{} bytes", cat.stdout.len());
    server.check_memory("200 readers that take nothing")
}

/// Keeps S-10: reads of small files include the gaps between them.
#[tokio::test(flavor = "multi_thread")]
async fn heavy_readers_of_scattered_small_files_hold_no_gaps() -> Result<()> {
    let scene = Scene::new()?;
    let source = scene.src();
    folder::fill_with(&source, 6_000, |number| vec![b'x'; [1_000, 15_000][number % 2]])?;
    let server = scene.start()?;
    server.put(&source, "dl://ds")?;
    let (_, dataset) = Wire::open(server.address(), "ds").await?;
    let mut answers = Vec::new();
    for _ in 0..20 {
        let client = Wire::connect(server.address().parse()?).await?;
        let path = |n| format!("{:04}/{:07}", n / 500, 2 * n);
        let items = (0..3_000).map(|n| item(&path(n), 0, 0)).collect();
        // More than the connection buffers.
        answers.push(ask(&client, dataset, items).await?);
    }
    for answer in &mut answers {
        ensure!(take(answer, usize::MAX).await? == 3_000_000, "the answer ended early");
    }
    server.check_memory("small files with gaps")
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
#[test]
fn two_readers_of_a_large_file_get_on_with_little_memory_heavy() -> Result<()> {
    let scene = Scene::new()?;
    let server = scene.start_with(&["--read-memory", "4MiB"])?;
    fs::File::create(scene.src())?.set_len(100 << 20)?;
    server.put(scene.src(), "dl://ds")?;
    let cat = || run(server.dlcmd()?.args(["cat", "dl://ds/src"]))?.code(0);
    std::thread::scope(|scope| {
        let cats = [scope.spawn(cat), scope.spawn(cat)];
        cats.into_iter().try_for_each(|one| {
            let length = one.join().map_err(|_| anyhow!("a cat panicked"))??.stdout.len();
            ensure!(length == 100 << 20, "{length} bytes");
            Ok(())
        })
    })?;
    server.check_memory("two readers with 4 MiB")
}

/// Keeps S-10 and S-16.
#[tokio::test(flavor = "multi_thread")]
async fn heavy_two_hundred_stalled_listings_hold_bounded_memory() -> Result<()> {
    let scene = Scene::new()?;
    let source = scene.src();
    for number in 0..4_000 {
        folder::write(&source, format!("{}{number:05}", "m".repeat(200)), "x")?;
    }
    let server = scene.start()?;
    let deep = vec!["d".repeat(255); 12].join("/");
    server.put(&source, format!("dl://ds/{deep}"))?;
    let (_, dataset) = Wire::open(server.address(), "ds").await?;
    let mut stuck = Vec::new();
    for _ in 0..200 {
        let client = Wire::connect(server.address().parse()?).await?;
        let dataset = Bytes::copy_from_slice(dataset.as_bytes());
        let request = pb::ListRequest { dataset, recursive: true, ..Default::default() };
        stuck.push(client.stub().list(request).await?);
    }
    let listed = run(server.dlcmd()?.args(["ls", "-R", "dl://ds"]))?.code(0)?.text();
    ensure!(listed.lines().count() == 4_000, "{} lines", listed.lines().count());
    server.check_memory("200 listings that nobody takes")
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
async fn heavy_untaken_lookups_hold_bounded_memory() -> Result<()> {
    let (_scene, server) = Scene::with_a_file()?;
    let address = server.address().parse()?;
    let (_, dataset) = Wire::open(server.address(), "ds").await?;
    let times = std::iter::repeat_n(STAT_PATHS_MAX, 60).chain(std::iter::repeat_n(8_192, 200));
    let asked: Vec<_> =
        times.map(|times| dl_runtime::spawn(look_up(address, dataset, times))).collect();
    // Without a limit, the server would answer all lookups in this time.
    clock().sleep(Duration::from_secs(8)).await;
    server.check_memory("lookups that nobody takes")?;
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
