//! What becomes of a read whose chunk is not in the store any more: a purge may have moved its
//! files into another chunk after they were looked up.
//!
//! Must hold: a file that was asked for by its path is looked up again; bytes of two versions are
//! never put together; a chunk that should be there is damage, and not an answer.

use std::collections::HashMap;

use dl_format::{DatasetId, parse_object_key};
use dl_proto::Kind;
use dl_store::Key;

use crate::error::Error;
use crate::parts::Parts;
use crate::survey::is_logged;

/// How often an item is looked up again.
const TIMES: u8 = 3;

/// How often which items were looked up again.
#[derive(Debug, Default)]
pub(crate) struct Again {
    times: HashMap<u32, u8>,
}

/// What to do about an item.
#[derive(Debug)]
pub(crate) enum Next {
    /// Look it up again.
    LookUp(u32),
    /// Say why it can't be had.
    Tell(u32, Kind, String),
}

impl Again {
    /// What to do about items, each with the key that was not found; of the one that has `begun`,
    /// bytes are on their way to the client.
    pub(crate) async fn next(
        &mut self,
        parts: &Parts,
        dataset: DatasetId,
        missing: Vec<(u32, Key)>,
        has_path: impl Fn(u32) -> bool,
        begun: Option<u32>,
    ) -> Result<Vec<Next>, Error> {
        let mut next = Vec::with_capacity(missing.len());
        for (number, key) in missing {
            let times = self.times.entry(number).or_default();
            *times += 1;
            if *times <= TIMES && begun != Some(number) && has_path(number) {
                next.push(Next::LookUp(number));
            } else if is_expected(parts, dataset, &key).await? {
                let why = format!("read {key}: it is not in the chunk store");
                next.push(Next::Tell(number, Kind::Corrupt, why));
            } else {
                let kind = if has_path(number) { Kind::Unavailable } else { Kind::NotFound };
                let why = "its chunk was purged since it was looked up; look it up again";
                next.push(Next::Tell(number, kind, why.to_owned()));
            }
        }
        Ok(next)
    }
}

/// Whether the log has the object of a key.
async fn is_expected(parts: &Parts, dataset: DatasetId, key: &Key) -> Result<bool, Error> {
    match parse_object_key(key.as_str()) {
        Some((_, id, _)) => is_logged(parts, dataset, id).await,
        None => Ok(true),
    }
}
