//! Redis as a metadata store, on real servers.

mod address;
mod bind;
mod bounds;
mod contract;
mod faults;
mod layout;
mod loss;
mod orphan_rows;
mod together;
mod unfit;
mod walks;

use std::sync::Arc;
use std::time::Duration;

use dl_format::{ChunkShape, DatasetId, DatasetName, FilePath, Stamp, StoreId};
use dl_runtime::SystemClock;

use super::{Redis, RedisOptions};
use crate::{DatasetRecord, DatasetState};

const STORE: StoreId = StoreId::from_bytes([1; 16]);

async fn open(url: &str) -> Redis {
    Redis::open(url, RedisOptions::default(), Arc::new(SystemClock::new())).await.unwrap()
}

/// Gives up soon.
fn hasty() -> RedisOptions {
    RedisOptions { patience: Duration::from_millis(1_500), ..RedisOptions::default() }
}

fn id() -> DatasetId {
    DatasetId::from_bytes([1; 16])
}

fn record() -> DatasetRecord {
    DatasetRecord {
        name: DatasetName::new("a").unwrap(),
        generation: 1,
        id: id(),
        shape: ChunkShape::default(),
        created: Stamp::new(9),
        state: DatasetState::Live,
    }
}

fn path(text: impl AsRef<[u8]>) -> FilePath {
    FilePath::new(text.as_ref().to_vec()).unwrap()
}

fn reason(error: &crate::Error) -> String {
    std::error::Error::source(error).map(ToString::to_string).unwrap_or_default()
}
