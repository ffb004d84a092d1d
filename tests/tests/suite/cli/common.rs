//! Contract of all commands, and the fixture of the `dlcmd` tests.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use dl_tests::folder;
use dl_tests::program::{Ended, Server, run};

/// A server, a source folder `src`, and a working folder.
pub(super) struct Scene {
    pub(super) server: Server,
    folder: tempfile::TempDir,
}

impl Scene {
    pub(super) fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        Ok(Self { server: Server::start(&folder.path().join("data"))?, folder })
    }

    /// A scene with these files in `src`, stored as `dl://ds`.
    pub(super) fn with(files: &[(&str, &str)]) -> Result<Self> {
        let scene = Self::new()?;
        for (path, data) in files {
            scene.write(path, data)?;
        }
        scene.dl(["put", "src", "dl://ds"])?.code(0)?;
        Ok(scene)
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn write(&self, path: &str, data: &str) -> Result<()> {
        folder::write(&self.path("src"), path, data)
    }

    /// A dlcmd command in the working folder.
    pub(super) fn command<const N: usize>(&self, arguments: [&str; N]) -> Result<Command> {
        let mut command = self.server.dlcmd()?;
        command.current_dir(self.folder.path()).args(arguments);
        Ok(command)
    }

    pub(super) fn dl<const N: usize>(&self, arguments: [&str; N]) -> Result<Ended> {
        run(&mut self.command(arguments)?)
    }

    /// The output of `ls -R`.
    pub(super) fn listed(&self, address: &str) -> Result<String> {
        Ok(self.dl(["ls", "-R", address])?.code(0)?.text())
    }
}

#[test]
fn datasets_prints_a_name_per_line_or_nothing() -> Result<()> {
    let scene = Scene::new()?;
    ensure!(scene.dl(["datasets"])?.code(0)?.stdout.is_empty(), "no dataset, no output");
    scene.write("a", "1")?;
    for name in ["dl://zebra", "dl://ant", "dl://Bee"] {
        scene.dl(["put", "src", name])?.code(0)?;
    }
    ensure!(scene.dl(["datasets"])?.code(0)?.text() == "Bee\nant\nzebra\n", "names");
    Ok(())
}

#[test]
fn every_line_of_json_is_an_object_with_type_and_schema() -> Result<()> {
    let scene = Scene::with(&[("a", "1"), ("d/b", "2")])?;
    for arguments in [
        ["--json", "put", "src", "dl://ds"].as_slice(),
        &["--json", "get", "dl://ds", "got"],
        &["--json", "ls", "-lR", "dl://ds"],
        &["--json", "ls", "dl://ds"],
        &["--json", "stat", "dl://ds"],
        &["--json", "stat", "dl://ds/a"],
        &["--json", "stat", "dl://ds/d"],
        &["--json", "du", "dl://ds"],
        &["--json", "datasets"],
        &["--json", "recover", "dl://ds"],
        &["--json", "rm", "dl://ds/a"],
        &["--json", "delete-dataset", "dl://ds"],
    ] {
        let mut command = scene.command([])?;
        let printed = run(command.args(arguments))?.code(0)?.text();
        ensure!(!printed.is_empty(), "{arguments:?} prints nothing");
        for line in printed.lines() {
            let value: serde_json::Value =
                serde_json::from_str(line).with_context(|| format!("{arguments:?}: {line}"))?;
            let has = |field: &str| value.get(field).is_some();
            ensure!(has("type") && has("schema"), "{arguments:?}: {line}");
        }
    }
    Ok(())
}

#[test]
fn stat_and_du_describe_files_and_datasets() -> Result<()> {
    let scene = Scene::with(&[("a", "12345"), ("d/b", "123")])?;
    for (address, used) in
        [("dl://ds", "8\t2\tdl://ds\t8 B\n"), ("dl://ds/d", "3\t1\tdl://ds/d\t3 B\n")]
    {
        ensure!(scene.dl(["du", address])?.code(0)?.text() == used, "{address}");
    }
    let text = scene.dl(["stat", "dl://ds/a"])?.code(0)?.text();
    for told in ["5 bytes", "mtime:", "uploaded:", "mode:", "crc32c:"] {
        ensure!(text.contains(told), "{told} is not in {text}");
    }
    scene.dl(["stat", "dl://ds/none"])?.code(3)?;
    let text = scene.dl(["stat", "dl://ds"])?.code(0)?.text();
    let json = scene.dl(["--json", "stat", "dl://ds"])?.code(0)?.text();
    let json: serde_json::Value = serde_json::from_str(&json)?;
    ensure!(json["name"] == "ds" && json["files"] == 2 && json["bytes"] == 8, "{json}");
    for field in
        ["name", "id", "created", "changed", "objects", "files", "bytes", "chunk_size", "alignment"]
    {
        let value = json.get(field).with_context(|| format!("{json} has no {field}"))?;
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let starts = format!("{}:", field.replace('_', " "));
        let shown = text.lines().find(|shown| shown.starts_with(&starts));
        let shown = shown.with_context(|| format!("{text} has no {field}"))?;
        ensure!(shown.contains(&value), "{shown} and not {value}");
    }
    Ok(())
}
