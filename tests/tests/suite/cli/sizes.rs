//! Contract for files whose reported size is wrong.

use std::fs;

use anyhow::{Result, ensure};
use dl_tests::program::run_with_stdin;

use super::common::Scene;

#[test]
fn a_file_with_a_reported_size_of_0_is_stored_whole() -> Result<()> {
    let scene = Scene::with(&[("a", "1")])?;
    let contents = fs::read("/proc/version")?;
    ensure!(
        fs::metadata("/proc/version")?.len() == 0 && !contents.is_empty(),
        "/proc/version reports 0 bytes"
    );
    for dataset in ["dl://ds", "dl://new"] {
        for flags in [&[][..], &["--checksum"]] {
            let mut put = scene.command(["--json", "put"])?;
            let put = put.args(flags).args(["/proc/version", dataset]);
            let put = dl_tests::program::run(put)?.code(0)?;
            let line: serde_json::Value = serde_json::from_str(&put.text())?;
            ensure!(line["bytes"] == contents.len(), "{line}");
            let path = format!("{dataset}/version");
            let back = scene.dl(["cat", &path])?.code(0)?;
            ensure!(back.stdout == contents, "{back:?}");
        }
    }
    let mut put = scene.command(["put", "-", "dl://listed"])?;
    run_with_stdin(put.current_dir("/"), b"proc/version\n")?.code(0)?;
    let back = scene.dl(["cat", "dl://listed/proc/version"])?.code(0)?;
    ensure!(back.stdout == contents, "{back:?}");
    Ok(())
}

#[test]
fn a_too_large_file_is_named_and_the_rest_is_stored() -> Result<()> {
    let scene = Scene::new()?;
    // A file with more parts than a chunk header can name.
    fs::create_dir(scene.path("src"))?;
    fs::File::create(scene.path("src/huge"))?.set_len(1 << 40)?;
    for number in 0..50 {
        scene.write(&format!("d/{number}"), "1")?;
    }
    let put = scene.dl(["put", "src", "dl://ds"])?.code(4)?;
    ensure!(put.stderr.contains("src/huge") && put.text().contains("1 failed"), "{put:?}");
    ensure!(scene.listed("dl://ds")?.lines().count() == 50, "{}", scene.listed("dl://ds")?);
    Ok(())
}
