//! Contract of `ls`.

use anyhow::{Result, ensure};

use super::common::Scene;

const FILES: [(&str, &str); 6] =
    [("a", "1"), ("a-b", "22"), ("d/x", "333"), ("d/y/z", ""), ("d.e", "5"), ("Z", "6")];

#[test]
fn ls_prints_sorted_names_and_full_paths_below_folders() -> Result<()> {
    let scene = Scene::with(&FILES)?;
    for (flag, address, printed) in [
        ("-q", "dl://ds", "Z\na\na-b\nd.e\nd/\n"),
        ("-q", "dl://ds/d", "x\ny/\n"),
        ("-q", "dl://ds/d/", "x\ny/\n"),
        ("-q", "dl://ds/d/x", "x\n"),
        ("-R", "dl://ds", "Z\na\na-b\nd.e\nd/x\nd/y/z\n"),
        ("-R", "dl://ds/d", "d/x\nd/y/z\n"),
        ("-0", "dl://ds/d", "x\0y/\0"),
    ] {
        let listed = scene.dl(["ls", flag, address])?.code(0)?.text();
        ensure!(listed == printed, "{flag} {address}: {listed}");
    }
    scene.dl(["ls", "dl://ds/none"])?.code(3)?;
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
