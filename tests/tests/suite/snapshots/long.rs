//! A folder of many files, whose names lie in many chunks.

use std::process::Command;

use anyhow::{Result, ensure};
use dl_tests::program::{dlcmd, peak_of, run};
use dl_tests::{rounds, tell};
use libdiesel::Attributes;

use super::{Scene, path, put};

/// Keeps S-10 and S-41: what a listing holds is of each chunk, not of each file.
#[test]
fn a_long_folder_is_listed_from_a_snapshot_in_order_and_in_little_memory() -> Result<()> {
    let scene = Scene::new()?;
    let (count, step) = (rounds(50_000_u64, 1_000_000), 999_983);
    let padding = "x".repeat(200);
    // In no order, so that the names of each chunk are spread over the folder.
    for number in (0..count).map(|number| number * step % count) {
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
    ensure!(listed.lines().count() as u64 == count + 1, "{} lines", listed.lines().count());
    ensure!(listed.lines().nth(4) == Some(folder.as_str()), "{:?}", listed.lines().nth(4));
    // It has the whole snapshot in memory, too.
    let least = peak_of(&mut command(&["stat", "dl://ds/long"])?)?;
    for words in [&["ls", "-lR", "dl://ds"][..], &["ls", "dl://ds/long"], &["du", "dl://ds"]] {
        let more = peak_of(&mut command(words)?)?.saturating_sub(least);
        tell(format_args!("dlcmd {words:?}: {} KiB more", more >> 10));
        ensure!(more < 5 << 20, "{words:?} took {} KiB more", more >> 10);
    }
    Ok(())
}
