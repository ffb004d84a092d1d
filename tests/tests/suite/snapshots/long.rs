//! Very many files: in a single folder, and in a large dataset.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use dl_tests::dice::Dice;
use dl_tests::program::{Server, dlcmd, peak_of, run};
use dl_tests::{rounds, tell};
use libdiesel::{Attributes, ChunkShape, Client, ConnectOptions, StatItem};

use super::{Scene, name, path, put};

/// The numbers below `count`, shuffled.
fn mixed(count: u32) -> Vec<u32> {
    let (dice, mut numbers) = (Dice::new(1), (0..count).collect::<Vec<_>>());
    for end in (1..numbers.len()).rev() {
        numbers.swap(end, dice.below(end + 1));
    }
    numbers
}

/// Keeps S-10 and S-41: a listing holds a state per chunk, not per file.
#[test]
fn heavy_a_long_folder_is_listed_in_order_in_little_memory() -> Result<()> {
    let scene = Scene::new()?;
    let count = rounds(50_000, 1_000_000);
    let padding = "x".repeat(200);
    // The names of each chunk are spread over the folder.
    for number in mixed(count) {
        let file = path(&format!("long/{padding}{number:07}"))?;
        scene.dataset.put(&file, Attributes::default(), b"")?;
    }
    let _ = scene.dataset.flush()?.check()?;
    let folder = format!("{padding}0000003.d/");
    put(&scene.dataset, &[(&format!("long/{folder}file"), b"in a folder")])?;
    let file = scene.folder.path().join("saved");
    let saved = scene.dataset.save_meta(&file)?;
    ensure!(saved.chunks() > 8, "{} chunks", saved.chunks());
    let command = |words: &[&str]| -> Result<Command> {
        let mut command = dlcmd()?;
        command.env_remove("HOME").env_remove("XDG_CACHE_HOME").arg("--snapshot").arg(&file);
        command.args(["--quiet", "--server", "127.0.0.1:1"]).args(words);
        Ok(command)
    };
    let listed = run(&mut command(&["ls", "dl://ds/long"])?)?.code(0)?.text();
    ensure!(listed.lines().is_sorted(), "in byte order");
    ensure!(listed.lines().count() as u32 == count + 1, "{} lines", listed.lines().count());
    ensure!(listed.lines().nth(4) == Some(folder.as_str()), "{:?}", listed.lines().nth(4));
    // This process has the whole snapshot in memory, too.
    let least = peak_of(&mut command(&["stat", "dl://ds/long"])?)?;
    for words in [&["ls", "-lR", "dl://ds"][..], &["ls", "dl://ds/long"], &["du", "dl://ds"]] {
        let more = peak_of(&mut command(words)?)?.saturating_sub(least);
        tell(format_args!("dlcmd {words:?}: {} KiB more", more >> 10));
        ensure!(more < 5 << 20, "{words:?} took {} KiB more", more >> 10);
    }
    Ok(())
}

/// Keeps S-10: the memory of a build does not depend on count and order of the files.
#[test]
fn heavy_a_snapshot_of_many_files_is_built_in_256_mib() -> Result<()> {
    let file = |number: u32| {
        let class = 1_440_764 + number / 1_300 * 7;
        path(&format!("train/n{class:08}/n{class:08}_{}.JPEG", 10_026 + number % 1_300))
    };
    let count = rounds(200_000, 10_000_000);
    // Folder by folder, then shuffled: almost every file is its own run.
    for (is_mixed, most) in [(false, 40.0), (true, 60.0)] {
        let order = if is_mixed { mixed(count) } else { (0..count).collect() };
        let scene = tempfile::tempdir()?;
        let mut server = Server::start(&scene.path().join("data"))?;
        let servers = vec![server.address().to_owned()];
        let client = Client::connect(ConnectOptions { servers, ..Default::default() })?;
        let dataset = client.create_dataset(&name()?, ChunkShape::default())?;
        for number in order {
            dataset.put(&file(number)?, Attributes::default(), b"x")?;
        }
        let _ = dataset.flush()?.check()?;
        let saved = dataset.save_meta(&scene.path().join("saved"))?;
        ensure!(saved.files() == count, "{} files", saved.files());
        let bytes = saved.length() as f64 / f64::from(count);
        let peak = server.process().peak_memory().context("the server runs")?;
        let figures = format!("{bytes:.1} bytes each, at most {} MiB", peak >> 20);
        tell(format_args!("{count} files, mixed {is_mixed}: {figures}"));
        ensure!(bytes < most && peak < 256 << 20, "{figures}");
        for number in (0..count).step_by(997) {
            let found = saved.stat(&file(number)?)?;
            ensure!(matches!(&found, StatItem::File(record) if record.length == 1), "{found:?}");
        }
    }
    Ok(())
}
