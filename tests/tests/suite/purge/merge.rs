//! Purges that merge small chunks: once, in order, and beside a lease.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_proto::pb::GetDatasetRequest;
use dl_runtime::Clock;
use dl_tests::dice::Dice;
use dl_tests::rounds;
use dl_tests::wire::{Files, shape};

use super::scene::{Fixture, NAME, SETTLED, data, stored};

/// Small chunks as `dlcmd stat` gives them.
async fn small_chunks(scene: &Fixture) -> Result<u64> {
    let request = GetDatasetRequest { name: NAME.to_owned(), without_counts: false };
    Ok(scene.client.stub().get_dataset(request).await?.into_inner().small_chunks)
}

/// The objects that hold the files, from the first file to the last.
async fn holders(scene: &Fixture) -> Result<Vec<dl_format::ChunkId>> {
    let files = scene.client.list(scene.writer.dataset).await?;
    Ok(files.into_iter().map(|(_, record)| record.holder.chunk).collect())
}

/// Keeps S-27, S-51 and S-79.
#[tokio::test(flavor = "multi_thread")]
async fn small_chunks_are_put_together_once() -> Result<()> {
    let mut scene = Fixture::empty().await?;
    for number in 0..30 {
        scene.put(&[(format!("{number:02}"), data(number, 50_000))]).await?;
    }
    ensure!(small_chunks(&scene).await? == 30, "of {}", small_chunks(&scene).await?);
    let early = scene.purge().await?;
    ensure!((early.rewritten, early.waiting) == (0, 30), "{early:?}");
    ensure!(early.waiting_for.as_secs() == 70 * 60, "{early:?}");
    scene.time.advance(SETTLED);
    let done = scene.purge().await?;
    ensure!((done.rewritten, done.merged, done.written) == (30, 30, 2), "{done:?}");
    ensure!(holders(&scene).await?.is_sorted(), "files lost their neighbours");
    scene.time.advance(SETTLED);
    let rest = scene.purge().await?;
    ensure!((rest.rewritten, done.removed + rest.removed) == (0, 30), "{done:?}, {rest:?}");
    let again = scene.purge().await?;
    ensure!((again.rewritten, again.removed, again.waiting) == (0, 0, 0), "{again:?}");
    ensure!(stored(&scene.store, scene.writer.dataset).await?[0] == 2, "two chunks");
    ensure!(small_chunks(&scene).await? <= 1, "small chunks are left");
    scene.check().await
}

/// Keeps S-27: a chunk of tiny files is full when its header is full.
#[tokio::test(flavor = "multi_thread")]
async fn chunks_of_tiny_files_are_put_together_once() -> Result<()> {
    let mut scene = Fixture::empty().await?;
    for (chunk, files) in [6_000, 6_000, 6_000, 800, 800, 800].into_iter().enumerate() {
        let file = |n| (format!("n{chunk:08}/n{chunk:08}_{n:05}.JPEG"), vec![7]);
        scene.put(&(0..files).map(file).collect::<Vec<_>>()).await?;
    }
    for expected in [(3, 1), (0, 0), (0, 0)] {
        scene.time.advance(SETTLED);
        let done = scene.purge().await?;
        ensure!((done.rewritten, done.written) == expected, "{done:?}");
    }
    scene.check().await
}

/// Puts, overwrites and deletes, with files of up to seven tenths of a chunk.
async fn random_history(scene: &mut Fixture, dice: &Dice) -> Result<()> {
    let size = shape()?.size() as usize;
    for _ in 0..8 + dice.below(25) {
        let mut files = Files::new();
        let mut room = size * 8 / 10;
        for _ in 0..1 + dice.below(5) {
            let length = match dice.below(8) {
                0 => 0,
                1..5 => dice.below(20_000),
                5..7 => dice.below(size / 3),
                _ => size / 2 + dice.below(size / 5),
            };
            if length < room {
                room -= length;
                let path = format!("{}/{}", dice.below(3), dice.below(60));
                files.insert(path.into_bytes(), dice.bytes(length));
            }
        }
        let text = |path: Vec<u8>| String::from_utf8(path).context("a path of digits");
        let files = files.into_iter().map(|(path, data)| Ok((text(path)?, data)));
        scene.put(&files.collect::<Result<Vec<_>>>()?).await?;
        match dice.below(10) {
            0 => {
                let last = |path: &[u8]| path.last().copied();
                let digit =
                    scene.writer.files.keys().nth(dice.below(20)).and_then(|path| last(path));
                if digit.is_some() {
                    scene.delete(|path| last(path) == digit).await?;
                }
            }
            1 => {
                let large = dice.bytes(size / 2 + dice.below(size));
                let now = scene.time.now();
                scene.writer.put_large(&scene.client, now, "large", &large).await?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Keeps S-27 and S-79.
#[tokio::test(flavor = "multi_thread")]
async fn a_second_purge_of_any_history_rewrites_nothing() -> Result<()> {
    for seed in 0..rounds(12, 300) {
        let (dice, mut scene) = (Dice::new(seed), Fixture::empty().await?);
        random_history(&mut scene, &dice).await?;
        scene.time.advance(SETTLED);
        let first = scene.purge().await?;
        scene.check().await.with_context(|| format!("seed {seed}, after the first"))?;
        for _ in 0..2 {
            scene.time.advance(SETTLED);
            let next = scene.purge().await?;
            ensure!(next.problems.is_empty(), "seed {seed}: {next:?}");
            ensure!(next.rewritten == 0, "seed {seed}: {first:?}, then {next:?}");
        }
        ensure!(small_chunks(&scene).await? <= 1, "seed {seed}: small chunks are left");
        scene.check().await.with_context(|| format!("seed {seed}, at the end"))?;
    }
    Ok(())
}

/// Keeps S-79: later puts meet at most a small chunk of earlier purges.
#[tokio::test(flavor = "multi_thread")]
async fn puts_of_every_day_are_merged_into_the_last_chunk() -> Result<()> {
    let mut scene = Fixture::empty().await?;
    for day in 0..12 {
        scene.put(&[(format!("{day:02}"), data(day, 100_000))]).await?;
        scene.time.advance(SETTLED);
        let done = scene.purge().await?;
        ensure!(done.rewritten <= 2 && done.merged == done.rewritten, "day {day}: {done:?}");
    }
    scene.purge_settled().await?;
    let chunks: BTreeSet<_> = holders(&scene).await?.into_iter().collect();
    ensure!(chunks.len() <= 3, "1.2 MB in {} chunks", chunks.len());
    scene.check().await
}

/// Keeps S-45 and S-79: the chunks of a leased version stay until the job ends.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_keeps_the_small_chunks_that_a_purge_merged() -> Result<()> {
    let mut scene = Fixture::empty().await?;
    for number in 0..20 {
        scene.put(&[(format!("{number:02}"), data(number, 20_000))]).await?;
    }
    let leased = scene.client.list(scene.writer.dataset).await?;
    super::leased::beat(&scene.client, &scene.writer, false).await?;
    let purge = async || {
        scene.time.advance(SETTLED);
        let done = scene.client.purge(NAME, Duration::from_secs(60)).await?;
        ensure!(done.problems.is_empty(), "{done:?}");
        anyhow::Ok(done)
    };
    let done = purge().await?;
    ensure!((done.merged, done.written) == (20, 1), "{done:?}");
    for _ in 0..2 {
        let done = purge().await?;
        ensure!(done.removed == 0 && done.leased_by == ["task train"], "{done:?}");
        let readable = super::leased::readable(&scene.client, &scene.writer, &leased).await?;
        ensure!(readable == 20, "{readable} of 20");
    }
    super::leased::beat(&scene.client, &scene.writer, true).await?;
    let (first, second, third) = (purge().await?, purge().await?, purge().await?);
    let removed = first.removed + second.removed + third.removed;
    ensure!(removed == 20, "{first:?}, {second:?}, {third:?}");
    scene.check().await
}
