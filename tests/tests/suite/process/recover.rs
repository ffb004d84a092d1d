//! Recovery from the chunks after the metadata of a stopped server were removed.

use std::fs;

use anyhow::{Context, Result, ensure};
use dl_tests::folder;
use dl_tests::http::becomes;
use dl_tests::program::{Server, dl, run};
use dl_tests::scene::Scene;

/// A dataset with overwritten and deleted files, and a dataset deleted and created again.
fn history() -> Result<(Scene, Server)> {
    let scene = Scene::filled(300, 30_000)?;
    let (source, server) = (scene.src(), scene.start()?);
    server.put(&source, "dl://one")?;
    for number in (0..300).step_by(7) {
        folder::write(&source, format!("{:03}/{number:06}.bin", number / 100), "overwritten")?;
    }
    server.put(&source, "dl://one")?;
    dl(&server, ["rm", "-r", "dl://one/001"])?.code(0)?;
    dl(&server, ["rm", "dl://one/000/000003.bin"])?.code(0)?;
    fs::remove_dir_all(source.join("001"))?;
    fs::remove_file(source.join("000/000003.bin"))?;
    server.put(source.join("000"), "dl://two")?;
    dl(&server, ["delete-dataset", "dl://two"])?.code(0)?;
    for dataset in ["dl://two", "dl://gone"] {
        server.put(source.join("002"), dataset)?;
    }
    dl(&server, ["delete-dataset", "dl://gone"])?.code(0)?;
    Ok((scene, server))
}

/// Keeps S-02 (I2 and Rule 7) and S-05 (Rule 6).
#[test]
fn wiped_metadata_are_refused_until_recovered() -> Result<()> {
    let (scene, server) = history()?;
    let before = dl(&server, ["--json", "ls", "-lR", "dl://one"])?.code(0)?.text();
    ensure!(before.lines().count() > 100, "the history does too little: {before}");
    let version = |server: &Server| -> Result<String> {
        let told = dl(server, ["--json", "stat", "dl://one"])?.code(0)?.text();
        let told: serde_json::Value = serde_json::from_str(&told)?;
        Ok(told["version"].as_str().context("no version")?.to_owned())
    };
    let version_before = version(&server)?;
    server.stop()?;

    scene.lose_metadata()?;
    let server = scene.start()?;
    for arguments in [
        &["ls", "dl://one"][..],
        &["cat", "dl://one/000/000000.bin"],
        &["stat", "dl://two"],
        &["rm", "-r", "dl://one"],
    ] {
        let refused = dl(&server, arguments)?.code(1)?;
        ensure!(refused.stderr.contains("dlcmd recover"), "{arguments:?}: {}", refused.stderr);
    }
    let refused = run(server.dlcmd()?.arg("put").arg(scene.src()).arg("dl://one"))?;
    ensure!(refused.code != 0 && refused.stderr.contains("recover"), "put: {refused:?}");

    dl(&server, ["recover", "--all"])?.code(0)?;
    server.compare("dl://one", &scene.src())?;
    server.compare("dl://two", &scene.path("src/002"))?;
    ensure!(dl(&server, ["datasets"])?.code(0)?.text() == "one\ntwo\n", "datasets differ");
    let after = dl(&server, ["--json", "ls", "-lR", "dl://one"])?.code(0)?.text();
    ensure!(before == after, "a listing with upload times and places differs");
    ensure!(version(&server)? == version_before, "the version changed");
    // Nothing is left to adopt.
    let again = dl(&server, ["--json", "recover", "--all"])?.code(0)?.text();
    ensure!(again.lines().all(|line| line.contains("\"adopted\":0")), "{again}");
    server.stop()?;
    let server = scene.start()?;
    server.compare("dl://one", &scene.src())
}

/// Keeps S-02 and S-05.
#[test]
fn a_single_dataset_can_be_recovered() -> Result<()> {
    let (scene, server) = history()?;
    server.kill()?;
    scene.lose_metadata()?;
    let server = scene.start()?;
    let told = dl(&server, ["recover", "dl://one"])?.code(1)?;
    ensure!(told.stderr.contains("run `dlcmd recover --all`"), "{}", told.stderr);
    server.compare("dl://one", &scene.src())?;
    // The incomplete dataset must not look complete.
    ensure!(dl(&server, ["datasets"])?.code(0)?.text() == "one\ntwo\n", "datasets differ");
    let refused = dl(&server, ["ls", "dl://two"])?;
    ensure!(refused.code != 0 && refused.stderr.contains("recover"), "{refused:?}");
    becomes(server.http(), |status, text| status == 200 && text.contains("recovered: 1;"))?;
    dl(&server, ["recover", "dl://two"])?.code(0)?;
    server.compare("dl://two", &scene.path("src/002"))?;
    ensure!(dl(&server, ["datasets"])?.code(0)?.text() == "one\ntwo\n", "datasets differ");
    let near = dl(&server, ["recover", "dl://onee"])?.code(3)?;
    ensure!(near.stderr.contains("one"), "{}", near.stderr);
    Ok(())
}
