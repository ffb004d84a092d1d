//! Reads of files that are not on this machine.

use std::fs::{self, File};
use std::io::Read;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_runtime::since_boot;
use dl_tests::dice::Dice;
use dl_tests::program::run;
use dl_tests::{folder, skip, soon};

use super::{Scene, no_mount};

/// Files of a megabyte, some of each chunk.
fn fill_large(root: &std::path::Path) -> Result<()> {
    let dice = Dice::new(3);
    (0..24).try_for_each(|file| folder::write(root, format!("{file:02}"), dice.bytes(1 << 20)))
}

/// Keeps S-83.
#[test]
fn a_read_without_servers_fails_in_time_and_others_go_on() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let mut scene = Scene::new(fill_large)?;
    scene.mount("dl://ds", &["-o", "timeout=8s"])?;
    let bytes = |name: &str| fs::read(scene.path("src").join(name));
    let first = fs::read(scene.mnt().join("00"))?;
    ensure!(first == bytes("00")?, "other bytes");
    // The first bytes come before their chunk.
    soon("the chunk is there", || {
        let mut command = scene.dlcmd()?;
        let status = run(command.args(["--json", "--task", "job", "agent", "status"]))?.code(0)?;
        Ok(status.text().contains("\"chunks_present\":1"))
    })?;
    scene.kill_server()?;
    let mnt = scene.mnt();
    let began = since_boot();
    let absent = mnt.join("23");
    let failing = thread::spawn(move || File::open(&absent)?.read(&mut [0; 4096]));
    // Another reader of the same file can be killed.
    let mut killed = Command::new("cat").arg(mnt.join("22")).spawn()?;
    let (mut reads, mut longest) = (0, Duration::ZERO);
    while !failing.is_finished() {
        let began = since_boot();
        let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
        let mut options = File::options();
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, direct);
        let mut read = Vec::new();
        options.read(true).open(mnt.join("00"))?.read_to_end(&mut read)?;
        ensure!(read == first, "other bytes");
        longest = longest.max(since_boot().saturating_sub(began));
        reads += 1;
        if reads == 20 {
            let began = since_boot();
            killed.kill()?;
            killed.wait()?;
            ensure!(
                since_boot().saturating_sub(began) < Duration::from_secs(1),
                "a killed reader stays"
            );
        }
    }
    let failed = failing.join().expect("no panic").err().context("an absent file was read")?;
    ensure!(failed.raw_os_error() == Some(110), "{failed}");
    ensure!(
        since_boot().saturating_sub(began) < Duration::from_secs(30),
        "{:?}",
        since_boot().saturating_sub(began)
    );
    ensure!(reads > 100 && longest < Duration::from_secs(1), "{reads} reads, longest {longest:?}");
    ensure!(scene.status()?["failed"].as_u64() > Some(0), "{}", scene.status()?);
    scene.umount()
}

#[test]
fn ranges_of_large_files_come_in_order_and_at_random() -> Result<()> {
    if let Some(why) = no_mount() {
        return skip(why);
    }
    let dice = Dice::new(5);
    let whole = dice.bytes(21 << 20);
    let scene = Scene::new(|root| folder::write(root, "large", &whole))?;
    // An agent whose memory holds a part of the file.
    scene.mount("dl://ds", &["--memory", "16MiB"])?;
    ensure!(fs::read(scene.mnt().join("large"))? == whole, "other bytes");
    let file = File::open(scene.mnt().join("large"))?;
    for _ in 0..100 {
        let from = dice.below(whole.len());
        let length = dice.below(300_000).min(whole.len() - from);
        let mut read = vec![0; length];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut read, from as u64)?;
        ensure!(read == whole[from..from + length], "other bytes at {from}");
    }
    drop(file);
    scene.umount()
}
