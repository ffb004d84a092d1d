//! Contract of `ls`.

use anyhow::{Result, ensure};

use super::common::Scene;

const FILES: [(&str, &str); 6] =
    [("a", "1"), ("a-b", "22"), ("d/x", "333"), ("d/y/z", ""), ("d.e", "5"), ("Z", "6")];

#[test]
fn ls_prints_sorted_names_with_a_slash_after_folders() -> Result<()> {
    let scene = Scene::with(&FILES)?;
    let root = scene.dl(["ls", "dl://ds"])?.code(0)?.text();
    ensure!(root == "Z\na\na-b\nd.e\nd/\n", "{root}");
    for address in ["dl://ds/d", "dl://ds/d/"] {
        let folder = scene.dl(["ls", address])?.code(0)?.text();
        ensure!(folder == "x\ny/\n", "{folder}");
    }
    Ok(())
}

#[test]
fn ls_recursive_prints_the_full_paths_of_files() -> Result<()> {
    let scene = Scene::with(&FILES)?;
    let all = scene.listed("dl://ds")?;
    ensure!(all == "Z\na\na-b\nd.e\nd/x\nd/y/z\n", "{all}");
    let below = scene.listed("dl://ds/d")?;
    ensure!(below == "d/x\nd/y/z\n", "{below}");
    Ok(())
}

#[test]
fn ls_long_prints_mode_size_time_and_name() -> Result<()> {
    let scene = Scene::with(&FILES)?;
    let long = scene.dl(["ls", "-l", "dl://ds"])?.code(0)?.text();
    for line in long.lines() {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [mode, size, time, name] = fields.as_slice() else {
            anyhow::bail!("{line} has not four columns")
        };
        if name.ends_with('/') {
            ensure!((*mode, *size, *time) == ("-", "-", "-"), "{line}");
        } else {
            ensure!(mode.starts_with("-rw"), "{line}");
            let expected = FILES.iter().find(|(path, _)| path == name).map(|(_, data)| data.len());
            ensure!(expected == size.parse().ok(), "{line}");
            ensure!(time.ends_with('Z') && time.len() == 20, "{line}");
        }
    }
    ensure!(long.lines().count() == 5, "{long}");
    Ok(())
}

#[test]
fn ls_of_a_file_prints_the_file_and_of_nothing_ends_with_3() -> Result<()> {
    let scene = Scene::with(&FILES)?;
    ensure!(scene.dl(["ls", "dl://ds/d/x"])?.code(0)?.text() == "x\n", "a file");
    scene.dl(["ls", "dl://ds/none"])?.code(3)?;
    scene.dl(["ls", "dl://ds/a/"])?.code(3)?;
    Ok(())
}

#[test]
fn ls_raw_ends_names_with_nul() -> Result<()> {
    let scene = Scene::with(&[("one\nname", "1"), ("two", "2")])?;
    ensure!(scene.dl(["ls", "-0", "dl://ds"])?.code(0)?.stdout == b"one\nname\0two\0", "-0");
    Ok(())
}
