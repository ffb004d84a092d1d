//! Lost answers: a history runs once for each write to chunk store and metadata, and the caller
//! repeats the request after an error.
//!
//! Must hold: the repeated request has the same result as the first, at the same server or another.

use anyhow::{Context, Result, ensure};
use dl_meta::Kind as MetaKind;
use dl_runtime::fault::{Fault, Faults};
use dl_store::Kind as StoreKind;

use super::history::{History, Journal};
use super::world::{Metadata, World};

/// Operations that write to the chunk store.
const OF_STORE: [&str; 3] = ["create", "settle", "delete"];

/// Operations that write to the metadata; the history retires no object.
const OF_METADATA: [&str; 7] =
    ["bind", "put_dataset", "drop_dataset", "stamp", "append", "begin_rebuild", "end_rebuild"];

/// Loses the answer of the call after `before` calls.
fn lose<K: Copy + std::fmt::Debug>(
    faults: &Faults<K>,
    operation: &'static str,
    before: usize,
    error: K,
) {
    let passed = std::iter::repeat_n(None, before);
    faults.script(operation, passed.chain([Some(Fault::AnswerLost(error))]));
}

/// Runs the history with a lost answer, then repeats all requests; false if no answer was lost.
async fn run(
    world: &mut World,
    history: &History,
    is_lost: impl Fn(&World) -> bool,
) -> Result<bool> {
    let mut journal = Journal::default();
    world.asks_again = true;
    // A server without an answer during its start ends and is restarted.
    if world.live(history, &mut journal).await.is_err() {
        world.live(history, &mut journal).await.context("by the next server")?;
    }
    world.asks_again = false;
    if !is_lost(world) {
        return Ok(false);
    }
    world.check(&journal).await.context("at the end")?;
    world.retry_all(&journal).await.context("every request again")?;
    world.check(&journal).await.context("after every request again")?;
    world.check_without_metadata(&journal).await.context("recovered at the end")?;
    Ok(true)
}

/// Loses the answer of each call of the operation in turn; returns the count of calls.
async fn lose_each(
    metadata: Metadata,
    operation: &'static str,
    lose: impl Fn(&World, usize),
    is_lost: impl Fn(&World) -> bool,
) -> Result<usize> {
    let history = History::new();
    for write in 0..10_000 {
        let mut world = World::new(metadata);
        lose(&world, write);
        let was_lost = run(&mut world, &history, &is_lost).await;
        if !was_lost.with_context(|| format!("no answer to {operation} number {write}"))? {
            return Ok(write);
        }
    }
    anyhow::bail!("the history has no end")
}

async fn lose_everywhere(metadata: Metadata) -> Result<()> {
    for operation in OF_STORE {
        let lose = |world: &World, write| {
            lose(&world.store_faults, operation, write, StoreKind::Unavailable);
        };
        let is_lost = |world: &World| world.store_faults.is_used_up(operation);
        let count = lose_each(metadata, operation, lose, is_lost).await?;
        ensure!(count > 0, "the history has no {operation}");
    }
    for operation in OF_METADATA {
        let lose = |world: &World, write| {
            lose(&world.meta_faults, operation, write, MetaKind::Unavailable);
        };
        let is_lost = |world: &World| world.meta_faults.is_used_up(operation);
        let count = lose_each(metadata, operation, lose, is_lost).await?;
        ensure!(count > 0, "the history has no {operation}");
    }
    Ok(())
}

/// Keeps S-01 (I1), S-03 and S-06 (I6).
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_at_any_write_doubles_and_loses_nothing() -> Result<()> {
    lose_everywhere(Metadata::Survives).await
}

/// Keeps S-01 (I1), S-03 and S-06 (I6).
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_with_embedded_metadata_changes_nothing() -> Result<()> {
    lose_everywhere(Metadata::OnDisk).await
}
