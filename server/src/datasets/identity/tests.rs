//! Stores that are put together: at once by two servers, and such as don't belong together.

use std::sync::Arc;

use dl_meta::{Memory, MetaStore};
use dl_runtime::SystemClock;
use dl_store::Store;

use super::*;
use crate::Limits;
use crate::testing::{Careless, rig};

async fn context(store: Arc<dyn Store>, meta: Arc<dyn MetaStore>) -> ServerContext {
    let limits = Limits { read_back_delay: Duration::from_millis(50), ..Limits::default() };
    ServerContext {
        store,
        meta,
        limits,
        clock: Arc::new(SystemClock::new()),
        ..rig().await.context
    }
}

#[tokio::test]
async fn servers_on_a_careless_bucket_agree_on_its_identity() {
    for _ in 0..10 {
        let bucket: Arc<dyn Store> = Arc::new(Careless::new(dl_store::memory()));
        let first = context(Arc::clone(&bucket), Arc::new(Memory::new())).await;
        let second = first.clone();
        let (one, other) = futures::future::join(bind(&first), bind(&second)).await;
        assert_eq!((one.unwrap(), other.unwrap()), (Bound::Known, Bound::Known));
        assert_eq!(of_meta(&first).await.unwrap(), of_store(&first).await.unwrap());
    }
}

#[tokio::test]
async fn metadata_of_another_chunk_store_are_noticed() {
    let meta: Arc<dyn MetaStore> = Arc::new(Memory::new());
    let first = context(dl_store::memory(), Arc::clone(&meta)).await;
    let second = context(dl_store::memory(), Arc::new(Memory::new())).await;
    let (mut tie, mut other) = (Tie::default(), Tie::default());
    bind(&first).await.unwrap();
    bind(&second).await.unwrap();
    tie.check(&first).await.unwrap();
    other.check(&second).await.unwrap();
    let mixed = ServerContext { meta, ..second };
    for error in [other.check(&mixed).await.unwrap_err(), bind(&mixed).await.unwrap_err()] {
        assert_eq!(error.kind, Kind::Conflict);
        assert!(error.chain().contains("check --store and --meta"), "{}", error.chain());
    }
    tie.check(&first).await.unwrap();
}

#[tokio::test]
async fn a_lost_identity_is_rewritten_by_recovery_and_servers() {
    let mut rig = rig().await;
    rig.create("ds").await;
    let bound = of_meta(&rig.context).await.unwrap();
    let lost = key(IDENTITY_KEY.to_owned());
    let mut tie = Tie::default();
    for by_recovery in [true, false] {
        rig.context.store.delete(&lost).await.unwrap();
        if by_recovery {
            rig.run(of_recovered(&rig.context)).await.0.unwrap();
        } else {
            rig.run(tie.check(&rig.context)).await.0.unwrap();
        }
        assert_eq!(of_store(&rig.context).await.unwrap(), bound, "{by_recovery}");
        bind(&rig.context).await.unwrap();
    }
    // Of one that was emptied, or is not mounted, nobody makes another one.
    rig.context.store = dl_store::memory();
    assert_eq!(of_recovered(&rig.context).await.unwrap_err().kind, Kind::Conflict);
    Tie::default().check(&rig.context).await.unwrap();
    assert_eq!(of_store(&rig.context).await.unwrap(), None);
}
