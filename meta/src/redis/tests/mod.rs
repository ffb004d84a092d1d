//! Redis as a metadata store, on real servers.

mod address;
mod bounds;
mod contract;
mod faults;
mod identity;
mod layout;
mod loss;
mod orphan_rows;
mod together;
mod unfit;
mod walks;

use std::sync::Arc;
use std::time::Duration;

use dl_format::{Committed, DatasetId, DirPath, FilePath, StoreId};
use dl_runtime::SystemClock;
use redis::Value;

use super::command::Ask;
use super::keys::Keys;
use super::testing::{Cluster, Server, eventually};
use super::{Redis, RedisOptions};
use crate::conformance::model::Model;
use crate::{DatasetRecord, Datasets, Error, Integrity, ListQuery, MetaStore, conformance};

const STORE: StoreId = StoreId::from_bytes([1; 16]);

async fn open(url: &str) -> Redis {
    open_with(url, RedisOptions::default()).await.unwrap()
}

async fn open_with(url: &str, options: RedisOptions) -> Result<Redis, Error> {
    Redis::open(url, options, Arc::new(SystemClock::new())).await
}

/// Gives up soon.
fn hasty() -> RedisOptions {
    RedisOptions { patience: Duration::from_millis(1_500), ..RedisOptions::default() }
}

/// New metadata of a chunk store, with a dataset of these objects.
async fn filled(url: &str, objects: impl IntoIterator<Item = &Committed>) -> Redis {
    let store = open(url).await;
    store.bind(STORE).await.unwrap();
    append(&store, objects).await;
    store
}

/// Puts the dataset and appends its objects.
async fn append(store: &Redis, objects: impl IntoIterator<Item = &Committed>) {
    store.put_dataset(&record()).await.unwrap();
    for object in objects {
        store.append(object).await.unwrap();
    }
}

/// Compares all answers about the dataset with those that its objects give.
async fn check(store: &Redis, objects: impl IntoIterator<Item = &Committed>) {
    Model::of(objects).check(store, id(), 1_000).await;
}

async fn ask(store: &Redis, ask: Ask) -> Value {
    store.shared.router.ask_one(ask).await.unwrap()
}

async fn keys_of(store: &Redis) -> Keys {
    store.shared.keys_of(id()).await.unwrap().unwrap()
}

/// Whether the root folder has hashed buckets.
async fn is_large(store: &Redis) -> bool {
    store.shared.root(id()).await.unwrap().unwrap().is_large
}

/// Makes an object look as if its maker had died before it wrote the rows of some folders, at a time.
async fn as_left_by_a_dead_maker(store: &Redis, object: &Committed, millis: u64, rows: &[&[u8]]) {
    let keys = keys_of(store).await;
    let todo = Ask::to(&keys.todo(), "HSET").arg(object.header().id().as_bytes());
    ask(store, todo.arg(format!("x {millis}"))).await;
    for folder in rows {
        ask(store, Ask::to(&keys.rows(0, folder), "UNLINK")).await;
    }
}

/// All keys of a cluster that match a pattern.
async fn keys_like(cluster: &Cluster, pattern: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for server in cluster.servers() {
        let keys = server.ask(&["KEYS", pattern]).await;
        found.extend(redis::from_redis_value::<Vec<String>>(keys).unwrap());
    }
    found
}

/// How often a Redis ran a command.
async fn calls(server: &Server, command: &str) -> u64 {
    server.number("commandstats", &format!("cmdstat_{command}:calls=")).await
}

async fn set(server: &Server, setting: &str, value: impl ToString) {
    server.ask(&["CONFIG", "SET", setting, &value.to_string()]).await;
}

/// Ends a primary, and waits for its replica.
async fn fail_over(victim: &Server, heir: &Server) {
    victim.kill();
    eventually("the replica takes over", || async {
        heir.text(&["INFO", "replication"]).await.contains("role:master")
    })
    .await;
}

fn id() -> DatasetId {
    record().id
}

fn record() -> DatasetRecord {
    conformance::record("a", 1, 1)
}

fn path(text: impl AsRef<[u8]>) -> FilePath {
    FilePath::new(text.as_ref().to_vec()).unwrap()
}

/// A listing of the whole dataset.
fn whole() -> ListQuery {
    ListQuery::of(DirPath::ROOT, true, 10_000)
}

fn reason(error: &Error) -> String {
    std::error::Error::source(error).map(ToString::to_string).unwrap_or_default()
}
