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
    let source =
        EpochSource { session, info, snapshot: snapshot(), is_old: AtomicBool::new(false) };
    (source, asked)
}

/// Fetches files, and compares their content.
fn fetch(source: &EpochSource, numbers: &[u32]) {
    let contents = source.session.wait(source.fetch(numbers)).unwrap();
    for (number, result) in numbers.iter().zip(contents) {
        let expected = if *number == FILES { Bytes::new() } else { content(*number) };
        assert!(matches!(&result, Content::Bytes(bytes) if *bytes == expected), "{number}");
    }
}

#[test]
fn a_chunk_is_one_range_from_the_first_to_the_last_wanted_file() {
    let (source, asked) = scene(well);
    fetch(&source, &(0..=FILES).rev().collect::<Vec<_>>());
    fetch(&source, &[3, 5, 7]);
    let expected =
        [Asked::Range(START, FILES * LENGTH), Asked::Range(START + 3 * LENGTH, 5 * LENGTH)];
    assert_eq!(*asked.lock().unwrap(), expected);
}

#[test]
fn few_files_of_a_chunk_are_requested_separately() {
    let (source, asked) = scene(well);
    fetch(&source, &[0, 5, 19]);
    let files = [0, 5, 19].map(|number| (START + number * LENGTH, LENGTH)).to_vec();
    assert_eq!(*asked.lock().unwrap(), [Asked::Files(files)]);
}

#[test]
fn only_damaged_files_are_requested_again() {
    let (source, asked) = scene(|request| {
        let mut pieces = well(request)?;
        pieces[1].data = Ok(Bytes::from(vec![0; 2_700]));
        Ok(pieces)
    });
    fetch(&source, &(0..FILES).collect::<Vec<_>>());
    // The files of the second piece lie next to each other.
    let damaged = Asked::Files(vec![(START + 2 * LENGTH, 4 * LENGTH)]);
    assert_eq!(*asked.lock().unwrap(), [Asked::Range(START, FILES * LENGTH), damaged]);
}

#[test]
fn a_missing_chunk_is_read_file_by_file() {
    let (source, asked) = scene(|_| Ok(vec![piece(Err(WireKind::NotFound))]));
    for _ in 0..2 {
        fetch(&source, &[0, 1]);
    }
    let once = || [Asked::Range(START, 2 * LENGTH), Asked::Files(vec![(START, 2 * LENGTH)])];
    assert_eq!(*asked.lock().unwrap(), once().into_iter().chain(once()).collect::<Vec<_>>());
}

#[test]
fn a_server_without_ranges_of_chunks_is_asked_once() {
    let (source, asked) = scene(|_| Err(Status::unimplemented("this server knows no such method")));
    for _ in 0..2 {
        fetch(&source, &[0, 1]);
    }
    let files = || Asked::Files(vec![(START, 2 * LENGTH)]);
    assert_eq!(*asked.lock().unwrap(), [Asked::Range(START, 2 * LENGTH), files(), files()]);
}
