//! Checks of calls at the same time, through several handles of a store.
//!
//! Must hold: in whatever order objects come, all handles answer like the fold over them; of several chunk
//! stores one is bound.

use std::sync::Arc;

use dl_format::{Committed, StoreId};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::history::{Maker, read_back};
use super::model::Model;
use super::{id, put, record};
use crate::{Appended, Kind, MetaStore};

/// Objects that are appended at the same time.
const AT_ONCE: usize = 6;

/// Appends all of them at the same time, each twice, through the handles in turn; gives how many were new.
async fn append_at_once(handles: &[Arc<dyn MetaStore>], objects: &[Committed]) -> usize {
    let start = Arc::new(Barrier::new(2 * objects.len()));
    let mut tasks = JoinSet::new();
    for (object, store) in objects.iter().chain(objects).zip(handles.iter().cycle()) {
        let (object, store, start) = (read_back(object), Arc::clone(store), Arc::clone(&start));
        tasks.spawn(async move {
            start.wait().await;
            store.append(&object).await.expect("append")
        });
    }
    let answers = tasks.join_all().await;
    answers.iter().filter(|answer| **answer == Appended::New).count()
}

/// Overwrites, deletes of what comes at the same time, rewrites, objects that come twice. `handles` are of
/// one store, which is empty, and again afterwards.
pub(crate) async fn any_history_appended_at_once_is_answered_like_the_fold(
    handles: &[Arc<dyn MetaStore>],
    seed: u64,
) {
    let record = record("a", 1, 1);
    for store in handles {
        put(&**store, &record).await;
    }
    let mut model = Model::default();
    for objects in Maker::new(id(1), seed).history(40).chunks(AT_ONCE) {
        let new = append_at_once(handles, objects).await;
        let wanted = objects.iter().filter(|object| model.add(object) == Appended::New);
        assert_eq!(new, wanted.count(), "seed {seed}");
        for store in handles {
            model.check(&**store, id(1), 4).await;
        }
    }
    for store in handles {
        store.drop_dataset(&record.name, id(1)).await.expect("drop");
    }
}

/// Binds two handles of a new store at the same time to the given chunk stores, twice: a caller fails
/// exactly where the metadata belongs to the other chunk store.
pub(crate) async fn of_two_that_bind_at_once_one_wins(
    [first, second]: [&dyn MetaStore; 2],
    wanted: [StoreId; 2],
) {
    assert_eq!(first.identity().await.expect("ask a new store"), None);
    for _ in 0..2 {
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
}
