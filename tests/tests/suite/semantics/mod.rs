//! Promises of docs/SEMANTICS.md whose tests need no crash and no program, only servers over stores
//! of the test.

mod forward;
mod late;
mod looked_up;
mod many;
mod order;
mod since;
mod stores;
mod together;

use std::sync::Arc;

use anyhow::Result;
use dl_format::{ChunkId, ChunkIdMaker};
use dl_meta::{Memory, MetaStore, Stop};
use dl_server::prepare;
use dl_store::Store;
use dl_tests::cluster::{Running, clock, context};
use dl_tests::wire::Wire;

/// A server with its own metadata over `store`.
async fn serve(store: &Arc<dyn Store>) -> Result<(Running, Wire)> {
    serve_with(store, Arc::new(Memory::new())).await
}

async fn serve_with(store: &Arc<dyn Store>, meta: Arc<dyn MetaStore>) -> Result<(Running, Wire)> {
    let context = context(Arc::clone(store), meta);
    prepare(&context, Stop::Fresh).await?;
    let server = Running::start(context).await?;
    let client = Wire::connect(server.address()).await?;
    Ok((server, client))
}

/// The next id of a writer with a clock difference in seconds.
fn id(writer: &mut ChunkIdMaker, seconds: i64) -> ChunkId {
    let (now, off) = (clock().now(), std::time::Duration::from_secs(seconds.unsigned_abs()));
    writer.next(if seconds < 0 { now - off } else { now + off })
}
