//! Headers read from the chunk store: at most two ranged reads each.

use bytes::Bytes;
use dl_format::Header;
use dl_proto::Kind;
use dl_store::{ByteRange, Key, ObjectRange};

use crate::error::Error;
use crate::parts::Parts;

/// Enough for the headers of about 700 files; longer ones need a second read.
const FIRST_READ: u64 = 64 << 10;

/// Reads and checks the header of one object.
pub(crate) async fn read_header(parts: &Parts, key: &Key) -> Result<Header, Error> {
    let mut headers = read_headers(parts, std::slice::from_ref(key)).await;
    headers.pop().unwrap_or_else(|| {
        Err(Error::new(Kind::Internal, "read header", key, "the store gave no answer"))
    })
}

/// Reads and checks the headers of many objects with two calls to the store; one result for each,
/// in order.
pub(crate) async fn read_headers(parts: &Parts, keys: &[Key]) -> Vec<Result<Header, Error>> {
    let range = ByteRange::up_to(FIRST_READ).expect("more than nothing");
    let wanted: Vec<_> = keys.iter().map(|key| ObjectRange { key: key.clone(), range }).collect();
    let mut heads = parts.store.read(&wanted).await;

    let rest: Vec<(usize, ObjectRange)> = heads
        .iter()
        .zip(keys)
        .enumerate()
        .filter_map(|(index, (head, key))| {
            let have = head.as_ref().ok()?.len() as u64;
            let length = Header::length(head.as_ref().ok()?).ok()? as u64;
            let range = ByteRange::exact(have, length).ok()?;
            (have == FIRST_READ).then(|| (index, ObjectRange { key: key.clone(), range }))
        })
        .collect();
    if !rest.is_empty() {
        let wanted: Vec<_> = rest.iter().map(|(_, wanted)| wanted.clone()).collect();
        let tails = parts.store.read(&wanted).await;
        for ((index, _), tail) in rest.into_iter().zip(tails) {
            if let Some(slot) = heads.get_mut(index) {
                *slot = match (std::mem::replace(slot, Ok(Bytes::new())), tail) {
                    (Ok(head), Ok(tail)) => Ok([head, tail].concat().into()),
                    (Err(error), _) | (_, Err(error)) => Err(error),
                };
            }
        }
    }
    heads
        .into_iter()
        .zip(keys)
        .map(|(head, key)| {
            let head = head.map_err(|error| Error::store("read header", key, error))?;
            Header::decode(&head)
                .map_err(|error| Error::new(Kind::Corrupt, "read header", key, error))
        })
        .collect()
}
