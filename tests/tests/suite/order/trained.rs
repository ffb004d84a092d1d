//! Training in the order of an epoch (paper, Figure 13): a small run of benches/training.
//!
//! Must hold: the samples come from real programs, in the order printed by dlcmd.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use dl_tests::program::{program, run, tool};
use dl_tests::workspace;
use serde_json::Value;

/// The largest permitted loss of accuracy of the default groups against a full shuffle. Two seeds
/// of a full shuffle differ by up to 0.01.
const LESS: f64 = 0.03;

#[test]
fn chunk_wise_order_trains_like_a_full_shuffle() -> Result<()> {
    let programs = program("dlserver")?;
    ensure!(program("dlcmd")?.parent() == programs.parent(), "beside each other");
    let mut python = Command::new(tool("training/bin/python", "training")?);
    python.arg(workspace::root().join("benches/training/train.py")).arg("--small");
    python.arg("--programs").arg(programs.parent().context("the programs have a folder")?);
    // Python must not write compiled files into the clone.
    let ended = run(python.env("PYTHONDONTWRITEBYTECODE", "1"))?.code(0)?;
    let result: Value = serde_json::from_str(&ended.text())?;
    let rows = result.pointer("/datasets/0/rows").and_then(Value::as_array);
    let rows = rows.context("a dataset")?;
    let accuracy = |order: &str| {
        let row = rows.iter().find(|row| row.get("order").is_some_and(|name| name == order));
        let seeds = row?.pointer("/accuracy/MLP, rate falls")?.as_array()?;
        let seeds: Vec<f64> =
            seeds.iter().filter_map(|run| run.as_array()?.last()?.as_f64()).collect();
        (seeds.len() == 2).then(|| seeds.iter().sum::<f64>() / 2.0)
    };
    let [full, groups, none] = ["full shuffle", "default groups", "no shuffle"].map(accuracy);
    let (full, groups) = (full.context("full")?, groups.context("groups")?);
    let none = none.context("none")?;
    ensure!(full > 0.9, "a full shuffle learns the digits: {full}");
    ensure!(groups > full - LESS, "default groups {groups}, a full shuffle {full}");
    ensure!(none < full - 5.0 * LESS, "no shuffle {none}, a full shuffle {full}");
    Ok(())
}
