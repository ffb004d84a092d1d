//! Chunks of an epoch from scripted servers: as a range of the chunk, or file by file.

use bytes::Bytes;
use dl_format::snapshot::LiveFile;
use dl_format::{ChunkId, Crc32c, EntryVersion, FilePath, Stamp};
use dl_proto::{ChunkPiece, GetChunksRequest, Kind as WireKind, ReadPiece, ReadSource, pb};
use tonic::Status;

use super::*;
use crate::remote::testing::{Script, data, dataset, record};
use crate::report::tests::snapshot_of;

const FILES: u32 = 20;
const LENGTH: u32 = 1_000;
const CHUNK: ChunkId = ChunkId::from_bytes([8; 16]);

/// The offset of the first file in the object.
const START: u32 = 4_096;

fn object() -> Bytes {
    data((START + FILES * LENGTH) as usize, 3).into()
}

fn content(number: u32) -> Bytes {
    let from = (START + number * LENGTH) as usize;
    object().slice(from..from + LENGTH as usize)
}

/// A chunk of adjacent files, with an empty file.
fn snapshot() -> Arc<Snapshot> {
    let holder =
        EntryVersion { stamp: Stamp::new(5), chunk: CHUNK, entry: EntryVersion::UNKNOWN_ENTRY };
    let file = |number: u32, offset, bytes: &[u8]| LiveFile {
        path: FilePath::new(format!("file{number:02}")).unwrap(),
        record: FileRecord { version: holder, holder, offset, ..record(bytes) },
        extents: Vec::new(),
    };
    let files = (0..FILES).map(|number| file(number, START + number * LENGTH, &content(number)));
    Arc::new(snapshot_of(vec![files.chain([file(FILES, START, b"")]).collect()]))
}

#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Range(u32, u32),
    Files(Vec<(u32, u32)>),
}

/// The server's answer to a request for ranges of the chunk.
type Answer = fn(&GetChunksRequest) -> Result<Vec<ChunkPiece>, Status>;

fn piece(data: Result<Bytes, WireKind>) -> ChunkPiece {
    ChunkPiece { range: 0, data: data.map_err(|kind| (kind, "on purpose".to_owned())) }
}

/// Pieces with a length unequal to the length of files.
fn well(request: &GetChunksRequest) -> Result<Vec<ChunkPiece>, Status> {
    let range = request.ranges[0];
    let from = range.offset as usize;
    let bytes = object().slice(from..from + range.length as usize);
    Ok(bytes.chunks(2_700).map(|part| piece(Ok(Bytes::copy_from_slice(part)))).collect())
}

fn read(request: &dl_proto::ReadRequest) -> Vec<Result<pb::ReadReply, Status>> {
    let answer = (0..).zip(&request.items).map(|(item, wanted)| {
        let ReadSource::File(file) = &wanted.source else { panic!("asked for by path") };
        let from = file.offset as usize;
        let bytes = object().slice(from..from + file.stored as usize);
        let (length, crc) = (bytes.len() as u64, Crc32c::of(&bytes));
        ReadPiece { item, data: Ok(bytes), last: true, length, crc, extent: None }.into()
    });
    vec![Ok(pb::ReadReply { pieces: answer.collect() })]
}

/// A source with a scripted server, and the record of its requests.
fn scene(answer: Answer) -> (EpochSource, Arc<Mutex<Vec<Asked>>>) {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (of_chunks, of_files) = (Arc::clone(&asked), Arc::clone(&asked));
    let chunks = move |request: GetChunksRequest| {
        let [range] = request.ranges[..] else { panic!("one range of one chunk") };
        assert_eq!(range.chunk, CHUNK);
        of_chunks.lock().unwrap().push(Asked::Range(range.offset, range.length));
        match answer(&request) {
            Ok(pieces) => pieces
                .into_iter()
                .map(|piece| Ok(pb::GetChunksReply { pieces: vec![piece.into()] }))
                .collect(),
            Err(status) => vec![Err(status)],
        }
    };
    let read = move |request: dl_proto::ReadRequest| {
        let ranges = request.items.iter().map(|item| match &item.source {
            ReadSource::File(file) => (file.offset, file.stored),
            ReadSource::Path(_) => panic!("asked for by path"),
        });
        of_files.lock().unwrap().push(Asked::Files(ranges.collect()));
        read(&request)
    };
    let script = Script { chunks: Box::new(chunks), read: Box::new(read), ..Script::default() };
    let dataset = dataset(script);
    let (session, info) = (dataset.remote().session().unwrap(), dataset.info().clone());
    (EpochSource { session, info, snapshot: snapshot() }, asked)
}

/// Fetches files, and compares their content.
fn fetch(source: &EpochSource, numbers: &[u32]) {
    let contents = source.session.wait(source.fetch(numbers)).unwrap();
    for (number, result) in numbers.iter().zip(contents) {
        let expected = if *number == FILES { Bytes::new() } else { content(*number) };
        assert!(matches!(&result, Content::Bytes(bytes) if *bytes == expected), "{number}");
    }
}

fn damaged(request: &GetChunksRequest) -> Result<Vec<ChunkPiece>, Status> {
    let mut pieces = well(request)?;
    pieces[1].data = Ok(Bytes::from(vec![0; 2_700]));
    Ok(pieces)
}

fn missing(_: &GetChunksRequest) -> Result<Vec<ChunkPiece>, Status> {
    Ok(vec![piece(Err(WireKind::NotFound))])
}

/// An answer, the fetches, and the requests.
type Case<'a> = (Answer, [&'a [u32]; 2], Vec<Asked>);

#[test]
fn a_chunk_is_a_range_or_some_files() {
    let range = |first, count| Asked::Range(START + first * LENGTH, count * LENGTH);
    let file = |first, count| (START + first * LENGTH, count * LENGTH);
    let all: Vec<u32> = (0..=FILES).rev().collect();
    let filled: Vec<u32> = (0..FILES).collect();
    let two = || Asked::Files(vec![file(0, 2)]);
    let cases: [Case<'_>; 4] = [
        (well, [&all, &[3, 5, 7]], vec![range(0, FILES), range(3, 5)]),
        (well, [&[0, 5, 19], &[]], vec![Asked::Files([0, 5, 19].map(|n| file(n, 1)).to_vec())]),
        // The files of the second piece lie next to each other.
        (damaged, [&filled, &[]], vec![range(0, FILES), Asked::Files(vec![file(2, 4)])]),
        (missing, [&[0, 1]; 2], vec![range(0, 2), two(), range(0, 2), two()]),
    ];
    for (answer, fetches, expected) in cases {
        let (source, asked) = scene(answer);
        let fetches = fetches.into_iter().filter(|numbers| !numbers.is_empty());
        fetches.for_each(|numbers| fetch(&source, numbers));
        assert_eq!(*asked.lock().unwrap(), expected);
    }
}
