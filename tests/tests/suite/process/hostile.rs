//! Invalid requests: the server refuses each and serves all other clients.

use std::fmt::Display;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use dl_format::{ChunkIdMaker, DatasetId};
use dl_proto::pb;
use dl_server::Limits;
use dl_tests::cluster::{Running, clock, in_memory};
use dl_tests::dice::Dice;
use dl_tests::program::dl;
use dl_tests::rounds;
use dl_tests::scene::{Scene, check_well};
use dl_tests::wire::{Wire, chunk, new_id};
use prost::Message;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

/// A chunk size that takes all the memory for writes.
const LARGE: u32 = 64 << 20;

/// The patience of servers in tests without a wait.
const USUAL: Duration = Duration::from_secs(30);

/// Encodes messages as raw bytes.
#[derive(Debug, Clone, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put_slice(buffer, &item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let length = bytes::Buf::remaining(buffer);
        Ok(Some(bytes::Buf::copy_to_bytes(buffer, length)))
    }
}

const METHODS: [&str; 14] = [
    "CreateDataset",
    "GetDataset",
    "ListDatasets",
    "DeleteDataset",
    PUT_CHUNK,
    "Delete",
    "Read",
    "Stat",
    "GetChunks",
    "List",
    "GetSnapshot",
    "Recover",
    "Purge",
    "Verify",
];

const PUT_CHUNK: &str = "PutChunk";

async fn raw(address: impl Display) -> Result<Grpc<Channel>> {
    Ok(Grpc::new(Endpoint::from_shared(format!("http://{address}"))?.connect().await?))
}

/// Sends messages, reads the whole answer and returns its status.
async fn ask(stub: &mut Grpc<Channel>, method: &str, messages: Vec<Bytes>) -> Result<Code> {
    let path = format!("/diesel.v1.Diesel/{method}").parse()?;
    stub.ready().await?;
    let request = Request::new(tokio_stream::iter(messages));
    let mut answer = match stub.streaming(request, path, Raw).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return Ok(status.code()),
    };
    loop {
        match answer.message().await {
            Ok(Some(_)) => {}
            Ok(None) => return Ok(Code::Ok),
            Err(status) => return Ok(status.code()),
        }
    }
}

/// Keeps S-16.
#[test]
fn garbage_on_the_port_harms_nobody() -> Result<()> {
    let (_scene, server) = Scene::with_a_file()?;
    let address: SocketAddr = server.address().parse()?;
    let dice = Dice::new(1);
    let preface: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let mut open = Vec::new();
    for round in 0..rounds(200, 2_000) {
        let mut stream = TcpStream::connect(address)?;
        let garbage = match round % 4 {
            0 => dice.bytes(1 + dice.below(2_000)),
            1 => b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
            2 => [preface, &dice.bytes(dice.below(500))].concat(),
            // A frame header that announces 16 MiB, without data.
            _ => [preface, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat(),
        };
        // The server may have closed the connection.
        let _ = stream.write_all(&garbage);
        if dice.once_in(2) {
            open.push(stream);
        } else {
            stream.set_read_timeout(Some(Duration::from_millis(1)))?;
            let _ = stream.read(&mut [0; 64]);
        }
    }
    check_well(&server)?;
    drop(open);
    server.stop().map(drop)
}

/// A tombstone of maximal size, for chunks that never existed.
fn large_delete(dataset: &Bytes, ids: &mut ChunkIdMaker, dice: &Dice) -> pb::DeleteRequest {
    let deletion = |_| {
        let (chunk, entries) = (dice.bytes(16).into(), Bytes::from_static(&[1]));
        pb::ChunkDeletions { chunk, entries }
    };
    let tombstone = Bytes::copy_from_slice(ids.next(clock().now()).as_bytes());
    let deletions = (0..24_000).map(deletion).collect();
    pb::DeleteRequest { dataset: dataset.clone(), tombstone, deletions }
}

/// Keeps S-16: the memory of a request is held until its commit ends, with or without a client.
#[test]
fn abandoned_large_deletes_hold_bounded_memory_heavy() -> Result<()> {
    let (_scene, server) = Scene::with_a_file()?;
    Runtime::new()?.block_on(async {
        let client = Wire::connect(server.address().parse()?).await?;
        let dataset = client.dataset("ds").await?.context("the dataset exists")?;
        let dataset = Bytes::copy_from_slice(dataset.as_bytes());
        let (mut ids, dice) = (ChunkIdMaker::new([3; 9]), Dice::new(3));
        for _ in 0..rounds(4, 40) {
            let deletes = (0..32).map(|_| {
                let (mut client, request) =
                    (client.stub(), large_delete(&dataset, &mut ids, &dice));
                async move {
                    let answer = client.delete(request);
                    tokio::time::timeout(Duration::from_millis(100), answer).await.is_ok()
                }
            });
            let deletes: Vec<_> = deletes.collect();
            futures::future::join_all(deletes).await;
        }
        anyhow::Ok(())
    })?;
    check_well(&server)?;
    server.stop().map(drop)
}

/// Keeps S-16.
#[test]
fn each_invalid_message_is_refused() -> Result<()> {
    let (_scene, server) = Scene::with_a_file()?;
    Runtime::new()?.block_on(async {
        let mut stub = raw(server.address()).await?;
        let dice = Dice::new(2);
        let mut refused = 0;
        for round in 0..rounds(1_000, 50_000) {
            let method = METHODS[round % METHODS.len()];
            let messages: Vec<_> = (0..1 + dice.below(3)).map(|_| nonsense(&dice)).collect();
            let what = format!("{method} {messages:?}");
            let code = ask(&mut stub, method, messages).await?;
            ensure!(![Code::Unknown, Code::DataLoss].contains(&code), "{what}: {code:?}");
            refused += usize::from(code == Code::InvalidArgument);
        }
        ensure!(refused > 0, "no message was refused for its contents");
        anyhow::Ok(())
    })?;
    ensure!(dl(&server, ["cat", "dl://ds/a"])?.code(0)?.text() == "a file", "cat");
    ensure!(dl(&server, ["ls", "-R", "dl://ds"])?.code(0)?.text() == "a\n", "ls");
    server.check_memory("server")?;
    server.stop().map(drop)
}

/// Keeps S-16.
#[tokio::test(flavor = "multi_thread")]
async fn requests_with_a_single_error_are_refused_for_the_error() -> Result<()> {
    let (server, client) = patient(USUAL).await?;
    let id = client.create("ds").await?;
    let dataset = Bytes::copy_from_slice(id.as_bytes());
    let (short, up) = (dataset.slice(1..), Bytes::from_static(b"../a"));
    let create = |name: &str, chunk_size, alignment| {
        pb::CreateDatasetRequest { name: name.to_owned(), chunk_size, alignment }.encode_to_vec()
    };
    let delete_dataset = pb::DeleteDatasetRequest { name: "ds".to_owned(), id: short.clone() };
    let put = |dataset: &Bytes, length| {
        let (dataset, data) = (dataset.clone(), Bytes::new());
        pb::PutChunkRequest { dataset, length, data }.encode_to_vec()
    };
    let delete = pb::DeleteRequest {
        dataset: dataset.clone(),
        tombstone: dataset.clone(),
        deletions: Vec::new(),
    };
    let read = |source| {
        let items = vec![pb::ReadItem { source, ..pb::ReadItem::default() }];
        pb::ReadRequest { dataset: dataset.clone(), items, ..Default::default() }.encode_to_vec()
    };
    let by_path = pb::read_item::Source::Path(up.clone());
    let stat = pb::StatRequest { dataset: dataset.clone(), paths: vec![up.clone()] };
    let list = pb::ListRequest { dataset: dataset.clone(), dir: up, ..pb::ListRequest::default() };
    let snapshot = pb::GetSnapshotRequest {
        dataset: dataset.clone(),
        version: short.clone(),
        ..pb::GetSnapshotRequest::default()
    };
    let chunks = |count, length| {
        let range = pb::ChunkRange { chunk: dataset.clone(), offset: 1, length };
        let (dataset, ranges) = (dataset.clone(), vec![range; count]);
        pb::GetChunksRequest { dataset, ranges, pass_copies: false }.encode_to_vec()
    };
    let recover = pb::RecoverRequest { dataset: "a/b".to_owned(), since: 0 };
    let purge =
        pb::PurgeRequest { dataset: "a/b".to_owned(), grace: 0, dry_run: false, force: false };
    let broken = [
        ("CreateDataset", create("a/b", 0, 0)),
        ("CreateDataset", create("new", 1, 0)),
        ("CreateDataset", create("new", 0, 3)),
        ("GetDataset", pb::GetDatasetRequest::default().encode_to_vec()),
        ("DeleteDataset", delete_dataset.encode_to_vec()),
        (PUT_CHUNK, put(&dataset, 0)),
        (PUT_CHUNK, put(&short, 7)),
        (PUT_CHUNK, put(&dataset, (1 << 20) + 1)),
        (PUT_CHUNK, put(&dataset, u64::MAX)),
        ("Delete", delete.encode_to_vec()),
        ("Read", read(None)),
        ("Read", read(Some(by_path))),
        ("Stat", stat.encode_to_vec()),
        ("List", list.encode_to_vec()),
        ("GetChunks", chunks(0, 1)),
        ("GetChunks", chunks(65, 1)),
        ("GetChunks", chunks(1, 0)),
        ("GetChunks", chunks(1, u32::MAX)),
        ("GetSnapshot", snapshot.encode_to_vec()),
        ("Recover", recover.encode_to_vec()),
        ("Purge", purge.encode_to_vec()),
        ("Verify", pb::VerifyRequest::default().encode_to_vec()),
    ];
    let mut stub = raw(server.address()).await?;
    for (method, message) in broken {
        let code = ask(&mut stub, method, vec![message.into()]).await?;
        ensure!(code == Code::InvalidArgument, "{method}: {code:?}");
    }
    for method in METHODS {
        // Its first field is longer than the message.
        let code = ask(&mut stub, method, vec![Bytes::from_static(&[0x0a, 0x7f])]).await?;
        ensure!(code == Code::Internal, "{method}: {code:?}");
    }
    ensure!(client.dataset("new").await?.is_none(), "a dataset of a wrong shape was created");
    ensure!(client.files(id).await?.is_empty(), "there are files");
    Ok(())
}

/// Fields of every wire type, with random lengths.
fn nonsense(dice: &Dice) -> Bytes {
    let mut message = Vec::new();
    for _ in 0..dice.below(6) {
        let field = 1 + dice.below(7) as u8;
        match dice.below(4) {
            0 => {
                message.push(field << 3);
                message.extend([0xff; 9]);
                message.push(1);
            }
            1 => {
                let bytes = dice.bytes(dice.below(40));
                message.extend([field << 3 | 2, bytes.len() as u8]);
                message.extend(bytes);
            }
            2 => message.extend([field << 3 | 2, 0xff, 0xff, 0xff, 0xff, 0x0f]),
            _ => message.extend(dice.bytes(dice.below(20))),
        }
    }
    message.into()
}

/// A server with this patience.
async fn patient(patience: Duration) -> Result<(Running, Wire)> {
    Running::fresh(in_memory(Limits { patience, ..Limits::default() })).await
}

/// Sends single bytes until the receiver closes.
async fn trickle(send: mpsc::Sender<pb::PutChunkRequest>) {
    let byte = pb::PutChunkRequest { data: Bytes::from_static(&[0]), ..Default::default() };
    while send.send(byte.clone()).await.is_ok() {
        clock().sleep(Duration::from_millis(100)).await;
    }
}

/// Begins a put of a large chunk: sends a first message, then the messages of the channel.
async fn announce(
    address: SocketAddr,
    dataset: DatasetId,
    data: &'static [u8],
) -> Result<(mpsc::Sender<pb::PutChunkRequest>, JoinHandle<Result<(), Status>>)> {
    let mut stub = Wire::connect(address).await?.stub();
    let dataset = Bytes::copy_from_slice(dataset.as_bytes());
    let (send, pieces) = mpsc::channel(1);
    let (length, data) = (u64::from(LARGE), Bytes::from_static(data));
    send.send(pb::PutChunkRequest { dataset, length, data }).await?;
    let pieces = tokio_stream::wrappers::ReceiverStream::new(pieces);
    Ok((send, dl_runtime::spawn(async move { stub.put_chunk(pieces).await.map(drop) })))
}

/// Repeats a put until the server has memory for it.
async fn put_patiently(client: &Wire, dataset: DatasetId, object: &[u8]) -> Result<()> {
    let mut tries = 0;
    while let Err(status) = client.put(dataset, object).await {
        let is_expected = matches!(status.code(), Code::DeadlineExceeded | Code::Unavailable);
        ensure!(is_expected, "{status}");
        tries += 1;
        ensure!(tries < 10, "an honest writer never gets its turn");
    }
    Ok(())
}

/// Keeps S-16.
#[tokio::test(flavor = "multi_thread")]
async fn writers_without_data_lose_their_turn() -> Result<()> {
    let (server, honest) = patient(Duration::from_millis(500)).await?;
    let dataset = honest.create_with("ds", LARGE).await?;
    let mut stalled = Vec::new();
    for _ in 0..40 {
        stalled.push(announce(server.address(), dataset, b"and then silence").await?);
    }
    let object = chunk(new_id(), dataset, [(&b"a"[..], &b"bytes"[..])])?;
    put_patiently(&honest, dataset, &object).await?;
    for (send, answer) in stalled {
        let status = answer.await?.err().context("a chunk that was never sent is stored")?;
        let is_expected = matches!(status.code(), Code::DeadlineExceeded | Code::Unavailable);
        ensure!(is_expected, "{status}");
        drop(send);
    }
    ensure!(honest.files(dataset).await?.len() == 1, "the honest file is there");
    Ok(())
}

/// Keeps S-16: the client sends often enough to avoid the idle time-out.
#[tokio::test(flavor = "multi_thread")]
async fn writers_of_single_bytes_lose_their_memory() -> Result<()> {
    let (server, honest) = patient(Duration::from_secs(2)).await?;
    let dataset = honest.create_with("ds", LARGE).await?;
    let mut trickling = Vec::new();
    for _ in 0..5 {
        let (send, answer) = announce(server.address(), dataset, b"a byte at a time").await?;
        dl_runtime::spawn(trickle(send));
        trickling.push(answer);
    }
    clock().sleep(Duration::from_millis(500)).await;
    let object = chunk(new_id(), dataset, [(&b"a"[..], &b"bytes"[..])])?;
    put_patiently(&honest, dataset, &object).await?;
    let mut given_up = 0;
    // The writers end one after another: each gets the memory and loses it to the next.
    for answer in trickling {
        let answer = tokio::time::timeout(Duration::from_secs(60), answer).await;
        let answer = answer.context("a writer still holds the memory")?;
        let status = answer?.err().context("a chunk that was never sent is stored")?;
        match status.code() {
            Code::DeadlineExceeded => given_up += 1,
            code => ensure!(code == Code::Unavailable, "{status}"),
        }
        let is_told =
            ["it came slowly", "are in use"].iter().any(|why| status.message().contains(why));
        ensure!(is_told, "{status}");
    }
    ensure!(given_up > 0, "a writer still holds the memory");
    Ok(())
}

/// Keeps S-16 and S-18: Rule 2.
#[tokio::test(flavor = "multi_thread")]
async fn inconsistent_objects_are_refused_and_leave_nothing() -> Result<()> {
    let (_server, client) = patient(USUAL).await?;
    let (dataset, other) = (client.create("ds").await?, client.create("other").await?);
    let id = new_id();
    let good = chunk(id, dataset, [(&b"a"[..], &b"bytes"[..]), (b"b", b"more bytes")])?;
    let dice = Dice::new(3);
    for _ in 0..rounds(300, 10_000) {
        let mut bad = good.clone();
        let at = dice.below(bad.len());
        match dice.below(3) {
            0 => bad.truncate(at),
            1 => bad[at] ^= 1 << dice.below(8),
            _ => bad.extend(dice.bytes(1 + dice.below(100))),
        }
        if let Err(status) = client.put(dataset, &bad).await {
            ensure!(status.code() == Code::InvalidArgument, "{status}");
        } else {
            anyhow::bail!("a damaged object was stored");
        }
    }
    let moved = client.put(other, &good).await.err().context("stored in another dataset")?;
    ensure!(moved.code() == Code::InvalidArgument, "{moved}");
    ensure!(client.files(dataset).await?.is_empty(), "refused objects are seen");
    client.put(dataset, &good).await?;
    ensure!(client.files(dataset).await?.len() == 2, "the good object is missing");
    let rival = chunk(id, dataset, [(&b"a"[..], &b"others"[..])])?;
    let conflict =
        client.put(dataset, &rival).await.err().context("two objects with the same id")?;
    ensure!(conflict.code() == Code::AlreadyExists, "{conflict}");
    Ok(())
}
