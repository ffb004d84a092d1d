//! Headers read from the chunk store: at most two ranged reads each.
//!
//! Must hold: each header was checked as a whole.

use bytes::Bytes;
use dl_format::Header;
use dl_proto::Kind;
use dl_store::{ByteRange, Key, ObjectRange, StoreExt};

use crate::error::{Doing, Error};
use crate::shared::context::ServerContext;

/// Enough for the headers of about 700 files; longer ones need a second read.
pub(crate) const FIRST_READ: u64 = 64 << 10;

/// Reads and checks the header of an object.
pub(crate) async fn read_header(context: &ServerContext, key: &Key) -> Result<Header, Error> {
    let range = ByteRange::up_to(FIRST_READ).expect("more than nothing");
    let mut head = context.store.read_one(key, range).await.storing("read header", key)?;
    if let Some(length) = longer(&head) {
        // From the beginning: such a read goes to the object, not to a copy.
        let range = ByteRange::up_to(length).expect("more than nothing");
        head = context.store.read_one(key, range).await.storing("read header", key)?;
    }
    decode(key, &head)
}

/// Reads and checks headers with a single call, in order; the inner error is a length above [`FIRST_READ`].
pub(crate) async fn read_headers(
    context: &ServerContext,
    keys: &[Key],
) -> Vec<Result<Result<Header, u64>, Error>> {
    let range = ByteRange::up_to(FIRST_READ).expect("more than nothing");
    let wanted: Vec<_> = keys.iter().map(|key| ObjectRange { key: key.clone(), range }).collect();
    let heads = context.store.read(&wanted).await;
    let header = |(head, key): (Result<Bytes, _>, &Key)| {
        let head = head.storing("read header", key)?;
        match longer(&head) {
            Some(length) => Ok(Err(length)),
            None => decode(key, &head).map(Ok),
        }
    };
    heads.into_iter().zip(keys).map(header).collect()
}

/// The length of a header, if `head` is only its beginning.
fn longer(head: &Bytes) -> Option<u64> {
    let length = Header::length(head).ok()? as u64;
    (head.len() as u64 == FIRST_READ && length > FIRST_READ).then_some(length)
}

fn decode(key: &Key, head: &Bytes) -> Result<Header, Error> {
    Header::decode(head).map_err(|error| Error::new(Kind::Corrupt, "read header", key, error))
}
