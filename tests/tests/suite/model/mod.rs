//! Random histories against libdiesel and a plain map, compared in full after each step.
//!
//! Must hold: after any operation, through any server, dataset and map are equal.

mod plain;
mod run;
mod servers;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::{FaultMeta, MetaStore};
use dl_runtime::SeededRandom;
use dl_runtime::fault::{CutPoint, Faults, Rates};
use dl_server::ServerContext;
use dl_store::{FaultStore, Store};
use dl_tests::cluster::{clock, context};
use dl_tests::rounds;

use self::run::Run;
use self::servers::{Chaos, Metadata};

const STEPS: usize = 60;

/// Each request of the client goes to the other of two servers.
fn compare_with_a_map(metadata: Metadata, count: u64) -> Result<()> {
    let mut purged = 0;
    for seed in 0..count {
        let mut run = Run::start(seed, metadata, None)?;
        run.steps(STEPS).with_context(|| format!("seed {seed}"))?;
        purged += run.end().with_context(|| format!("seed {seed}"))?;
    }
    ensure!(purged > 0, "purges had nothing to do");
    Ok(())
}

/// Keeps S-04 (I4), S-07 (I6) and S-41.
#[test]
fn every_server_agrees_with_a_plain_map() -> Result<()> {
    compare_with_a_map(Metadata::Memory, rounds(3, 60))
}

/// Keeps S-04 (I4), S-07 (I6) and S-41.
#[test]
fn embedded_metadata_agree_with_a_plain_map() -> Result<()> {
    compare_with_a_map(Metadata::Embedded, rounds(3, 60))
}

/// Keeps S-04 (I4), S-07 (I6), S-21 and S-41: each server has its own handle.
#[test]
fn metadata_in_redis_agree_with_a_plain_map() -> Result<()> {
    compare_with_a_map(Metadata::Redis, rounds(3, 60))
}

/// Keeps S-01 (I1) and S-06 (I6): errors and lost answers from both stores.
#[test]
fn failing_stores_and_lost_answers_lose_and_double_nothing() -> Result<()> {
    for seed in 100..100 + rounds(1, 50) {
        for metadata in [Metadata::Memory, Metadata::Embedded, Metadata::Redis] {
            let mut run = Run::start(seed, metadata, Some(chaos(seed)))?;
            run.steps(STEPS / 2).with_context(|| format!("seed {seed}, {metadata:?}"))?;
            run.end().with_context(|| format!("seed {seed}, {metadata:?}"))?;
        }
    }
    Ok(())
}

fn chaos(seed: u64) -> Chaos {
    let store = Faults::new(Arc::new(SeededRandom::new(seed)));
    let meta = Faults::new(Arc::new(SeededRandom::new(!seed)));
    let (for_store, for_meta) = (store.clone(), meta.clone());
    Chaos {
        wrap: Box::new(
            move |inner: Arc<dyn Store>, inner_meta: Arc<dyn MetaStore>| -> ServerContext {
                let cut = CutPoint::new();
                let store = FaultStore::new(inner, clock(), store.clone(), cut.clone());
                let meta: Arc<dyn MetaStore> =
                    Arc::new(FaultMeta::new(inner_meta, clock(), meta.clone(), cut));
                context(Arc::new(store), meta)
            },
        ),
        set: Box::new(move |is_on| {
            for operation in ["create", "read", "delete", "settle", "list"] {
                for_store.set_rates(operation, is_on.then(|| rates(dl_store::Kind::Unavailable)));
            }
            for operation in [
                "put_dataset",
                "record",
                "record_named",
                "outline",
                "drop_dataset",
                "stamp",
                "append",
                "objects",
                "lookup",
                "list",
            ] {
                for_meta.set_rates(operation, is_on.then(|| rates(dl_meta::Kind::Unavailable)));
            }
        }),
    }
}

fn rates<Error>(error: Error) -> Rates<Error> {
    let longest_delay = Duration::from_millis(5);
    Rates { before: 0.03, answer_lost: 0.03, delay: 0.1, longest_delay, error }
}
