//! The reports of `dlcmd purge` and `dlcmd verify` about data of two days ago.

use std::fs;

use anyhow::{Context, Result, ensure};
use dl_tests::folder;
use dl_tests::program::{dl, run};
use dl_tests::scene::Scene;
use dl_tests::shift::ClockShift;

/// Keeps S-79: many puts of a file each, their report by `stat`, and the remedy.
#[test]
fn stat_names_small_chunks_and_purge_merges_them() -> Result<()> {
    let scene = Scene::new()?;
    let past = ClockShift::new(&scene.path(""), "past", -2 * 86_400)?;
    let server = scene.start_among(&[], &past.variables())?;
    for number in 0..6 {
        folder::write(&scene.src(), number.to_string(), "x".repeat(40_000))?;
        let mut put = server.dlcmd()?;
        let file = scene.src().join(number.to_string());
        put.envs(past.variables()).arg("put").arg(file).arg(format!("dl://ds/{number}"));
        run(&mut put)?.code(0)?;
    }
    let told = dl(&server, ["stat", "dl://ds"])?.code(0)?.text();
    let has = |words: &str| told.contains(words);
    ensure!(has("small chunks: 6 of 240000 bytes") && has("(24.00 MiB) in a cache"), "{told}");
    ensure!(has("; dlcmd purge dl://ds merges them"), "{told}");
    let told = dl(&server, ["--json", "stat", "dl://ds"])?.code(0)?.text();
    let told: serde_json::Value = serde_json::from_str(&told)?;
    ensure!(told["small_chunks"] == 6 && told["small_chunk_bytes"] == 240_000, "{told}");
    past.set(0)?;
    let told = dl(&server, ["purge", "--dry-run", "dl://ds"])?.code(0)?.text();
    ensure!(told.contains("6 chunks (6 small) to rewrite"), "{told}");
    let told = dl(&server, ["purge", "--grace", "0s", "dl://ds"])?.code(0)?.text();
    let expected = "ds: 6 chunks (6 small) rewritten into 1, 6 objects removed";
    ensure!(told.starts_with(expected), "{told}");
    let told = dl(&server, ["stat", "dl://ds"])?.code(0)?.text();
    ensure!(!told.contains("small"), "{told}");
    Ok(())
}

/// Keeps S-27 and S-29: output and exit codes of both commands.
#[test]
fn purge_and_verify_report_actions_and_findings() -> Result<()> {
    let scene = Scene::filled(400, 40_000)?;
    let past = ClockShift::new(&scene.path(""), "past", -2 * 86_400)?;
    let server = scene.start_among(&[], &past.variables())?;
    let put = || {
        let mut put = server.dlcmd()?;
        put.envs(past.variables()).args(["put", "--threads", "1"]).arg(scene.src()).arg("dl://ds");
        run(&mut put)?.code(0)
    };
    put()?;
    // Half of each folder, and so of each chunk.
    for number in (0..400).filter(|number| number % 100 < 50) {
        let path = format!("{:03}/{number:06}.bin", number / 100);
        folder::write(&scene.src(), path, "overwritten")?;
    }
    put()?;
    past.set(0)?;
    let first = dl(&server, ["--json", "purge", "dl://ds"])?.code(0)?;
    let told: serde_json::Value = serde_json::from_str(&first.text())?;
    ensure!(told["type"] == "purged" && told["rewritten"].as_u64() > Some(0), "{told}");
    ensure!(told["waiting"].as_u64() > Some(0) && told["removed"] == 0, "{told}");
    ensure!(told["waiting_seconds"] == 70 * 60, "{told}");
    ensure!(first.stderr.contains("wait, 70 min at most; run purge again"), "{}", first.stderr);
    let text = dl(&server, ["purge", "--all", "--grace", "0s"])?.code(0)?.text();
    let expected = format!("ds: 0 chunks rewritten into 0, {} objects removed", told["waiting"]);
    ensure!(text.starts_with(&expected), "{text}");
    let (stored, live) = (scene.stored()?, folder::bytes_under(&scene.src())?);
    ensure!(stored * 10 < live * 11, "{stored} bytes for {live}");
    server.compare("dl://ds", &scene.src())?;

    let clean = dl(&server, ["verify", "--checksums", "dl://ds"])?.code(0)?.text();
    ensure!(
        clean.contains("400 files compared, ") && clean.contains(" read, 0 findings"),
        "{clean}"
    );
    let object = scene.objects()?.pop().context("there is a chunk")?;
    let bytes = fs::read(&object)?;
    fs::remove_file(&object)?;
    let lost = dl(&server, ["--json", "verify", "dl://ds"])?.code(4)?.text();
    let found = lost.lines().filter(|line| line.contains(r#""type":"finding""#)).count();
    ensure!(found > 10 && lost.contains("is lost"), "{lost}");
    ensure!(lost.lines().last().is_some_and(|line| line.contains("verified")), "{lost}");
    fs::write(&object, bytes)?;
    dl(&server, ["verify", "--checksums", "dl://ds"])?.code(0)?;
    dl(&server, ["verify", "dl://other"])?.code(3)?;
    dl(&server, ["purge", "dl://other"])?.code(3)?;
    for grace in ["soon", "30ms"] {
        dl(&server, ["purge", "--grace", grace, "dl://ds"])?.code(2)?;
    }
    Ok(())
}
