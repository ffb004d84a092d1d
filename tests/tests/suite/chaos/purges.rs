//! Failures under writers and a reader while a purge moves and removes data overwritten two days
//! ago.
//!
//! Must hold: the test checks that the failure hits a working purge, and that the purge completes
//! afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_format::{ChunkShape, DatasetName, FilePath};
use dl_store::Throttle;
use dl_tests::history::Content;
use dl_tests::program::{dlcmd, run};
use dl_tests::proxy::FaultyAnswer;
use dl_tests::shift::ClockShift;
use dl_tests::{rounds, soon};
use libdiesel::admin::{PurgeProgress, PurgeRequest};
use libdiesel::{Client, Kind};

use super::{Event, NAME, STALLED, Stage, WRITERS, again, counted};

/// Two days, in seconds.
const AGE: i64 = 2 * 86_400;

/// Initial files of each writer and their length. Every second file hides an older version.
const FILES: usize = 240;
const LENGTH: usize = 60_000;

/// Chunks to be moved: half of the initial chunks.
const MOVED: u32 = 8;

/// The latency of the bucket, so that a purge takes a while.
const SLOWLY: Duration = Duration::from_millis(40);

impl Stage {
    /// Puts the writers' files two days ago, every second file twice.
    fn fill_two_days_ago(&self) -> Result<()> {
        self.clocks.iter().try_for_each(|clock| clock.set(-AGE))?;
        let then = ClockShift::new(&self.scene.path(""), "then", -AGE)?;
        let source = self.scene.path("old");
        let mut files = BTreeMap::new();
        for round in 0..2 {
            for writer in 0..WRITERS {
                for number in (0..FILES).step_by(1 + round) {
                    let path = format!("{writer}/old/{number}");
                    let bytes = self.dice.bytes(LENGTH + round);
                    let file = source.join(&path);
                    fs::create_dir_all(file.parent().context("a file has a folder")?)?;
                    fs::write(file, &bytes)?;
                    files.insert(FilePath::new(path)?, bytes);
                }
            }
            let mut put = dlcmd()?;
            put.envs(then.variables()).args(["--server", &self.addresses.join(","), "put"]);
            run(put.arg(&source).arg("dl://chaos"))?.code(0)?;
        }
        for (path, bytes) in &files {
            let begun = self.history.begin(path, Some(Content::of(bytes)));
            self.history.acknowledge(begun);
        }
        self.clocks.iter().try_for_each(|clock| clock.set(0))
    }
}

/// Runs a purge and returns the count of moved and removed objects. `is_working` is true meanwhile.
fn purge(client: &Client, is_working: &AtomicBool) -> Result<u32> {
    let done = |step: &PurgeProgress| step.rewritten + step.removed;
    let request = PurgeRequest {
        dataset: Some(DatasetName::new(NAME)?),
        grace: Duration::ZERO,
        dry_run: false,
        force: false,
    };
    let ended = client.purge(request, &mut |step| {
        is_working.fetch_or(done(step) > 0, Ordering::Relaxed);
    });
    match ended {
        Ok(ended) => Ok(u32::try_from(ended.iter().map(done).sum::<u64>())?),
        Err(error) => {
            let kind = error.kind();
            ensure!(kind.is_retryable() || kind == Kind::NeedsRecovery, "{error:?}");
            Ok(0)
        }
    }
}

fn survive(event: Event, replicas: usize) -> Result<()> {
    for round in 0..rounds(1, 10) {
        let shape = ChunkShape::new(1 << 20, 64)?;
        let mut stage = Stage::with(round, replicas, shape, &[0; 4])?;
        stage.fill_two_days_ago()?;
        stage.proxy.set_throttle(Throttle { latency: SLOWLY, ..Throttle::default() });
        let stop = Arc::new(AtomicBool::new(false));
        let reader = stage.reader(&stop)?;
        let (client, is_working) = (stage.client()?, Arc::new(AtomicBool::new(false)));
        let watched = Arc::clone(&is_working);
        let purges = again(&stop, move || purge(&client, &watched));
        let happened = stage.under_writers_after(event, || {
            soon("a purge has something to do", || Ok(is_working.load(Ordering::Relaxed)))
        });
        stop.store(true, Ordering::Relaxed);
        let (answers, moved) = (counted(reader).context("read")?, counted(purges)?);
        happened?;
        ensure!(answers > 0, "the reader had no answer");
        ensure!(event.needs_rebuild() || stage.hits()? > 0.0, "nothing was read from a fast store");
        stage.proxy.set_throttle(Throttle::default());
        stage.check_after(event).with_context(|| format!("round {round}, {event:?}"))?;
        let last = purge(&stage.client()?, &is_working)?;
        ensure!(moved + last > MOVED, "{moved} and {last} objects were moved or removed");
        stage.ask(&["verify", "--checksums", "dl://chaos"])?.code(0)?;
        super::compare(&stage.addresses, &stage.history).context("after the last purge")?;
    }
    Ok(())
}

/// Keeps S-01, S-03, S-07, S-27 and S-28.
#[test]
fn a_server_is_killed_while_purges_run() -> Result<()> {
    survive(Event::ServerDies, 0)
}

/// Keeps S-01, S-02, S-05, S-27 and S-28.
#[test]
fn a_redis_primary_comes_back_empty_while_purges_run() -> Result<()> {
    survive(Event::PrimaryIsEmptied, 0)
}

/// Keeps S-01, S-02, S-05, S-27 and S-28.
#[test]
fn all_of_redis_is_flushed_while_purges_run() -> Result<()> {
    survive(Event::AllIsFlushed, 0)
}

/// Keeps S-01, S-03, S-27 and S-28.
#[test]
fn the_bucket_answers_with_errors_or_in_part_while_purges_run() -> Result<()> {
    let all = [FaultyAnswer::Cut, FaultyAnswer::Internal, FaultyAnswer::Stalled(STALLED)];
    for error in all.into_iter().take(rounds(2, all.len())) {
        survive(Event::BucketFails(error), 0)?;
    }
    Ok(())
}

/// Keeps S-01, S-02, S-27 and S-28.
#[test]
fn a_redis_primary_with_a_replica_is_killed_while_purges_run() -> Result<()> {
    survive(Event::PrimaryDies, 1)
}
