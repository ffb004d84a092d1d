//! Checks of objects that hold the same paths and are appended at the same time.
//!
//! Must hold: in whatever order they come, of each path the version with the greatest stamp is
//! found and listed, then that of the greatest chunk id, then of the greatest entry; it is the same
//! one through every handle of the store.

use std::sync::Arc;

use dl_format::{Committed, FilePath, FileRecord, Stamp, StoreId};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::history::{Maker, read_back};
use super::model::Model;
use super::{id, put, record};
use crate::{Found, Kind, MetaStore};

/// Objects that are appended at the same time.
const AT_ONCE: usize = 6;
const ROUNDS: u64 = 8;

/// What every chunk holds, each with a length of its own; one of them twice.
const PATHS: [&[u8]; 5] = [b"x", b"d/x", b"d/e/x", b"x", b"d/e/y"];

/// Appends all of them at the same time, through the handles in turn; gives each with what its
/// paths were right after it was there.
async fn append_at_once(
    handles: &[Arc<dyn MetaStore>],
    objects: &[Committed],
) -> Vec<(Committed, Vec<Found>)> {
    let start = Arc::new(Barrier::new(objects.len()));
    let mut tasks = JoinSet::new();
    for (object, store) in objects.iter().zip(handles.iter().cycle()) {
        let (object, store, start) = (read_back(object), Arc::clone(store), Arc::clone(&start));
        tasks.spawn(async move {
            let paths: Vec<FilePath> = object.header().entries().map(|entry| entry.path).collect();
            start.wait().await;
            store.append(&object).await.expect("append");
            let found = store.lookup(id(1), &paths).await.expect("look up what was appended");
            (object, found)
        });
    }
    tasks.join_all().await
}

/// `handles` are of one store, which is empty.
pub(crate) async fn of_appends_at_once_the_same_ones_win_everywhere(
    handles: &[Arc<dyn MetaStore>],
    seed: u64,
) {
    for store in handles {
        put(&**store, &record("a", 1, 1)).await;
    }
    let (mut maker, mut model) = (Maker::new(id(1), seed), Model::default());
    for round in 0..ROUNDS {
        let mut chunk = || {
            // Some before those of the round before, and some the same.
            let stamp = Stamp::new(1_000 + 4 * round + maker.below(8) as u64);
            let files: Vec<_> = PATHS.iter().map(|path| (*path, maker.below(1_000))).collect();
            maker.chunk_at(stamp, files)
        };
        let objects: Vec<_> = (0..AT_ONCE).map(|_| chunk()).collect();
        objects.iter().for_each(|object| _ = model.add(object));
        for (object, found) in append_at_once(handles, &objects).await {
            for (entry, found) in object.header().entries().zip(&found) {
                let mine = FileRecord::of(&object, &entry).version;
                let is_seen = matches!(found, Found::File(record) if record.version >= mine);
                assert!(is_seen, "seed {seed}, {}: {mine:?}, then {found:?}", entry.path);
            }
        }
        for store in handles {
            model.check(&**store, id(1), 3).await;
        }
    }
}

/// The same of anything: deletes of what comes at the same time, rewrites, objects that come twice.
pub(crate) async fn any_history_appended_at_once_is_answered_like_the_fold(
    handles: &[Arc<dyn MetaStore>],
    seed: u64,
) {
    for store in handles {
        put(&**store, &record("a", 1, 1)).await;
    }
    let mut model = Model::default();
    for objects in Maker::new(id(1), seed).history(40).chunks(AT_ONCE) {
        append_at_once(handles, objects).await;
        objects.iter().for_each(|object| _ = model.add(object));
        for store in handles {
            model.check(&**store, id(1), 4).await;
        }
    }
}

/// Binds two handles of a new store at the same time to the given chunk stores: a caller fails exactly where
/// the metadata belongs to the other chunk store.
pub(crate) async fn of_two_that_bind_at_once_one_wins(
    [first, second]: [&dyn MetaStore; 2],
    wanted: [StoreId; 2],
) {
    let ended = tokio::join!(first.bind(wanted[0]), second.bind(wanted[1]));
    let bound = first.identity().await.expect("ask");
    for (wanted, ended) in wanted.into_iter().zip([ended.0, ended.1]) {
        let refusal = (bound != Some(wanted)).then_some(Kind::Conflict);
        assert_eq!(ended.err().map(|error| error.kind), refusal, "{wanted} of {bound:?}");
    }
    for store in [first, second] {
        assert_eq!(store.damage().await.expect("look for damage"), None);
        assert_eq!(store.identity().await.expect("ask"), bound);
    }
}
