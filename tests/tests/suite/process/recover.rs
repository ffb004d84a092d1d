//! Recovery from the chunks after the metadata of a stopped server were removed.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use dl_tests::dice::Dice;
use dl_tests::folder;
use dl_tests::http::becomes;
use dl_tests::program::{Server, dl, run};

/// A dataset with overwritten and deleted files, and a dataset deleted and created again.
fn history(server: &Server, scene: &Path) -> Result<()> {
    let source = scene.join("src");
    folder::fill(&source, 300, 30_000, &Dice::new(1))?;
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://one"))?.code(0)?;
    for number in (0..300).step_by(7) {
        folder::write(&source, format!("{:03}/{number:06}.bin", number / 100), "overwritten")?;
    }
    run(server.dlcmd()?.arg("put").arg(&source).arg("dl://one"))?.code(0)?;
    dl(server, ["rm", "-r", "dl://one/001"])?.code(0)?;
    dl(server, ["rm", "dl://one/000/000003.bin"])?.code(0)?;
    fs::remove_dir_all(source.join("001"))?;
    fs::remove_file(source.join("000/000003.bin"))?;
    run(server.dlcmd()?.arg("put").arg(source.join("000")).arg("dl://two"))?.code(0)?;
    dl(server, ["delete-dataset", "dl://two"])?.code(0)?;
    run(server.dlcmd()?.arg("put").arg(source.join("002")).arg("dl://two"))?.code(0)?;
    run(server.dlcmd()?.arg("put").arg(source.join("002")).arg("dl://gone"))?.code(0)?;
    dl(server, ["delete-dataset", "dl://gone"])?.code(0)?;
    Ok(())
}

fn compare(server: &Server, scene: &Path, dataset: &str, source: &str) -> Result<()> {
    let got = scene.join("got");
    run(server.dlcmd()?.arg("get").arg(dataset).arg(&got))?.code(0)?;
    folder::compare(&scene.join(source), &got)?;
    fs::remove_dir_all(&got).context("remove what was got")
}

/// Keeps S-02 (I2 and Rule 7) and S-05 (Rule 6).
#[test]
fn wiped_metadata_is_refused_and_recover_brings_everything_back() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (scene, data) = (scene.path(), scene.path().join("data"));
    let server = Server::start(&data)?;
    history(&server, scene)?;
    let before = dl(&server, ["--json", "ls", "-lR", "dl://one"])?.code(0)?.text();
    ensure!(before.lines().count() > 100, "the history does too little: {before}");
    let version = |server: &Server| -> Result<String> {
        let told = dl(server, ["--json", "stat", "dl://one"])?.code(0)?.text();
        let told: serde_json::Value = serde_json::from_str(&told)?;
        Ok(told["version"].as_str().context("no version")?.to_owned())
    };
    let version_before = version(&server)?;
    server.stop()?;

    fs::remove_dir_all(data.join("meta"))?;
    let server = Server::start(&data)?;
    for arguments in [
        &["ls", "dl://one"][..],
        &["cat", "dl://one/000/000000.bin"],
        &["stat", "dl://two"],
        &["rm", "-r", "dl://one"],
    ] {
        let refused = dl(&server, arguments)?.code(1)?;
        ensure!(refused.stderr.contains("dlcmd recover"), "{arguments:?}: {}", refused.stderr);
    }
    let refused = run(server.dlcmd()?.arg("put").arg(scene.join("src")).arg("dl://one"))?;
    ensure!(refused.code != 0 && refused.stderr.contains("recover"), "put: {refused:?}");

    dl(&server, ["recover", "--all"])?.code(0)?;
    compare(&server, scene, "dl://one", "src")?;
    compare(&server, scene, "dl://two", "src/002")?;
    ensure!(dl(&server, ["datasets"])?.code(0)?.text() == "one\ntwo\n", "datasets differ");
    let after = dl(&server, ["--json", "ls", "-lR", "dl://one"])?.code(0)?.text();
    ensure!(before == after, "a listing with upload times and places differs");
    ensure!(version(&server)? == version_before, "the version changed");
    // Nothing is left to adopt.
    let again = dl(&server, ["--json", "recover", "--all"])?.code(0)?.text();
    ensure!(again.lines().all(|line| line.contains("\"adopted\":0")), "{again}");
    server.stop()?;
    let server = Server::start(&data)?;
    compare(&server, scene, "dl://one", "src")
}

/// Keeps S-02 and S-05.
#[test]
fn a_single_dataset_can_be_recovered() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (scene, data) = (scene.path(), scene.path().join("data"));
    let server = Server::start(&data)?;
    history(&server, scene)?;
    server.kill()?;
    fs::remove_dir_all(data.join("meta"))?;
    let server = Server::start_with(&data, "127.0.0.1:0", &["--http", "127.0.0.1:0"])?;
    let told = dl(&server, ["recover", "dl://one"])?.code(1)?;
    ensure!(told.stderr.contains("run `dlcmd recover --all`"), "{}", told.stderr);
    compare(&server, scene, "dl://one", "src")?;
    // The incomplete dataset must not look complete.
    ensure!(dl(&server, ["datasets"])?.code(0)?.text() == "one\ntwo\n", "datasets differ");
    let refused = dl(&server, ["ls", "dl://two"])?;
    ensure!(refused.code != 0 && refused.stderr.contains("recover"), "{refused:?}");
    becomes(server.http(), |status, text| status == 200 && text.contains("recovered: 1;"))?;
    dl(&server, ["recover", "dl://two"])?.code(0)?;
    compare(&server, scene, "dl://two", "src/002")?;
    ensure!(dl(&server, ["datasets"])?.code(0)?.text() == "one\ntwo\n", "datasets differ");
    let near = dl(&server, ["recover", "dl://onee"])?.code(3)?;
    ensure!(near.stderr.contains("one"), "{}", near.stderr);
    Ok(())
}

/// Keeps S-02 and S-48: an incomplete dataset is recovered completely, whatever the requested time.
#[test]
fn recover_since_a_time_completes_incomplete_datasets() -> Result<()> {
    let scene = tempfile::tempdir()?;
    let (scene, data) = (scene.path(), scene.path().join("data"));
    let mut server = Server::start(&data)?;
    history(&server, scene)?;
    for since in ["1h", "2200-01-01T00:00:00Z"] {
        server.stop()?;
        fs::remove_dir_all(data.join("meta"))?;
        server = Server::start(&data)?;
        dl(&server, ["recover", "--all", "--since", since])?.code(0)?;
        compare(&server, scene, "dl://one", "src")?;
        compare(&server, scene, "dl://two", "src/002")?;
    }
    dl(&server, ["recover", "--all", "--since", "yesterday"])?.code(2)?;
    server.stop()?;
    let server = Server::start(&data)?;
    compare(&server, scene, "dl://one", "src")
}
