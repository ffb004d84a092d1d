//! The memory use of agents and workers.

use std::cell::Cell;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::program::{memory, run};
use dl_tests::{skip, tell};

use super::Scene;
use super::environment::restricted;

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
    let number = |field: &str| status[field].as_u64().context("a number");
    let chunks = number("chunks")?;
    // Of a chunk that may be gone again, each worker reads the first file alone.
    ensure!(number("fallbacks")? <= 4 * chunks, "{status}");
    ensure!(number("chunks_from_servers")? >= chunks, "{status}");
    workers.into_iter().try_for_each(|worker| worker.end().map(drop))
}

#[test]
fn a_policy_of_eviction_replaces_chunks_read_in_no_order() -> Result<()> {
    const FILES: u32 = 2_000;
    for eviction in ["lru", "lfu", "fifo"] {
        let scene = Scene::stamped(FILES)?;
        scene.start_agent(&["--memory", "8MiB", "--evict", eviction])?;
        let mut worker = scene.worker(1)?;
        worker.ask("open")?;
        let evicted = || {
            let status = scene.status()?;
            ensure!(status["eviction"] == eviction, "{status}");
            let number = |field: &str| status[field].as_u64().context("a number");
            Ok((number("chunks_evicted")?, number("fallbacks")?, number("chunks")?))
        };
        // A first pass fills the memory and goes on, a second one needs all chunks again.
        for _ in 0..2 {
            let read = worker.ask("all")?;
            ensure!(read == format!("{FILES} read"), "{read}");
        }
        let (before, alone, chunks) = evicted()?;
        ensure!(before >= chunks, "{eviction}: {before} evicted of {chunks} chunks");
        ensure!(alone == 0, "{eviction}: {alone} files came without their chunks");
        // Fetches that began before end in the first epoch.
        worker.ask("epoch 0")?;
        let (before, ..) = evicted()?;
        worker.ask("epoch 1")?;
        let (after, ..) = evicted()?;
        ensure!(after == before, "{eviction}: {} evicted along an order", after - before);
        worker.end()?;
    }
    Ok(())
}

/// The reason why this machine denies huge pages for shared memory; none for a machine with huge pages.
fn no_huge_pages() -> Option<String> {
    let file = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    let setting = std::fs::read_to_string(file).unwrap_or_default();
    if setting.is_empty() || setting.contains("[deny]") {
        return Some(format!("{file} is {:?}", setting.trim()));
    }
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next(), numbers.next());
    (version < (Some(6), Some(1))).then(|| format!("Linux {release} has no MADV_COLLAPSE"))
}

const START: [&str; 5] = ["agent", "start", "dl://ds", "--memory", "64MiB"];

/// Bytes in memory and in huge pages of a running agent, with all chunks in its memory.
fn pages_when_full(scene: &Scene) -> Result<[u64; 2]> {
    run(scene.dlcmd()?.args(["agent", "prefetch", "--wait", "dl://ds"]))?.code(0)?;
    scene.get_and_compare()?;
    let status = scene.status()?;
    ensure!(status["chunks_present"] == status["chunks"], "{status}");
    pages_of(scene)
}

fn pages_of(scene: &Scene) -> Result<[u64; 2]> {
    let status = scene.status()?;
    let bytes = |name| status["pages"][name].as_u64().context("a number of bytes");
    Ok([bytes("mapped_bytes")?, bytes("huge_bytes")?])
}

#[test]
fn the_arena_is_in_huge_pages_without_a_setting() -> Result<()> {
    if let Some(why) = no_huge_pages() {
        return skip(why);
    }
    let scene = Scene::new(41)?;
    run(scene.dlcmd()?.args(START))?.code(0)?;
    let mut pages = pages_when_full(&scene)?;
    // The agent takes them beside its work.
    for _ in 0..600 {
        if pages[0] == pages[1] {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
        pages = pages_of(&scene)?;
    }
    let [mapped, huge] = pages;
    ensure!(huge == mapped && huge > 0, "{huge} of {mapped} bytes are in huge pages");
    let shown = run(scene.dlcmd()?.args(["agent", "status"]))?.code(0)?;
    ensure!(shown.text().contains(" of them huge (shmem_enabled is "), "{shown:?}");
    Ok(())
}

#[test]
fn an_agent_that_is_denied_huge_pages_takes_small_pages() -> Result<()> {
    let scene = Scene::new(42)?;
    let mut start = scene.dlcmd()?;
    run(&mut restricted(start.args(START), include_str!("without_huge_pages.py")))?.code(0)?;
    let [mapped, huge] = pages_when_full(&scene)?;
    ensure!(huge == 0 && mapped > 0, "{huge} of {mapped} bytes are in huge pages");
    Ok(())
}
