//! Contract for paths with both a file and a folder.

use std::fs;

use anyhow::{Context, Result, ensure};
use dl_tests::program::{run, run_with_stdin};
use libdiesel::{Attributes, ChunkShape, Client, ConnectOptions, DatasetName, FilePath};

use super::common::Scene;

/// A scene with files in separate folders; nothing is stored yet.
fn scene(files: &[&str]) -> Result<Scene> {
    let scene = Scene::new()?;
    for path in files {
        scene.write(path, "1")?;
    }
    Ok(scene)
}

fn json(text: &str) -> Result<serde_json::Value> {
    Ok(serde_json::from_str(text)?)
}

/// Keeps S-09: Rule 9.
#[test]
fn a_put_with_a_path_both_file_and_folder_stores_nothing() -> Result<()> {
    let scene = scene(&["old/p", "old/d/f", "x/p/q", "x/a", "y/d", "z/d", "z/other"])?;
    scene.dl(["put", "src/old", "dl://ds"])?.code(0)?;
    let before = scene.listed("dl://ds")?;
    for (arguments, told, remedy) in [
        (&["put", "src/x", "dl://ds"][..], "dl://ds/p is a file", "dlcmd rm dl://ds/p)"),
        (&["put", "src/x", "dl://ds/p"], "dl://ds/p is a file", "dlcmd rm dl://ds/p)"),
        (&["put", "src/x", "dl://ds/p/deep"], "dl://ds/p is a file", "dlcmd rm dl://ds/p)"),
        (&["put", "src/x/a", "dl://ds/p/"], "dl://ds/p is a file", "dlcmd rm dl://ds/p)"),
        (&["put", "src/x/a", "dl://ds/p/a"], "dl://ds/p is a file", "dlcmd rm dl://ds/p)"),
        (&["put", "src/x/a", "src/y", "dl://ds/p"], "dl://ds/p is a file", "dlcmd rm"),
        (&["put", "src/y/d", "dl://ds"], "dl://ds/d is a folder", "dlcmd rm -r dl://ds/d)"),
        (&["put", "src/y/d", "src/x/a", "dl://ds"], "dl://ds/d is a folder", "dlcmd rm -r"),
        (&["put", "src/z", "dl://ds"], "dl://ds/d is a folder", "dlcmd rm -r dl://ds/d)"),
    ] {
        let mut command = scene.command(["--quiet"])?;
        let put = run(command.args(arguments))?.code(4);
        let put = put.with_context(|| format!("{arguments:?}"))?;
        ensure!(put.stderr.contains(told) && put.stderr.contains(remedy), "{put:?}");
        ensure!(scene.listed("dl://ds")? == before, "{arguments:?} stored something");
    }
    // A list on stdin names files only.
    let listed = b"src/x/a\nsrc/x/p/q\n";
    scene.dl(["put", "src/old", "dl://list/src/x"])?.code(0)?;
    let put = run_with_stdin(&mut scene.command(["put", "-", "dl://list"])?, listed)?.code(4)?;
    ensure!(put.stderr.contains("dl://list/src/x/p is a file"), "{put:?}");
    ensure!(scene.listed("dl://list")? == "src/x/d/f\nsrc/x/p\n", "something was stored");
    Ok(())
}

/// Keeps S-09, S-29 and S-35: Rule 9. Concurrent puts do not see each other's files.
#[test]
fn the_command_printed_by_verify_restores_a_hidden_file() -> Result<()> {
    let scene = Scene::new()?;
    let servers = vec![scene.server.address().to_owned()];
    let client = Client::connect(ConnectOptions { servers, ..ConnectOptions::default() })?;
    let dataset = client.create_dataset(&DatasetName::new("ds")?, ChunkShape::default())?;
    for path in ["p", "p/q"] {
        dataset.put(&FilePath::new(path)?, Attributes::default(), b"1")?;
    }
    ensure!(dataset.flush()?.check()?.files == 2, "both are stored");
    let told = scene.dl(["verify", "dl://ds"])?.code(4)?;
    ensure!(told.text().contains("`dlcmd rm -r dl://ds/p/` deletes"), "{told:?}");
    scene.dl(["rm", "-r", "dl://ds/p/"])?.code(0)?;
    ensure!(scene.listed("dl://ds")? == "p\n", "{}", scene.listed("dl://ds")?);
    scene.dl(["verify", "dl://ds"])?.code(0)?;
    Ok(())
}

#[test]
fn a_folder_without_files_hides_no_file() -> Result<()> {
    let scene = scene(&["y/p"])?;
    fs::create_dir_all(scene.path("src/x/p"))?;
    for _ in 0..2 {
        let put = scene.dl(["--json", "put", "src/x", "src/y", "dl://ds"])?.code(0)?;
        ensure!(put.stderr.is_empty(), "{put:?}");
        let line = json(&put.text())?;
        ensure!(line["failed"] == 0 && line["empty_folders"] == 1, "{line}");
        ensure!(scene.listed("dl://ds")? == "p\n", "{}", scene.listed("dl://ds")?);
    }
    Ok(())
}
