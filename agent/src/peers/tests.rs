//! Links to agents with wrong answers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dl_format::Crc32c;
use dl_format::{DatasetId, MemberId, Version};
use dl_node::{Arena, Shape};
use dl_runtime::{Clock, SystemClock, spawn};
use libdiesel::FilePlace;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::frame::{Answer, HEAD, Request};
use super::{ChunkOutcome, Incoming, JobKey, LinkConfig, LinkTask, handshake};
use crate::descriptors::Descriptors;
use crate::progress::Progress;

const SLOT: u32 = 1 << 20;
const FILE: usize = 1_000;
const FILES: usize = 20;

fn id(number: u8) -> MemberId {
    MemberId::from_bytes([number; 16])
}

fn key(secret: u8) -> JobKey {
    JobKey::new(&[secret; 32], DatasetId::from_bytes([9; 16]), Version::default())
}

/// The bytes of a chunk, and its files.
fn chunk() -> (Vec<u8>, Arc<[(u32, FilePlace)]>) {
    let bytes: Vec<u8> = (0..FILE * FILES).map(|at| (at % 251) as u8).collect();
    let files = bytes.chunks(FILE).enumerate().map(|(number, bytes)| {
        let offset = (number * FILE) as u32;
        let length = FILE as u64;
        (number as u32, FilePlace { chunk: 0, offset, length, crc: Crc32c::of(bytes) })
    });
    let files = files.collect();
    (bytes, files)
}

/// An agent that answers requests for chunks with heads and bytes, until one is cancelled.
async fn agent(listener: TcpListener, secret: u8, answers: impl Fn(u32) -> Vec<(Answer, Vec<u8>)>) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let proved = handshake::authenticate(
        &mut stream,
        id(2),
        || vec![Some(key(secret))],
        &SystemClock::new(),
    )
    .await;
    if proved.is_err() {
        return;
    }
    loop {
        let mut head = [0; HEAD];
        if stream.read_exact(&mut head).await.is_err() {
            return;
        }
        match Request::from_bytes(head).unwrap() {
            Request::Kept { .. } => {
                let kept =
                    Answer::Kept { generation: 1, can_keep: true, is_known: true, length: 0 };
                let _ = stream.write_all(&kept.to_bytes()).await;
            }
            Request::Chunk { number, .. } => {
                for (head, bytes) in answers(number) {
                    let _ = stream.write_all(&head.to_bytes()).await;
                    let _ = stream.write_all(&bytes).await;
                }
            }
            Request::Files { .. } | Request::Forget { .. } => return,
        }
    }
}

type Answers = fn(u32) -> Vec<(Answer, Vec<u8>)>;

/// The result of a request for a chunk, and the bytes in its slot.
async fn ask(secret: u8, answers: Answers) -> (ChunkOutcome, Vec<u8>) {
    let (got, slot, _) = ask_until_end(secret, answers).await;
    (got, slot)
}

/// The same, and whether the other agent was told to send no more, or its connection ended.
async fn ask_until_end(secret: u8, answers: Answers) -> (ChunkOutcome, Vec<u8>, bool) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let other = spawn(agent(listener, secret, answers));
    let key = Arc::new(Mutex::new(Some(key(5))));
    let descriptors = Descriptors::for_one_direction();
    let (clock, events) = (Arc::new(SystemClock::new()), Arc::default());
    let (identity, fingerprint) = (None, None);
    let way = LinkConfig { key, me: id(1), identity, fingerprint, descriptors, clock, events };
    let staying = LinkTask::new(id(2), address, way);
    staying.link.tried().await;
    let (arena, _files) = Arena::create(Shape { slot_bytes: SLOT, slots: 1 }).unwrap();
    let arena = Arc::new(arena);
    let (_, files) = chunk();
    let incoming = Incoming::new(Arc::clone(&arena), 0, files, Arc::new(Progress::default()));
    let got = staying.link.chunk(0, incoming, |_| {}).await;
    // Later bytes change nothing.
    let before = arena.written(0, 0, FILE * FILES).unwrap().to_vec();
    SystemClock::new().sleep(Duration::from_millis(200)).await;
    assert!(arena.written(0, 0, FILE * FILES).unwrap() == before, "written after the end");
    let has_ended = other.is_finished();
    drop(staying);
    other.abort();
    (got, before, has_ended)
}

fn piece(number: u32, offset: usize, bytes: &[u8]) -> (Answer, Vec<u8>) {
    let (offset, length) = (offset as u32, bytes.len() as u32);
    (Answer::Piece { number, offset, length }, bytes.to_vec())
}

#[tokio::test]
async fn the_right_bytes_come_in_pieces() {
    let (got, slot, has_ended) = ask_until_end(5, |number| {
        let (bytes, _) = chunk();
        let mut at = 0;
        let pieces = bytes.chunks(3_333).map(|bytes| {
            let piece = piece(number, at, bytes);
            at += bytes.len();
            piece
        });
        pieces.collect()
    })
    .await;
    assert_eq!(got, ChunkOutcome::Complete);
    assert!(slot == chunk().0 && !has_ended);
}

#[tokio::test]
async fn an_answer_that_goes_wrong_ends_after_its_correct_files() {
    let damaged: Answers = |number| {
        let (mut bytes, _) = chunk();
        *bytes.get_mut(7 * FILE + 5).unwrap() ^= 1;
        vec![piece(number, 0, &bytes)]
    };
    let stalled: Answers = |number| vec![piece(number, 0, &chunk().0[..2 * FILE + 1])];
    let withdrawn: Answers = |number| {
        let begun = piece(number, 0, &chunk().0[..2 * FILE]);
        vec![begun, (Answer::ReadElsewhere { number }, Vec::new())]
    };
    for (answers, right, why) in [
        (damaged, 7, "its bytes are damaged"),
        (stalled, 2, "it timed out"),
        (withdrawn, 2, "the connection ended"),
    ] {
        let (got, slot, has_ended) = ask_until_end(5, answers).await;
        assert_eq!(got, ChunkOutcome::Failed { right, why });
        assert!(has_ended, "the other agent goes on after: {why}");
        assert!(slot.get(..right * FILE) == chunk().0.get(..right * FILE));
    }
}

#[tokio::test]
async fn misplaced_or_unrequested_pieces_end_the_connection() {
    let broken = [
        ask(5, |number| vec![piece(number, FILE, &chunk().0)]).await,
        ask(5, |number| vec![piece(number, 0, &[7; FILE * FILES + 1])]).await,
        ask(5, |number| vec![(Answer::Files { number, length: 0 }, vec![0; 32])]).await,
        ask(5, |_| vec![(Answer::Goodbye, vec![0xff; HEAD])]).await,
    ];
    for (got, slot) in broken {
        assert_eq!(got, ChunkOutcome::Failed { right: 0, why: "the connection ended" });
        assert!(slot == vec![0; FILE * FILES], "bytes of no place were written");
    }
}

#[tokio::test]
async fn an_agent_with_another_secret_is_not_asked() {
    let (got, _) = ask(6, |_| Vec::new()).await;
    assert_eq!(got, ChunkOutcome::Disconnected);
}

/// Passes bytes on, and gives them.
async fn pass_on<const N: usize>(from: &mut TcpStream, to: &mut TcpStream) -> [u8; N] {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes).await.unwrap();
    to.write_all(&bytes).await.unwrap();
    bytes
}

#[tokio::test]
async fn a_replayed_proof_is_refused() {
    let called = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
    let address = called.local_addr().unwrap();
    let authenticated = |called: &Arc<TcpListener>| {
        let called = Arc::clone(called);
        spawn(async move {
            let (mut stream, _) = called.accept().await.unwrap();
            let keys = || vec![Some(key(5))];
            handshake::authenticate(&mut stream, id(2), keys, &SystemClock::new()).await
        })
    };
    let between = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let way = between.local_addr().unwrap();
    let first = authenticated(&called);
    let proving = spawn(async move {
        let mut stream = TcpStream::connect(way).await.unwrap();
        handshake::prove(&mut stream, &key(5), id(1), id(2), &SystemClock::new()).await
    });
    let (mut caller, _) = between.accept().await.unwrap();
    let mut callee = TcpStream::connect(address).await.unwrap();
    let challenge: [u8; handshake::CHALLENGE] = pass_on(&mut callee, &mut caller).await;
    let hello: [u8; handshake::HELLO] = pass_on(&mut caller, &mut callee).await;
    let _: [u8; handshake::PROOF] = pass_on(&mut callee, &mut caller).await;
    proving.await.unwrap().unwrap();
    assert_eq!(first.await.unwrap().unwrap(), (0, id(1)), "the proof itself is good");

    let second = authenticated(&called);
    let mut callee = TcpStream::connect(address).await.unwrap();
    let mut other = [0; handshake::CHALLENGE];
    callee.read_exact(&mut other).await.unwrap();
    assert_ne!(other, challenge);
    callee.write_all(&hello).await.unwrap();
    assert!(second.await.unwrap().is_err());
}
