//! The memory use of agents and workers.

use std::cell::Cell;

use anyhow::{Result, ensure};
use dl_tests::program::memory;
use dl_tests::tell;

use super::Scene;

const MIB: u64 = 1 << 20;

#[test]
fn heavy_an_agent_keeps_its_budget_and_a_worker_takes_little() -> Result<()> {
    const BUDGET: u64 = 64 * MIB;
    let scene = Scene::stamped(9_000)?;
    scene.start_agent(&["--memory", "64MiB", "--policy", "oneshot"])?;
    let agent = scene.agent()?.as_raw_nonzero();
    let most = Cell::new(0);
    let look = || {
        let now = memory(agent, &["RssAnon", "RssShmem"])?;
        most.set(now.max(most.get()));
        anyhow::Ok(())
    };
    scene.wait_until(|status| {
        look().is_ok() && status["chunks_present"].as_u64().is_some_and(|chunks| chunks >= 60)
    })?;
    let mut worker = scene.worker(1)?;
    worker.ask("open")?;
    for line in ["epoch 0", "keep 16", "epoch 1"] {
        worker.ask(line)?;
        look()?;
    }
    let (reader, most) = (worker.process.id(), most.get());
    let own = memory(reader, &["RssAnon"])?;
    let tables = [memory(agent, &["VmPTE"])?, memory(reader, &["VmPTE"])?];
    tell(format_args!(
        "agent: {} MiB at most, of a budget of {}; worker: {} KiB private, {} MiB shared with the agent; \
         page tables: {} and {} KiB",
        most / MIB,
        BUDGET / MIB,
        own >> 10,
        memory(reader, &["RssShmem"])? / MIB,
        tables[0] >> 10,
        tables[1] >> 10,
    ));
    ensure!(most > BUDGET * 9 / 10, "the agent did not fill its budget: {most}");
    ensure!(most <= BUDGET + BUDGET / 20 + 64 * MIB, "the agent took {most} bytes");
    ensure!(own <= 32 * MIB, "the worker took {own} bytes");
    worker.end()?;
    Ok(())
}

#[test]
fn an_agent_without_a_cache_reads_all_through_few_slots() -> Result<()> {
    const FILES: u32 = 2_000;
    let scene = Scene::stamped(FILES)?;
    scene.start_agent(&["--memory", "4MiB", "--policy", "none"])?;
    let mut workers = vec![scene.worker(1)?, scene.worker(2)?];
    for worker in &mut workers {
        worker.ask("open")?;
        worker.tell("all")?;
    }
    for worker in &workers {
        let read = worker.answer()?;
        ensure!(read == format!("{FILES} read"), "{read}");
    }
    let status = scene.status()?;
    let agent = memory(scene.agent()?.as_raw_nonzero(), &["RssShmem"])?;
    ensure!(agent <= 5 * MIB, "the agent shares {agent} bytes");
    ensure!(status["chunks_kept"] == 0 && status["policy"] == "none", "{status}");
    ensure!(status["fallbacks"] == 0, "{status}");
    let (fetched, chunks) = (&status["chunks_from_servers"], &status["chunks"]);
    ensure!(fetched.as_u64() >= chunks.as_u64(), "{status}");
    workers.into_iter().try_for_each(|worker| worker.end().map(drop))
}
