//! Neighbouring files with scripted servers: a shared range, and separate failures.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use dl_format::{Crc32c, FileRecord};
use dl_proto::{ReadPiece, ReadRequest, ReadSource, pb};
use tonic::Status;

use super::{GAP_BYTES, RUN_BYTES};
use crate::error::Kind;
use crate::remote::ReadItem;
use crate::remote::testing::{Script, data, dataset, path, record};

/// The offset and length of each requested range.
type Asked = Vec<(u32, u32)>;

/// Files at the given offsets and lengths in a chunk.
fn files(chunk: &[u8], places: &[(u32, u32)]) -> Vec<ReadItem> {
    let file = |(number, (offset, length)): (usize, &(u32, u32))| {
        let bytes = &chunk[*offset as usize..(*offset + *length) as usize];
        let record = FileRecord { offset: *offset, ..record(bytes) };
        ReadItem::from((path(&format!("file{number}")), record))
    };
    places.iter().enumerate().map(file).collect()
}

fn place(source: &ReadSource) -> (u32, u32) {
    match source {
        ReadSource::File(file) => (file.offset, file.stored),
        ReadSource::Path(path) => panic!("{path} was asked for by its path"),
    }
}

/// Serves ranges of a chunk through `answer`, and records the ranges of each request.
fn serving(
    chunk: Vec<u8>,
    answer: impl Fn(usize, (u32, u32), Vec<u8>) -> Result<Vec<u8>, dl_proto::Kind>
    + Send
    + Sync
    + 'static,
) -> (Script, Arc<Mutex<Vec<Asked>>>) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    let read = move |request: ReadRequest| {
        let asked: Asked = request.items.iter().map(|item| place(&item.source)).collect();
        let turn = seen.lock().unwrap().len();
        seen.lock().unwrap().push(asked.clone());
        let pieces = (0..).zip(asked).map(|(item, (offset, length))| {
            let bytes = chunk[offset as usize..(offset + length) as usize].to_vec();
            let data = answer(turn, (offset, length), bytes).map(Bytes::from);
            let data = data.map_err(|kind| (kind, "on purpose".to_owned()));
            let crc = Crc32c::default();
            ReadPiece { item, data, last: true, length: length.into(), crc, extent: None }.into()
        });
        vec![Ok::<_, Status>(pb::ReadReply { pieces: pieces.collect() })]
    };
    (Script { read: Box::new(read), ..Script::default() }, requests)
}

fn read(script: Script, items: &[ReadItem]) -> Vec<Result<Vec<u8>, Kind>> {
    let mut came = vec![None; items.len()];
    dataset(script).read_files(items.to_vec(), &mut |item, file| {
        let before = came[item].replace(file.map(<[u8]>::to_vec).map_err(|error| error.kind()));
        assert_eq!(before, None, "each file once");
    });
    came.into_iter().map(|file| file.expect("each file")).collect()
}

fn expected(chunk: &[u8], places: &[(u32, u32)]) -> Vec<Result<Vec<u8>, Kind>> {
    let bytes = |(offset, length): &(u32, u32)| {
        Ok(chunk[*offset as usize..(*offset + *length) as usize].to_vec())
    };
    places.iter().map(bytes).collect()
}

#[test]
fn neighbours_are_requested_as_one_range_and_arrive_as_files() {
    let chunk = data(2 << 20, 3);
    let far = 8_192 + 300 + GAP_BYTES + 1;
    // Unordered, with a repeated file, an empty file, and a file too long to share a range.
    let places = [
        (8_192, 300),
        (4_096, 4_096),
        (far, 10),
        (4_096, 4_096),
        (far + 64, 0),
        (far + 64, RUN_BYTES - 74),
        (far + RUN_BYTES, 100),
    ];
    let (script, requests) = serving(chunk.clone(), |_, _, bytes| Ok(bytes));
    assert!(read(script, &files(&chunk, &places)) == expected(&chunk, &places));
    let mut asked = requests.lock().unwrap().concat();
    asked.sort_unstable();
    assert_eq!(
        asked,
        [
            (4_096, 4_096),
            (4_096, 4_396),
            (far, RUN_BYTES - 10),
            (far + 64, 0),
            (far + RUN_BYTES, 100)
        ]
    );
}

#[test]
fn a_damaged_file_is_requested_again_alone() {
    let chunk = data(64 << 10, 3);
    let places = [(4_096, 1_000), (5_120, 1_000), (6_144, 1_000)];
    let items = files(&chunk, &places);
    for heals in [true, false] {
        let (script, requests) = serving(chunk.clone(), move |turn, (offset, _), mut bytes| {
            if turn == 0 || !heals {
                bytes[(5_200u32.saturating_sub(offset)) as usize] ^= 1;
            }
            Ok(bytes)
        });
        let mut wanted = expected(&chunk, &places);
        if !heals {
            wanted[1] = Err(Kind::Corrupt);
        }
        assert!(read(script, &items) == wanted);
        assert_eq!(*requests.lock().unwrap(), [vec![(4_096, 3_048)], vec![(5_120, 1_000)]]);
    }
}

#[test]
fn the_failure_of_a_range_does_not_condemn_its_files() {
    let chunk = data(64 << 10, 3);
    let places = [(4_096, 1_000), (5_120, 1_000), (6_144, 1_000)];
    let items = files(&chunk, &places);
    // A range with the unreadable file fails.
    let (script, requests) = serving(chunk.clone(), |_, (offset, length), bytes| {
        let holds_bad = (offset..offset + length).contains(&5_120);
        if holds_bad { Err(dl_proto::Kind::Corrupt) } else { Ok(bytes) }
    });
    let mut wanted = expected(&chunk, &places);
    wanted[1] = Err(Kind::Corrupt);
    assert!(read(script, &items) == wanted);
    assert_eq!(requests.lock().unwrap().len(), 2);
}

#[test]
fn a_short_range_fails_only_the_missing_files() {
    let chunk = data(64 << 10, 3);
    let places = [(4_096, 1_000), (5_120, 1_000)];
    let items = files(&chunk, &places);
    let (script, requests) = serving(chunk.clone(), |turn, _, mut bytes| {
        bytes.truncate(if turn == 0 { 1_500 } else { 1_000 });
        Ok(bytes)
    });
    assert!(read(script, &items) == expected(&chunk, &places));
    assert_eq!(*requests.lock().unwrap(), [vec![(4_096, 2_024)], vec![(5_120, 1_000)]]);
}
