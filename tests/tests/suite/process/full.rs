//! Full disks: messages, continued service, and the remedy.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::program::{Ended, dl, run};
use dl_tests::scene::Scene;
use dl_tests::{folder, skip};

/// A small file system in memory, unmounted on drop.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// Mounts the file system; none if the machine refuses.
    fn mount(at: &Path) -> Result<Option<Self>> {
        fs::create_dir_all(at)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=24m", "none"]).arg(at);
        match run(&mut mount) {
            Ok(ended) if ended.code == 0 => Ok(Some(Self(at.to_owned()))),
            refused => {
                skip(format_args!("no small file system can be mounted here: {refused:?}"))?;
                Ok(None)
            }
        }
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Unmounting drops the remaining files.
        let _ = run(Command::new("umount").arg("-l").arg(&self.0));
    }
}

/// Keeps S-01 and S-12.
#[test]
fn a_full_disk_is_reported_and_loses_nothing() -> Result<()> {
    let scene = Scene::new()?;
    let Some(_disk) = SmallDisk::mount(&scene.data())? else { return Ok(()) };
    let (small, large) = (scene.path("small"), scene.path("large"));
    folder::fill(&small, 100, 20_000, &Dice::new(1))?;
    // More chunks than a put sends at once, so that the put gives up with untried chunks.
    folder::fill(&large, 1_000, 300_000, &Dice::new(2))?;
    let server = scene.start()?;
    server.put(&small, "dl://small")?;
    let full = run(server.dlcmd()?.arg("put").arg(&large).arg("dl://large"))?.code(1)?;
    ensure!(full.stderr.contains("stopped, the rest was not tried"), "{}", full.stderr);
    ensure!(full.stderr.to_lowercase().contains("space"), "{}", full.stderr);

    server.compare("dl://small", &small)?;
    // Acknowledged files of the large dataset are complete.
    let part = scene.path("part");
    run(server.dlcmd()?.arg("get").arg("dl://large").arg(&part))?.code(0)?;
    let all = folder::read(&large)?;
    for (path, file) in folder::read(&part)? {
        ensure!(all.get(&path) == Some(&file), "{} is not whole", String::from_utf8_lossy(&path));
    }
    // After a delete the server continues, also after a kill.
    dl(&server, ["delete-dataset", "dl://large"])?.code(0)?;
    server.put(&small, "dl://again")?;
    server.kill()?;
    let server = scene.start()?;
    for dataset in ["dl://small", "dl://again"] {
        server.compare(dataset, &small)?;
    }
    Ok(())
}

/// Keeps S-12.
#[test]
fn a_server_on_a_full_disk_names_the_remedy() -> Result<()> {
    let scene = Scene::new()?;
    let Some(disk) = SmallDisk::mount(&scene.data())? else { return Ok(()) };
    let filler = disk.0.join("filler");
    let mut file = File::create(&filler)?;
    while file.write(&[1; 4_096]).is_ok_and(|written| written > 0) {}
    drop(file);
    let refused = scene.fails(1, &[])?;
    for told in ["space left", "free some", &disk.0.to_string_lossy()] {
        ensure!(refused.contains(told), "{told} is not in {refused}");
    }
    fs::remove_file(&filler)?;
    scene.start()?.stop()?;
    Ok(())
}

/// Keeps S-12, S-26 and S-37.
#[test]
fn deletes_work_after_puts_filled_the_disk() -> Result<()> {
    let scene = Scene::new()?;
    let Some(_disk) = SmallDisk::mount(&scene.data())? else { return Ok(()) };
    let server = scene.start()?;
    folder::write(&scene.src(), "a", "a")?;
    server.put(scene.src(), "dl://kept")?;
    // Smaller and smaller files, until a few bytes do not fit.
    for (round, longest) in [1_000_000, 100_000, 10_000, 100].into_iter().enumerate() {
        let source = scene.path(&format!("src{round}"));
        folder::fill(&source, 40, longest, &Dice::new(round as u64))?;
        let put = |number| {
            let target = format!("dl://large/{round}/{number}");
            run(server.dlcmd()?.arg("put").arg(&source).arg(target))
        };
        let refused = (0..200).map(put).find(|put| !put.as_ref().is_ok_and(|put| put.code == 0));
        let refused = refused.with_context(|| format!("files of {longest} bytes always fit"))??;
        ensure!(refused.stderr.contains("space left"), "{}", refused.stderr);
    }
    dl(&server, ["rm", "dl://kept/a"])?.code(0)?;
    dl(&server, ["rm", "-r", "dl://large/0"])?.code(0)?;
    ensure!(
        dl(&server, ["ls", "-R", "dl://kept"])?.code(0)?.text().is_empty(),
        "the dataset still exists"
    );
    dl(&server, ["delete-dataset", "dl://large"])?.code(0)?;
    server.put(scene.src(), "dl://kept")?;
    ensure!(dl(&server, ["cat", "dl://kept/a"])?.code(0)?.text() == "a", "cat");
    Ok(())
}

/// Runs a command with a short time limit.
fn at_once(command: &mut Command) -> Result<Ended> {
    let (clock, shown) = (clock(), format!("{command:?}"));
    let began = clock.monotonic();
    let ended = run(command)?;
    let took = clock.monotonic() - began;
    ensure!(took < Duration::from_secs(10), "{shown} took {took:?}: {ended:?}");
    Ok(ended)
}

/// Keeps S-12: no thread of a get waits for a thread that has given up.
#[test]
fn a_get_onto_a_full_disk_ends_at_once() -> Result<()> {
    let scene = Scene::filled(400, 300_000)?;
    let Some(disk) = SmallDisk::mount(&scene.path("disk"))? else { return Ok(()) };
    let server = scene.start()?;
    server.put(scene.src(), "dl://ds")?;
    let full = at_once(server.dlcmd()?.arg("get").arg("dl://ds").arg(disk.0.join("got")))?;
    let full = full.code(1)?;
    ensure!(full.stderr.contains("space left"), "{}", full.stderr);
    ensure!(full.text().contains(" files got, "), "what there is is not told: {}", full.text());
    Ok(())
}

/// Keeps S-12 and S-62: no request waits for a failing write of the metadata.
#[test]
fn a_disk_filled_by_others_is_reported_and_reads_continue() -> Result<()> {
    let scene = Scene::filled(100, 2_000)?;
    let Some(disk) = SmallDisk::mount(&scene.data())? else { return Ok(()) };
    let source = scene.src();
    let server = scene.start()?;
    server.put(&source, "dl://before")?;
    server.stop()?;
    let server = scene.start()?;
    server.put(&source, "dl://last")?;
    let ballast = disk.0.join("ballast");
    let mut file = File::create(&ballast)?;
    for piece in [1 << 20, 4 << 10] {
        while file.write_all(&vec![1; piece]).is_ok() {}
    }
    for _ in 0..3 {
        for command in [["delete-dataset", "dl://last"], ["rm", "dl://before/000/000000.bin"]] {
            let refused = at_once(server.dlcmd()?.args(command))?.code(1)?;
            ensure!(refused.stderr.contains("space left"), "{}", refused.stderr);
        }
        let got = scene.path("got");
        at_once(server.dlcmd()?.arg("get").arg("dl://before").arg(&got))?.code(0)?;
        folder::compare(&source, &got)?;
        let put = at_once(server.dlcmd()?.arg("put").arg(&source).arg("dl://new"))?.code(1)?;
        ensure!(put.stderr.contains("space left"), "{}", put.stderr);
    }
    drop(file);
    fs::remove_file(&ballast)?;
    server.compare("dl://last", &source)?;
    dl(&server, ["delete-dataset", "dl://last"])?.code(0)?;
    Ok(())
}
