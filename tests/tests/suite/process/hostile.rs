//! Clients that send what no client of ours would: the server refuses it and serves the others.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use dl_meta::{Memory, Stop};
use dl_proto::pb;
use dl_server::{Limits, Parts, prepare};
use dl_tests::cluster::{Running, parts};
use dl_tests::dice::Dice;
use dl_tests::folder;
use dl_tests::program::{Server, dl, run};
use dl_tests::rounds;
use dl_tests::wire::{Wire, chunk};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Endpoint;
use tonic::{Request, Status};

/// Messages as they are given, whatever they are.
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

const METHODS: [&str; 13] = [
    "CreateDataset",
    "GetDataset",
    "ListDatasets",
    "DeleteDataset",
    "PutChunk",
    "Delete",
    "Read",
    "Stat",
    "List",
    "GetSnapshot",
    "Recover",
    "Purge",
    "Verify",
];

/// Keeps S-16.
#[test]
fn garbage_on_the_port_harms_nobody() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let mut server = Server::start(&scene.path().join("data"))?;
    folder::write(scene.path(), "src/a", "a file")?;
    run(server.dlcmd()?.arg("put").arg(scene.path().join("src")).arg("dl://ds"))?.code(0)?;
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
            // A frame that announces 16 MiB and never comes.
            _ => [preface, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat(),
        };
        // The server may have hung up already.
        let _ = stream.write_all(&garbage);
        if dice.once_in(2) {
            open.push(stream);
        } else {
            stream.set_read_timeout(Some(Duration::from_millis(1)))?;
            let _ = stream.read(&mut [0; 64]);
        }
    }
    ensure!(dl(&server, ["cat", "dl://ds/a"])?.code(0)?.text() == "a file", "cat");
    let peak = server.process().peak_memory().context("the server is gone")?;
    ensure!(peak < 256 << 20, "it took {} MiB", peak >> 20);
    drop(open);
    server.stop()?;
    Ok(())
}

/// Keeps S-16.
#[test]
fn messages_that_make_no_sense_are_refused_one_by_one() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let mut server = Server::start(&scene.path().join("data"))?;
    folder::write(scene.path(), "src/a", "a file")?;
    run(server.dlcmd()?.arg("put").arg(scene.path().join("src")).arg("dl://ds"))?.code(0)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let endpoint = Endpoint::from_shared(format!("http://{}", server.address()))?;
        let mut stub = tonic::client::Grpc::new(endpoint.connect().await?);
        let dice = Dice::new(2);
        for round in 0..rounds(1_000, 50_000) {
            let method = METHODS[round % METHODS.len()];
            let path = format!("/diesel.v1.Diesel/{method}").parse()?;
            let messages: Vec<_> = (0..1 + dice.below(3)).map(|_| nonsense(&dice)).collect();
            stub.ready().await?;
            let request = Request::new(tokio_stream::iter(messages));
            // Some nonsense is a legal question, such as ListDatasets with unknown fields.
            let answer = stub.streaming(request, path, Raw).await;
            if let Ok(mut answer) = answer.map(|answer| answer.into_inner()) {
                while let Ok(Some(_)) = answer.message().await {}
            }
        }
        anyhow::Ok(())
    })?;
    // With it goes the connection.
    drop(runtime);
    ensure!(dl(&server, ["cat", "dl://ds/a"])?.code(0)?.text() == "a file", "cat");
    ensure!(dl(&server, ["ls", "-R", "dl://ds"])?.code(0)?.text() == "a\n", "ls");
    let peak = server.process().peak_memory().context("the server is gone")?;
    ensure!(peak < 256 << 20, "it took {} MiB", peak >> 20);
    let log = server.stop()?;
    ensure!(!log.contains("panicked"), "{log}");
    Ok(())
}

/// Fields of every wire type, with lengths that may lie.
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

async fn impatient() -> Result<(Running, Parts)> {
    let store = dl_store::open("memory:").await?;
    let limits = Limits { patience: Duration::from_millis(500), ..Limits::default() };
    let parts = Parts { limits, ..parts(store, Arc::new(Memory::new())) };
    prepare(&parts, Stop::Fresh).await?;
    Ok((Running::start(parts.clone()).await?, parts))
}

/// Keeps S-16.
#[tokio::test(flavor = "multi_thread")]
async fn writers_that_announce_much_and_send_nothing_lose_their_turn() -> Result<()> {
    let (server, parts) = impatient().await?;
    let honest = Wire::connect(server.address()).await?;
    let dataset = honest.create("ds").await?;
    let mut stalled = Vec::new();
    for _ in 0..40 {
        let mut stub = Wire::connect(server.address()).await?.stub();
        stalled.push(tokio::spawn(async move {
            let head = pb::PutChunkRequest {
                dataset: Bytes::copy_from_slice(dataset.as_bytes()),
                length: 64 << 20,
                data: Bytes::from_static(b"and then silence"),
            };
            let (send, pieces) = tokio::sync::mpsc::channel(1);
            // Held, so that the stream never ends.
            let _held = send.send(head).await;
            let pieces = tokio_stream::wrappers::ReceiverStream::new(pieces);
            let answer = stub.put_chunk(pieces).await;
            drop(send);
            answer
        }));
    }
    let id = libdiesel::ChunkId::from_bytes(id_bytes(&parts));
    let object = chunk(id, dataset, [(&b"a"[..], &b"bytes"[..])])?;
    let mut tries = 0;
    while let Err(status) = honest.put(dataset, &object).await {
        ensure!(status.code() == tonic::Code::Unavailable, "{status}");
        tries += 1;
        ensure!(tries < 10, "an honest writer never gets its turn");
    }
    for answer in stalled {
        let status = answer.await?.err().context("a chunk that was never sent is stored")?;
        let code = status.code();
        let is_expected = matches!(code, tonic::Code::DeadlineExceeded | tonic::Code::Unavailable);
        ensure!(is_expected, "{status}");
    }
    ensure!(honest.files(dataset).await?.len() == 1, "the honest file is there");
    Ok(())
}

/// An id of now.
fn id_bytes(parts: &Parts) -> [u8; 16] {
    *dl_format::ChunkIdMaker::new([7; 9]).next(parts.clock.now()).as_bytes()
}

/// Keeps S-16 and S-18: Rule 2.
#[tokio::test(flavor = "multi_thread")]
async fn objects_that_are_not_what_they_say_are_refused_and_leave_nothing() -> Result<()> {
    let (server, parts) = impatient().await?;
    let client = Wire::connect(server.address()).await?;
    let (dataset, other) = (client.create("ds").await?, client.create("other").await?);
    let id = libdiesel::ChunkId::from_bytes(id_bytes(&parts));
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
            ensure!(status.code() == tonic::Code::InvalidArgument, "{status}");
        } else {
            anyhow::bail!("a damaged object was stored");
        }
    }
    let moved = client.put(other, &good).await.err().context("stored in another dataset")?;
    ensure!(moved.code() == tonic::Code::InvalidArgument, "{moved}");
    ensure!(client.files(dataset).await?.is_empty(), "refused objects are seen");
    client.put(dataset, &good).await?;
    ensure!(client.files(dataset).await?.len() == 2, "the good one is not");
    let rival = chunk(id, dataset, [(&b"a"[..], &b"others"[..])])?;
    let conflict = client.put(dataset, &rival).await.err().context("one id, two objects")?;
    ensure!(conflict.code() == tonic::Code::AlreadyExists, "{conflict}");
    Ok(())
}
