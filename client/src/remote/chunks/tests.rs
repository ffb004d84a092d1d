//! Ranges of chunks from scripted servers: each byte once, and a result for each range.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dl_runtime::{Clock, SystemClock};
use tonic::Status;

use super::*;
use crate::dataset::Dataset;
use crate::remote::ConnectOptions;
use crate::remote::testing::{Script, data, dataset, open, options, start};

type Messages = Vec<Result<pb::GetChunksReply, Status>>;

fn chunk(number: u8) -> ChunkId {
    ChunkId::from_bytes([number; 16])
}

fn range(number: u8, offset: u32, length: u32) -> ChunkRange {
    ChunkRange { chunk: chunk(number), offset, length }
}

/// The bytes of the object of a chunk.
fn object(range: &ChunkRange) -> Vec<u8> {
    data(10_000, range.chunk.as_bytes()[0])
}

fn bytes_of(range: &ChunkRange) -> Bytes {
    let from = range.offset as usize;
    Bytes::from(object(range)).slice(from..from + range.length as usize)
}

fn piece(range: usize, data: impl Into<Bytes>) -> Result<pb::GetChunksReply, Status> {
    let piece = ChunkPiece { range: range as u32, data: Ok(data.into()) };
    Ok(pb::GetChunksReply { pieces: vec![piece.into()] })
}

fn failed(range: usize, kind: dl_proto::Kind) -> Result<pb::GetChunksReply, Status> {
    let piece = ChunkPiece { range: range as u32, data: Err((kind, "on purpose".to_owned())) };
    Ok(pb::GetChunksReply { pieces: vec![piece.into()] })
}

/// All requested bytes, in pieces of a length, with the ranges in turns.
fn well(request: &GetChunksRequest, cut: usize) -> Messages {
    let mut messages: Vec<_> = request
        .ranges
        .iter()
        .enumerate()
        .flat_map(|(number, range)| {
            let bytes = bytes_of(range);
            let pieces = bytes.chunks(cut).map(Bytes::copy_from_slice).collect::<Vec<_>>();
            pieces.into_iter().enumerate().map(move |(turn, bytes)| (turn, number, bytes))
        })
        .collect();
    messages.sort_by_key(|(turn, number, _)| (*turn, *number));
    messages.into_iter().map(|(_, number, bytes)| piece(number, bytes)).collect()
}

fn script(chunks: impl Fn(GetChunksRequest) -> Messages + Send + Sync + 'static) -> Script {
    Script { chunks: Box::new(chunks), ..Script::default() }
}

/// The received bytes and the result of each range.
type Fetched = (Vec<Vec<u8>>, Vec<Result<(), Error>>);

fn fetch(dataset: &Dataset, ranges: &[ChunkRange]) -> Result<Fetched, Error> {
    let source = ChunkSource::of(dataset).unwrap();
    let mut came = vec![Vec::new(); ranges.len()];
    let take = |range: usize, offset: u64, bytes: &[u8]| {
        assert_eq!(offset, came[range].len() as u64, "in order, each once");
        came[range].extend_from_slice(bytes);
    };
    let ended = source.runtime().block_on(source.fetch(ranges, false, take))?;
    Ok((came, ended))
}

#[test]
fn many_ranges_arrive_whole_in_few_requests() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let dataset = dataset(script(move |request| {
        seen.lock().unwrap().push(request.ranges.len());
        well(&request, 999)
    }));
    let ranges: Vec<_> = (0..100).map(|n| range(n, u32::from(n) * 7, 5_000)).collect();
    let (came, ended) = fetch(&dataset, &ranges).unwrap();
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    assert!(came.iter().zip(&ranges).all(|(came, range)| *came == bytes_of(range)));
    assert_eq!(*asked.lock().unwrap(), [64, 36]);
    assert!(fetch(&dataset, &[]).unwrap().0.is_empty());
}

#[test]
fn a_broken_answer_is_resumed() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let script = || {
        let seen = Arc::clone(&seen);
        script(move |request| {
            let is_first = seen.lock().unwrap().is_empty();
            seen.lock().unwrap().push(request.ranges.clone());
            let answer = well(&request, 1_000).into_iter();
            match is_first {
                true => answer.take(3).chain([Err(Status::unavailable("stopping"))]).collect(),
                false => answer.collect(),
            }
        })
    };
    let dataset = open(options(&[start(script()), start(script())]));
    let ranges = [range(1, 50, 1_000), range(2, 60, 5_000), range(3, 0, 1)];
    let (came, ended) = fetch(&dataset, &ranges).unwrap();
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    assert!(came.iter().zip(&ranges).all(|(came, range)| *came == bytes_of(range)));
    assert_eq!(*asked.lock().unwrap(), [ranges.to_vec(), vec![range(2, 1_060, 4_000)]]);
}

#[test]
fn the_time_limit_counts_from_the_last_bytes() {
    let dataset = open(ConnectOptions {
        request_timeout: Duration::from_secs(1),
        ..options(&[start(script(|request| {
            // A few bytes in each try, so all tries together exceed the time of a request.
            std::thread::sleep(Duration::from_millis(100));
            let answer = well(&request, 500).into_iter().take(1);
            answer.chain([Err(Status::unavailable("stopping"))]).collect()
        }))])
    });
    let (clock, ranges) = (SystemClock::new(), [range(1, 0, 6_000)]);
    let began = clock.monotonic();
    let (came, ended) = fetch(&dataset, &ranges).unwrap();
    assert!(ended[0].is_ok() && came[0] == bytes_of(&ranges[0]), "{ended:?}");
    assert!(clock.monotonic() - began > Duration::from_secs(1));
}

#[test]
fn a_failed_range_fails_alone_or_is_retried() {
    let tries = Arc::new(AtomicUsize::new(0));
    let tried = Arc::clone(&tries);
    let dataset = dataset(script(move |request| {
        let is_first = tried.fetch_add(1, Ordering::SeqCst) == 0;
        let answer = request.ranges.iter().enumerate().map(|(number, range)| {
            match range.chunk.as_bytes()[0] {
                1 => failed(number, dl_proto::Kind::NotFound),
                2 => failed(number, dl_proto::Kind::Corrupt),
                3 if is_first => failed(number, dl_proto::Kind::Unavailable),
                _ => piece(number, bytes_of(range)),
            }
        });
        answer.collect()
    }));
    let ranges = [1, 2, 3, 4].map(|number| range(number, 0, 100));
    let (came, ended) = fetch(&dataset, &ranges).unwrap();
    let kinds: Vec<_> = ended.iter().map(|end| end.as_ref().err().map(Error::kind)).collect();
    assert_eq!(kinds, [Some(Kind::NotFound), Some(Kind::Corrupt), None, None]);
    let expected = format!("read chunk {} of dl://pets", chunk(1));
    assert_eq!(ended[0].as_ref().unwrap_err().to_string(), expected);
    assert!(came[2] == bytes_of(&ranges[2]) && came[3] == bytes_of(&ranges[3]));
    assert_eq!(tries.load(Ordering::SeqCst), 2);
}

#[test]
fn an_answer_that_makes_no_sense_is_a_fault_of_the_software() {
    type Answer = fn() -> Messages;
    let answers: [Answer; 5] = [
        || vec![piece(1, "a")],
        || vec![piece(u32::MAX as usize, "a")],
        || vec![piece(0, "0123456789"), piece(0, "a")],
        || vec![piece(0, "012345678901")],
        || vec![failed(0, dl_proto::Kind::NotFound), piece(0, "a")],
    ];
    for (number, answer) in answers.into_iter().enumerate() {
        let dataset = dataset(script(move |_| answer()));
        let why = fetch(&dataset, &[range(1, 0, 10)]).unwrap_err();
        assert_eq!(why.kind(), Kind::Internal, "{number}: {why}");
    }
}

#[test]
fn an_invalid_range_gives_an_error() {
    let asked_nobody = open(options(&[start(script(|_| panic!("nobody asks for this")))]));
    for senseless in [range(1, 0, 0), range(1, u32::MAX, 1)] {
        assert_eq!(fetch(&asked_nobody, &[senseless]).unwrap_err().kind(), Kind::Invalid);
    }
}
