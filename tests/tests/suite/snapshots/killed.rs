//! Snapshots of real servers: kills during a build or a transfer, and memory limits.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::dice::Dice;
use dl_tests::program::{Server, dlcmd, run};
use dl_tests::rounds;
use dl_tests::slow_link::SlowLink;
use libdiesel::{Attributes, ChunkShape, Client, ConnectOptions, Dataset, FilePath, Snapshot};

use super::name;

fn fill(server: &Server, files: u32) -> Result<Dataset> {
    let servers = vec![server.address().to_owned()];
    let client = Client::connect(ConnectOptions { servers, ..ConnectOptions::default() })?;
    let dataset = client.create_dataset(&name()?, ChunkShape::new(1 << 20, 64)?)?;
    for file in 0..files {
        let path = format!("train/n{:08}/n{:08}_{file}.JPEG", file / 1_000, file / 1_000);
        let attributes = Attributes { mode: 0o644, mtime: file.into() };
        dataset.put(&FilePath::new(path)?, attributes, b"x")?;
    }
    let _ = dataset.flush()?.check()?;
    Ok(dataset)
}

/// Bandwidth of the link, in bytes per second: a snapshot of 40,000 files takes a quarter of a
/// second.
const LINE: u32 = 4 << 20;

/// Keeps S-40, S-11 and S-71.
#[test]
fn a_server_killed_in_a_build_or_a_transfer_costs_time_only() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let mut server = Server::start(&data)?;
    let address = server.address().to_owned();
    let line = SlowLink::start(address.parse()?, LINE)?;
    let files = rounds(40_000, 200_000);
    fill(&server, files)?;
    let dice = Dice::new(7);
    let file = folder.path().join("saved");
    let (mut building, mut sending) = (0, 0);
    for round in 0..rounds(8, 60) {
        let added = folder.path().join(format!("added-{round}"));
        std::fs::write(&added, b"x")?;
        run(server.dlcmd()?.arg("put").arg(&added).arg("dl://ds"))?.code(0)?;
        let mut save = dlcmd()?;
        save.arg("--server").arg(line.address().to_string());
        save.args(["snapshot", "save", "dl://ds"]).arg(&file);
        let saving = std::thread::spawn(move || run(&mut save));
        // The partial file exists from the request on, and grows once the snapshot is built.
        let received = || file.with_added_extension("partial").metadata().map(|file| file.len());
        let wanted = if round % 2 == 0 { 0..1 } else { 1..u64::MAX };
        while !saving.is_finished() && !received().is_ok_and(|bytes| wanted.contains(&bytes)) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(dice.below(30) as u64));
        match received() {
            Ok(0) => building += 1,
            Ok(_) => sending += 1,
            Err(_) => {}
        }
        server.kill()?;
        server = Server::start_with(&data, &address, &[])?;
        let saved = saving.join().map_err(|_| anyhow::anyhow!("the thread panicked"))??;
        let saved = saved.code(0).with_context(|| format!("round {round}"))?;
        ensure!(saved.text().contains(&format!("{} files", files + 1 + round)), "{saved:?}");
        Snapshot::check(&file)?;
        let again = folder.path().join("again");
        run(server.dlcmd()?.args(["snapshot", "save", "dl://ds"]).arg(&again))?.code(0)?;
        ensure!(std::fs::read(&file)? == std::fs::read(&again)?, "round {round}: not the same");
    }
    ensure!(building > 0 && sending > 0, "killed {building} times at one, {sending} at the other");
    ensure!(left_in(&data.join("scratch"))? == 0, "a temporary file outlived its process");
    Ok(())
}

fn left_in(folder: &Path) -> Result<usize> {
    if folder.exists() { Ok(std::fs::read_dir(folder)?.count()) } else { Ok(0) }
}

/// Keeps S-10 and S-57: three hundred paths of maximal length, each with two thousand folders.
#[test]
fn heavy_the_deepest_folders_take_memory_for_their_names_only() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let mut server = Server::start(&folder.path().join("data"))?;
    let options =
        ConnectOptions { servers: vec![server.address().to_owned()], ..Default::default() };
    let dataset = Client::connect(options)?.create_dataset(&name()?, ChunkShape::default())?;
    for file in 0..300 {
        let path = format!("{file:04}/{}f", "x/".repeat(2_000));
        dataset.put(&FilePath::new(path)?, Attributes::default(), b"")?;
    }
    let _ = dataset.flush()?.check()?;
    let snapshot = dataset.save_meta(&folder.path().join("saved"))?;
    let peak = server.process().peak_memory().context("the server runs")?;
    ensure!(snapshot.files() == 300 && peak < 256 << 20, "{} MiB", peak >> 20);
    Ok(())
}
