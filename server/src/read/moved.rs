//! Handles reads of missing chunks, as a purge may have moved files since their look-up.
//!
//! Must hold: a file asked for by path is looked up again. Bytes of two versions never mix. A missing chunk in
//! the log is damage, not an answer; the log is read once for each chunk, not for each file.

use std::collections::{BTreeSet, HashMap};

use dl_format::{DatasetId, parse_object_key};
use dl_proto::Kind;
use dl_store::Key;
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::datasets::survey::is_logged;
use crate::error::Error;
use crate::shared::context::ServerContext;

/// Most look-ups of an item after the first.
const TIMES: u8 = 3;

/// Chunks looked up in the log at once.
const AT_ONCE: usize = 16;

/// Repeated look-ups by item.
#[derive(Debug, Default)]
pub(crate) struct Again {
    times: HashMap<u32, u8>,
}

/// The next step for an item.
#[derive(Debug)]
pub(crate) enum Next {
    /// Look the item up again.
    LookUp(u32),
    /// Answer with the error.
    Tell(u32, Kind, String),
}

impl Again {
    /// The next step for items with missing keys; bytes of the item `begun` are on their way.
    pub(crate) async fn next(
        &mut self,
        context: &ServerContext,
        dataset: DatasetId,
        missing: Vec<(u32, Key)>,
        has_path: impl Fn(u32) -> bool,
        begun: Option<u32>,
    ) -> Result<Vec<Next>, Error> {
        let mut next = Vec::with_capacity(missing.len());
        let mut lost = Vec::new();
        for (number, key) in missing {
            let times = self.times.entry(number).or_default();
            *times += 1;
            if *times <= TIMES && begun != Some(number) && has_path(number) {
                next.push(Next::LookUp(number));
            } else {
                lost.push((number, key));
            }
        }
        // Once for all files of a chunk.
        let keys: BTreeSet<Key> = lost.iter().map(|(_, key)| key.clone()).collect();
        let asked = stream::iter(keys).map(|key| async move {
            let is_expected = is_expected(context, dataset, &key).await?;
            Ok::<_, Error>((key, is_expected))
        });
        let expected: HashMap<Key, bool> = asked.buffered(AT_ONCE).try_collect().await?;
        next.extend(lost.iter().map(|(number, key)| {
            if expected.get(key).copied().unwrap_or(true) {
                let why = format!("read {key}: it is not in the chunk store");
                return Next::Tell(*number, Kind::Corrupt, why);
            }
            let kind = if has_path(*number) { Kind::Unavailable } else { Kind::NotFound };
            let why = "its chunk, or a part of it, was purged since it was looked up, or is lost; look it \
                       up again, and run `dlcmd verify` when that gives the same";
            Next::Tell(*number, kind, why.to_owned())
        }));
        Ok(next)
    }
}

/// Whether the log has the object of a key; true for other keys.
async fn is_expected(
    context: &ServerContext,
    dataset: DatasetId,
    key: &Key,
) -> Result<bool, Error> {
    match parse_object_key(key.as_str()) {
        Some((_, id, _)) => is_logged(context, dataset, id).await,
        None => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use dl_format::{ChunkIdMaker, ObjectKind};
    use dl_runtime::fault::Fault;

    use super::*;
    use crate::shared::context::object_key;
    use crate::testing::rig;

    #[tokio::test]
    async fn the_log_is_asked_once_for_missing_chunks_in_batches() {
        let rig = rig().await;
        let dataset = rig.create("ds").await;
        let mut ids = ChunkIdMaker::new([7; 9]);
        let keys: Vec<Key> = (0..2 * AT_ONCE)
            .map(|_| object_key(dataset, ids.next(rig.context.clock.now()), ObjectKind::Chunk))
            .collect();
        let missing: Vec<_> = (0..3_000).zip(keys.into_iter().cycle()).collect();
        rig.meta.script("objects", [Some(Fault::Delay(Duration::from_secs(1))); 1_000]);
        let mut again = Again::default();
        let asked = again.next(&rig.context, dataset, missing, |_| false, None);
        let (next, seconds) = rig.run(asked).await;
        let next = next.unwrap();
        assert!(next.iter().all(|next| matches!(next, Next::Tell(_, Kind::NotFound, _))));
        assert_eq!((next.len(), seconds), (3_000, 2));
    }
}
