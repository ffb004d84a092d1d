//! Contract of `rm`.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use dl_tests::cluster::clock;
use dl_tests::program::Process;
use rustix::process::Signal;
use serde_json::Value;

use super::common::Scene;

const TIMEOUT: Duration = Duration::from_secs(30);

const FILES: [(&str, &str); 4] = [("a", "1"), ("d/x", "2"), ("d/y/z", "3"), ("dd", "4")];

#[test]
fn rm_deletes_a_file_or_with_r_a_folder() -> Result<()> {
    let scene = Scene::with(&FILES)?;
    for (flag, address, code, left) in [
        ("-q", "dl://ds/d", 1, "a\nd/x\nd/y/z\ndd\n"),
        ("-r", "dl://ds/none", 3, "a\nd/x\nd/y/z\ndd\n"),
        ("-q", "dl://ds/a", 0, "d/x\nd/y/z\ndd\n"),
        ("-q", "dl://ds/a", 3, "d/x\nd/y/z\ndd\n"),
        ("-r", "dl://ds/d", 0, "dd\n"),
        ("-r", "dl://ds", 0, ""),
    ] {
        scene.dl(["rm", flag, address])?.code(code)?;
        ensure!(scene.listed("dl://ds")? == left, "{address}: {}", scene.listed("dl://ds")?);
    }
    scene.dl(["put", "src", "dl://ds"])?.code(0)?;
    ensure!(scene.listed("dl://ds")?.lines().count() == 4, "the files were not put again");
    Ok(())
}

#[test]
fn an_interrupted_rm_reports_the_deleted_files() -> Result<()> {
    let scene = Scene::new()?;
    for number in 0..20_000 {
        scene.write(&format!("all/{}/{number}", number / 1_000), "")?;
    }
    let count = || -> Result<u64> {
        let du = scene.dl(["--json", "du", "dl://ds"])?.code(0)?;
        serde_json::from_str::<Value>(&du.text())?["files"].as_u64().context("a count")
    };
    let mut delay = Duration::from_millis(1);
    for _ in 0..40 {
        scene.dl(["put", "src", "dl://ds"])?.code(0)?;
        let before = count()?;
        let out = scene.path("out");
        let mut rm = scene.command(["--json", "rm", "-r", "dl://ds/all"])?;
        rm.stdout(fs::File::create(&out)?).stderr(Stdio::null());
        let mut rm = Process::start(&mut rm)?;
        std::thread::sleep(delay);
        if rm.ended()?.is_none() {
            rm.signal(Signal::INT)?;
        }
        // Before the first delete, Ctrl-C ends the program by its signal.
        let interrupted = clock().monotonic();
        let code = rm.wait(TIMEOUT).unwrap_or(130);
        // The program waits at most two seconds for the last answer.
        let is_late = clock().monotonic() - interrupted > Duration::from_millis(1_800);
        let deleted = before - count()?;
        if code == 0 {
            // The interrupt came too late.
            delay /= 2;
            continue;
        }
        ensure!(code == 130, "rm ended with exit code {code}");
        if deleted == 0 {
            delay += delay / 2;
            continue;
        }
        if is_late {
            continue;
        }
        let told = fs::read_to_string(&out)?;
        let told: Value = serde_json::from_str(told.lines().last().context("rm printed nothing")?)?;
        ensure!(told["files"] == deleted, "{deleted} were deleted: {told}");
        return Ok(());
    }
    bail!("Ctrl-C never came in the middle")
}
