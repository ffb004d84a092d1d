//! Sentences about paths that are a file here and a folder there.

use std::fs;

use anyhow::{Result, ensure};
use dl_tests::program::run_with_stdin;

use super::common::Scene;

/// A scene with files in folders of its own; nothing is put.
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
fn a_file_whose_place_is_a_folder_of_the_dataset_has_failed_and_quiet_says_so() -> Result<()> {
    let scene = scene(&["x/p/q", "y/p", "y/other"])?;
    scene.dl(["put", "src/x", "dl://ds"])?.code(0)?;
    for _ in 0..2 {
        let put = scene.dl(["--quiet", "--json", "put", "src/y", "dl://ds"])?.code(4)?;
        ensure!(put.stderr.contains("src/y/p") && put.stderr.contains("folder"), "{put:?}");
        let line = json(&put.text())?;
        ensure!(line["failed"] == 1 && line["skipped"] == 0 && line["hidden"] == 0, "{line}");
    }
    ensure!(scene.listed("dl://ds")? == "other\np/q\n", "{}", scene.listed("dl://ds")?);
    Ok(())
}

/// Keeps S-09: Rule 9.
#[test]
fn a_file_of_the_dataset_that_a_put_hides_is_named_and_quiet_says_so() -> Result<()> {
    let scene = scene(&["x/p/q", "y/p"])?;
    scene.dl(["put", "src/y", "dl://ds"])?.code(0)?;
    let put = scene.dl(["--quiet", "--json", "put", "src/x", "dl://ds"])?.code(0)?;
    ensure!(put.stderr.contains("dl://ds/p") && put.stderr.contains("hid"), "{put:?}");
    let line = json(&put.text())?;
    ensure!(line["files"] == 1 && line["failed"] == 0 && line["hidden"] == 1, "{line}");
    // On the way to the folder that was named, as well.
    scene.dl(["put", "src/y/p", "dl://other"])?.code(0)?;
    let put = scene.dl(["--quiet", "put", "src/y", "dl://other/p/deep"])?.code(0)?;
    ensure!(
        put.stderr.contains("dl://other/p:") || put.stderr.contains("dl://other/p "),
        "{put:?}"
    );
    Ok(())
}

/// Keeps S-09: Rule 9. The files come from a list, which names no folders.
#[test]
fn a_file_of_the_dataset_that_a_listed_one_hides_is_named_as_well() -> Result<()> {
    let scene = scene(&["y/p", "y/other"])?;
    scene.dl(["put", "src/y", "dl://ds/src/y"])?.code(0)?;
    fs::remove_file(scene.path("src/y/p"))?;
    for path in ["y/p/q/r", "y/p/q/s", "y/p/t"] {
        scene.write(path, "1")?;
    }
    let list = b"src/y/p/q/r\nsrc/y/p/q/s\nsrc/y/other\nsrc/y/p/t\n";
    for hidden in [1, 0] {
        let arguments = ["--quiet", "--json", "put", "-", "dl://ds"];
        let put = run_with_stdin(&mut scene.command(arguments)?, list)?.code(0)?;
        ensure!(put.stderr.matches("dl://ds/src/y/p:").count() == hidden, "{put:?}");
        ensure!(json(&put.text())?["hidden"] == hidden, "{put:?}");
    }
    Ok(())
}

/// Keeps S-09 and S-29: Rule 9.
#[test]
fn what_verify_advises_about_a_hidden_file_brings_it_back() -> Result<()> {
    let scene = scene(&["x/p/q", "y/p"])?;
    scene.dl(["put", "src/y", "dl://ds"])?.code(0)?;
    scene.dl(["put", "src/x", "dl://ds"])?.code(0)?;
    let told = scene.dl(["verify", "dl://ds"])?.code(4)?;
    ensure!(told.text().contains("`dlcmd rm -r dl://ds/p/` deletes"), "{told:?}");
    scene.dl(["rm", "-r", "dl://ds/p/"])?.code(0)?;
    ensure!(scene.listed("dl://ds")? == "p\n", "{}", scene.listed("dl://ds")?);
    scene.dl(["verify", "dl://ds"])?.code(0)?;
    Ok(())
}

/// Keeps S-09: Rule 9.
#[test]
fn a_file_of_one_source_that_is_a_folder_of_another_has_failed() -> Result<()> {
    let scene = scene(&["x/p/q", "y/p"])?;
    for dataset in ["dl://new", "dl://again"] {
        if dataset == "dl://again" {
            scene.dl(["put", "src", dataset])?.code(0)?;
        }
        let put = scene.dl(["--quiet", "--json", "put", "src/x", "src/y", dataset])?.code(4)?;
        ensure!(put.stderr.contains("src/y/p"), "{put:?}");
        let line = json(&put.text())?;
        ensure!(line["files"] == 1 && line["failed"] == 1 && line["skipped"] == 0, "{line}");
        ensure!(line["bytes"] == 1, "{line}");
        ensure!(scene.dl(["cat", &format!("{dataset}/p/q")])?.code(0)?.text() == "1", "cat");
    }
    Ok(())
}

#[test]
fn a_folder_that_gives_no_file_hides_none() -> Result<()> {
    let scene = scene(&["y/p"])?;
    fs::create_dir_all(scene.path("src/x/p"))?;
    for _ in 0..2 {
        let put = scene.dl(["--json", "put", "src/x", "src/y", "dl://ds"])?.code(0)?;
        ensure!(put.stderr.is_empty(), "{put:?}");
        let line = json(&put.text())?;
        ensure!(line["failed"] == 0 && line["hidden"] == 0, "{line}");
        ensure!(scene.listed("dl://ds")? == "p\n", "{}", scene.listed("dl://ds")?);
    }
    Ok(())
}
