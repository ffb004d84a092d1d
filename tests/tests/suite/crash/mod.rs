//! Server crashes at every third write (all writes under `make torture`). A history runs once for
//! each point before and after a write to disk or metadata, and restarts on the state of a power
//! cut.
//!
//! Must hold: after every restart, with kept, torn or lost metadata, acknowledged changes are there
//! and other changes are absent or complete. A repeated request has the same result.

mod found;
mod history;
mod unanswered;
mod world;

use anyhow::{Context, Result, ensure};
use dl_tests::dice::Dice;
use dl_tests::rounds;

use self::history::{History, Journal};
use self::world::{Metadata, World};

/// Runs the history with a cut at `point`; false if the history ends before the cut.
async fn cut_at(point: u64, history: &History, metadata: Metadata) -> Result<bool> {
    let dice = Dice::new(point);
    let mut world = World::new(metadata);
    let mut journal = Journal::default();
    world.cut.arm(point);
    let ended = world.live(history, &mut journal).await;
    let was_cut = world.cut.is_cut();
    // A cut may also follow the last acknowledgement, while files are closed.
    ensure!(was_cut || ended.is_ok(), "the history ended with {ended:?}");
    world.lose_power(&dice).await;

    let before = format!("before step {:?}", journal.step(history));
    world.check_without_metadata(&journal).await.with_context(|| format!("recovered, {before}"))?;
    world.check(&journal).await.with_context(|| format!("restarted, {before}"))?;
    let again = world.live(history, &mut journal).await;
    again.with_context(|| format!("go on, {before}"))?;
    world.check(&journal).await.context("at the end")?;
    world.retry_all(&journal).await.context("every request again")?;
    world.check(&journal).await.context("after every request again")?;
    world.check_without_metadata(&journal).await.context("recovered at the end")?;
    Ok(was_cut)
}

/// Runs the history for each `step`th point from `first` on.
async fn cut_from(first: u64, step: usize, metadata: Metadata, least: u64) -> Result<()> {
    let history = History::new();
    for point in (first..).step_by(step) {
        let was_cut = cut_at(point, &history, metadata).await;
        if !was_cut.with_context(|| format!("cut at point {point}"))? {
            ensure!(point >= least, "only {point} points: the history does too little");
            return Ok(());
        }
    }
    Ok(())
}

/// Keeps S-01, S-02, S-03 and S-06: I1, I2, I3, I6 and Rule 2.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_at_any_write_with_surviving_metadata_loses_nothing() -> Result<()> {
    cut_from(0, rounds(3, 1), Metadata::Survives, 300).await
}

/// Keeps S-01, S-02, S-03 and S-06: I1, I2, I3, I6, Rule 2 and Rule 10.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_before_a_write_with_torn_metadata_loses_nothing() -> Result<()> {
    cut_from(0, rounds(6, 2), Metadata::OnDisk, 300).await
}

/// Keeps S-01, S-02, S-03 and S-06: the points after writes, in a separate test for parallel runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_after_a_write_with_torn_metadata_loses_nothing() -> Result<()> {
    cut_from(rounds(3, 1), rounds(6, 2), Metadata::OnDisk, 300).await
}
