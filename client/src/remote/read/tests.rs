//! Batch reads and large reads with scripted servers: each file arrives whole, is requested again
//! where useful, or has an error with the cause.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use dl_format::{ChunkId, Crc32c, Extent, FilePath};
use dl_proto::{ReadPiece, ReadRequest, ReadSource, StatItem, pb};
use dl_runtime::{Clock, SystemClock};
use tonic::Status;

use crate::dataset::Dataset;
use crate::error::{Error, Kind};
use crate::remote::read::batch::Arrived;
use crate::remote::read::batches;
use crate::remote::testing::{Script, chunk_id, data, dataset, open, options, path, record, start};
use crate::remote::{ConnectOptions, ReadItem};

type Messages = Vec<Result<pb::ReadReply, Status>>;

fn pieces(item: u32, bytes: &[u8], cut: usize) -> Vec<pb::ReadPiece> {
    let parts: Vec<&[u8]> =
        if bytes.is_empty() { vec![bytes] } else { bytes.chunks(cut).collect() };
    let last = parts.len() - 1;
    let piece = |(number, part): (usize, &&[u8])| {
        let piece = ReadPiece {
            item,
            data: Ok(Bytes::copy_from_slice(part)),
            last: number == last,
            length: bytes.len() as u64,
            crc: Crc32c::of(bytes),
            extent: None,
        };
        piece.into()
    };
    parts.iter().enumerate().map(piece).collect()
}

fn failed(item: u32, kind: dl_proto::Kind) -> pb::ReadPiece {
    let data = Err((kind, "on purpose".to_owned()));
    ReadPiece { item, data, last: true, length: 0, crc: Crc32c::default(), extent: None }.into()
}

fn reply(pieces: Vec<pb::ReadPiece>) -> Result<pb::ReadReply, Status> {
    Ok(pb::ReadReply { pieces })
}

/// The content of a test file; some files are empty, and some fill several pieces.
fn content(path: &FilePath) -> Vec<u8> {
    let seed = path.as_bytes().iter().fold(0u8, |sum, byte| sum.wrapping_mul(3) ^ byte);
    data(usize::from(seed) * 40, seed)
}

fn path_of(source: &ReadSource) -> FilePath {
    match source {
        ReadSource::Path(path) => path.clone(),
        ReadSource::File(_) => panic!("asked for by path"),
    }
}

fn asked(request: &ReadRequest) -> Vec<FilePath> {
    request.items.iter().map(|item| path_of(&item.source)).collect()
}

fn reading(
    read: impl Fn(ReadRequest) -> Vec<Result<pb::ReadReply, Status>> + Send + Sync + 'static,
) -> Script {
    let stat = |request: dl_proto::StatRequest| {
        request.paths.iter().map(|path| StatItem::File(record(&content(path)))).collect()
    };
    Script { read: Box::new(read), stat: Box::new(stat), ..Script::default() }
}

fn numbered(count: usize) -> Vec<FilePath> {
    (0..count).map(|number| path(&format!("dir/file{number:05}"))).collect()
}

#[test]
fn files_keep_their_order_for_any_order_of_answers() {
    let dataset = dataset(reading(|request| {
        let mut all: Vec<_> = (0..)
            .zip(asked(&request))
            .map(|(item, path)| pieces(item, &content(&path), 3_000))
            .collect();
        all.reverse();
        // The first pieces of all files, then the second pieces, and so on.
        let longest = all.iter().map(Vec::len).max().unwrap_or(0);
        let rounds = (0..longest).map(|round| {
            reply(all.iter().filter_map(|pieces| pieces.get(round).cloned()).collect())
        });
        rounds.collect()
    }));
    let paths = numbered(3_000);
    let files = dataset.get_many(&paths).unwrap();
    assert_eq!(files.len(), paths.len());
    for (path, file) in paths.iter().zip(files) {
        assert!(file.unwrap() == content(path), "{path}");
    }
    let mut seen = vec![false; 500];
    let items = paths.iter().take(500).map(ReadItem::from).collect();
    dataset.read_files(items, &mut |item, file| {
        assert!(!std::mem::replace(&mut seen[item], true));
        assert!(file.unwrap() == content(&paths[item]));
    });
    assert!(seen.iter().all(|seen| *seen));
    assert_eq!(dataset.get_many::<&str>(&[]).unwrap().len(), 0);
}

#[test]
fn a_missing_file_does_not_fail_the_others() {
    let dataset = dataset(reading(|request| {
        let paths = asked(&request);
        let piece = |(item, path): (u32, FilePath)| match path.name() {
            b"none" => vec![failed(item, dl_proto::Kind::NotFound)],
            b"folder" => vec![failed(item, dl_proto::Kind::Conflict)],
            _ => pieces(item, &content(&path), 9_999),
        };
        vec![reply((0..).zip(paths).flat_map(piece).collect())]
    }));
    let paths = ["a", "none", "folder", "b"].map(path);
    let files = dataset.get_many(&paths).unwrap();
    let kinds: Vec<_> =
        files.iter().map(|file| file.as_ref().err().map(|why| why.kind())).collect();
    assert_eq!(kinds, [None, Some(Kind::NotFound), Some(Kind::Conflict), None]);
    assert_eq!(files[1].as_ref().unwrap_err().to_string(), "read dl://pets/none");
}

#[test]
fn files_received_before_a_break_are_not_requested_again() {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    let dataset = dataset(reading(move |request| {
        let paths = asked(&request);
        let first = seen.lock().unwrap().is_empty();
        seen.lock().unwrap().push(paths.clone());
        let answers =
            (0..).zip(&paths).map(|(item, path)| reply(pieces(item, &content(path), 9_999)));
        if first {
            answers.take(2).chain([Err(Status::unavailable("stopping"))]).collect()
        } else {
            answers.collect()
        }
    }));
    let paths = ["a", "b", "c", "d"].map(path);
    let files = dataset.get_many(&paths).unwrap();
    assert!(files.iter().zip(&paths).all(|(file, path)| *file.as_ref().unwrap() == content(path)));
    assert_eq!(*requests.lock().unwrap(), [paths.to_vec(), paths[2..].to_vec()]);
}

#[test]
fn an_answer_that_always_breaks_at_the_same_place_ends_in_time() {
    let breaks: [fn(pb::ReadPiece) -> Messages; 2] = [
        |piece| vec![reply(vec![piece]), Err(Status::unavailable("stopping"))],
        |piece| vec![reply(vec![piece]), reply(vec![failed(0, dl_proto::Kind::Unavailable)])],
    ];
    for broken in breaks {
        let server = start(reading(move |request| {
            broken(pieces(0, &content(&asked(&request)[0]), 100).swap_remove(0))
        }));
        let request_timeout = Duration::from_secs(3);
        let dataset = open(ConnectOptions { request_timeout, ..options(&[server]) });
        let (clock, path) = (SystemClock::new(), path("a"));
        let began = clock.monotonic();
        assert_eq!(dataset.get(&path).unwrap_err().kind(), Kind::Unavailable);
        let took = clock.monotonic() - began;
        assert!(took < 2 * request_timeout, "{took:?}");
    }
}

/// A dataset with damaged bytes in the first answers, and the number of requests.
fn damaged(answers: usize) -> (Dataset, Arc<AtomicUsize>) {
    let tries = Arc::new(AtomicUsize::new(0));
    let tried = Arc::clone(&tries);
    let dataset = dataset(reading(move |request| {
        let mut pieces = pieces(0, &content(&asked(&request)[0]), 99_999);
        let turn = tried.fetch_add(1, Ordering::SeqCst);
        assert_eq!(request.pass_copies, turn > 0, "copies are read until then");
        if turn < answers {
            pieces[0].data = Bytes::from(vec![0; pieces[0].data.len()]);
        }
        vec![reply(pieces)]
    }));
    (dataset, tries)
}

#[test]
fn damaged_bytes_are_requested_once_more() {
    let (heals, tries) = damaged(1);
    assert!(heals.get("a").unwrap() == content(&path("a")));
    assert_eq!(tries.load(Ordering::SeqCst), 2);
    let (stays, tries) = damaged(9);
    let error = stays.get("a").unwrap_err();
    assert_eq!((error.kind(), error.subject()), (Kind::Corrupt, "dl://pets/a"));
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert!(why.contains(&chunk_id().to_string()), "{why}");
    assert_eq!(tries.load(Ordering::SeqCst), 2);
}

/// A file in parts of a length, with its last bytes in the chunk of its record.
#[derive(Clone)]
struct Large {
    bytes: Vec<u8>,
    part: usize,
    names_parts: bool,
}

impl Large {
    fn new(part: usize) -> Self {
        Self { bytes: data((20 << 20) + 5, 1), part, names_parts: true }
    }

    fn part_id(number: usize) -> ChunkId {
        ChunkId::from_bytes([number as u8 + 100; 16])
    }

    /// Pieces of a range; `damage` may change the bytes, by their offset in the file.
    fn pieces(&self, item: &dl_proto::ReadItem, damage: impl Fn(usize, &mut [u8])) -> Messages {
        let (mut start, length) = (item.offset as usize, item.length.unwrap() as usize);
        let end = start + length;
        let mut messages = Vec::new();
        while start < end {
            let number = start / self.part;
            let part = number * self.part..(number + 1) * self.part;
            let stop = end.min(part.end).min(start + (1 << 19));
            let mut bytes = self.bytes[start..stop].to_vec();
            damage(start, &mut bytes);
            let extent = (stop == part.end && self.names_parts).then(|| Extent {
                part: Self::part_id(number),
                length: self.part as u32,
                crc: Crc32c::of(&self.bytes[part]),
            });
            let (length, crc) = (self.bytes.len() as u64, Crc32c::of(b"not of the range"));
            let data = Ok(bytes.into());
            let piece = ReadPiece { item: 0, data, last: stop == end, length, crc, extent };
            messages.push(reply(vec![piece.into()]));
            start = stop;
        }
        messages
    }

    /// Reads the file; gives the written bytes and the result.
    fn read(
        &self,
        damage: impl Fn(usize, &mut [u8]) + Send + Sync + 'static,
    ) -> (Vec<u8>, Result<u64, Error>) {
        let stored = self.clone();
        let dataset = dataset(reading(move |request| {
            let item = &request.items[0];
            assert!(matches!(item.source, ReadSource::File(_)));
            stored.pieces(item, &damage)
        }));
        let mut written = Vec::new();
        let read = dataset.read_to((path("large"), record(&self.bytes)), &mut written);
        (written, read)
    }

    /// Checks for all parts before `number` as output, and `chunk` in the error.
    fn assert_ends_before(
        &self,
        number: usize,
        chunk: ChunkId,
        read: (Vec<u8>, Result<u64, Error>),
    ) {
        let (written, read) = (read.0, read.1.unwrap_err());
        assert_eq!(read.kind(), Kind::Corrupt);
        assert!(written == self.bytes[..number * self.part], "{} bytes", written.len());
        let why = std::error::Error::source(&read).unwrap().to_string();
        assert!(why.contains(&chunk.to_string()), "{why}");
    }
}

/// The part length of the writer, and longer and shorter lengths, cut by requests.
const PARTS: [usize; 3] = [(1 << 20) - 4096, 1 << 20, 300_001];

#[test]
fn a_damaged_part_is_named_and_ends_the_output() {
    for part in PARTS {
        let large = Large::new(part);
        let read = large.read(move |start, bytes| bytes[0] ^= u8::from(start / part == 9));
        large.assert_ends_before(9, Large::part_id(9), read);
        let last = large.bytes.len() / part;
        let read = large.read(move |start, bytes| bytes[0] ^= u8::from(start / part == last));
        large.assert_ends_before(last, chunk_id(), read);
    }
}

#[test]
fn a_part_damaged_in_transfer_is_read_again() {
    for part in PARTS {
        let (large, is_done) = (Large::new(part), AtomicBool::new(false));
        let (written, read) = large.read(move |start, bytes| {
            if start / part == 9 && !is_done.swap(true, Ordering::SeqCst) {
                bytes[0] ^= 1;
            }
        });
        assert_eq!(read.unwrap(), large.bytes.len() as u64);
        assert!(written == large.bytes, "parts of {part} bytes");
    }
}

#[test]
fn a_large_file_with_unknown_parts_is_not_kept_in_memory() {
    let large = Large { names_parts: false, ..Large::new(PARTS[0]) };
    let (written, read) = large.read(|_, _| ());
    assert_eq!((written.len(), read.unwrap_err().kind()), (0, Kind::Internal));
}

#[test]
fn a_small_file_is_copied_out_of_its_message_alone() {
    let message = Bytes::from(data(1 << 20, 2));
    for (length, copied) in [(4_096, true), (1 << 19, false)] {
        let bytes = message.slice(100..100 + length);
        let file = Arrived::with_message(bytes.clone(), message.len()).into_kept();
        assert_eq!((file.as_ptr() != bytes.as_ptr(), file == bytes), (copied, true));
    }
}

#[test]
fn an_answer_for_an_unknown_item_is_an_error() {
    let dataset = dataset(reading(|_| vec![reply(pieces(7, b"bytes", 9))]));
    assert_eq!(dataset.get("a").unwrap_err().kind(), Kind::Internal);
}

#[test]
fn requests_are_cut_by_count_and_by_known_bytes() {
    let sized = |length: u64| {
        let mut record = record(b"");
        record.length = length;
        ReadItem::from((path("a"), record))
    };
    let lengths = |items: &[ReadItem]| batches(items).map(|range| range.len()).collect::<Vec<_>>();
    assert_eq!(lengths(&vec![sized(1); 2_500]), [1_024, 1_024, 452]);
    assert_eq!(lengths(&[sized(9 << 20), sized(3 << 20), sized(1 << 20), sized(1)]), [1, 2, 1]);
    assert_eq!(lengths(&[]), [0; 0]);
}
