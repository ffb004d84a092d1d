//! Contract of all commands, and the fixture of the `dlcmd` tests.

use std::fs;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use dl_tests::folder;
use dl_tests::program::{Ended, Server, dlcmd, run};

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
fn global_flags_stand_before_or_after_the_command() -> Result<()> {
    let scene = Scene::with(&[("a", "1")])?;
    let address = scene.server.address();
    let before = run(dlcmd()?.args(["--server", address, "--json", "ls", "dl://ds"]))?.code(0)?;
    let after = run(dlcmd()?.args(["ls", "dl://ds", "--json", "--server", address]))?.code(0)?;
    ensure!(before.text() == after.text() && before.text().starts_with('{'), "{before:?}");
    Ok(())
}

#[test]
fn the_server_comes_from_the_environment_or_a_flag() -> Result<()> {
    let scene = Scene::with(&[("a", "1")])?;
    let address = scene.server.address();
    run(dlcmd()?.args(["ls", "dl://ds"]).env("DIESEL_SERVER", address))?.code(0)?;
    let mut command = dlcmd()?;
    command.args(["--server", address, "ls", "dl://ds"]).env("DIESEL_SERVER", "127.0.0.1:1");
    run(&mut command)?.code(0)?;
    Ok(())
}

#[test]
fn the_usage_line_shows_only_required_words() -> Result<()> {
    let refused = run(dlcmd()?.arg("cat").env("DIESEL_SERVER", "127.0.0.1:1"))?.code(2)?;
    ensure!(refused.stderr.contains("Usage: dlcmd cat <dl://DS/PATH>"), "{}", refused.stderr);
    Ok(())
}

#[test]
fn an_unreachable_server_is_skipped_while_another_answers() -> Result<()> {
    let scene = Scene::with(&[("a", "1")])?;
    let servers = format!("127.0.0.1:1,{}", scene.server.address());
    for _ in 0..4 {
        let listed = run(dlcmd()?.args(["--server", &servers, "ls", "dl://ds"]))?.code(0)?;
        ensure!(listed.text() == "a\n", "{listed:?}");
    }
    Ok(())
}

#[test]
fn wrong_usage_ends_with_2_and_a_remedy() -> Result<()> {
    let scene = Scene::new()?;
    for arguments in [
        ["ls", "ds"],
        ["ls", "dl://"],
        ["ls", "dl://-bad"],
        ["ls", "dl://ds/../x"],
        ["ls", "--no-such-flag"],
        ["no-such-command", "dl://ds"],
        ["recover", "dl://ds/path"],
        ["delete-dataset", "dl://ds/path"],
    ] {
        let refused = scene.dl(arguments)?;
        let refused = refused.code(2).with_context(|| format!("{arguments:?}"))?;
        ensure!(refused.stdout.is_empty() && !refused.stderr.is_empty(), "{refused:?}");
    }
    Ok(())
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
fn a_deleted_dataset_frees_its_name_at_once() -> Result<()> {
    let scene = Scene::with(&[("old", "1")])?;
    scene.dl(["delete-dataset", "dl://ds"])?.code(0)?;
    scene.dl(["ls", "dl://ds"])?.code(3)?;
    scene.dl(["delete-dataset", "dl://ds"])?.code(3)?;
    fs::remove_file(scene.path("src/old"))?;
    scene.write("new", "2")?;
    scene.dl(["put", "src", "dl://ds"])?.code(0)?;
    ensure!(scene.listed("dl://ds")? == "new\n", "the old files are back");
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
fn a_closed_stdout_is_no_error_and_silent() -> Result<()> {
    let scene = Scene::new()?;
    for number in 0..20_000 {
        scene.write(&format!("{number:0100}"), "")?;
    }
    scene.dl(["put", "src", "dl://ds"])?.code(0)?;
    let mut command = scene.command(["ls", "-R", "dl://ds"])?;
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut stdout = child.stdout.take().context("stdout is a pipe")?;
    stdout.read_exact(&mut [0; 10])?;
    drop(stdout);
    let ended = Ended::try_from(child.wait_with_output()?)?.code(0)?;
    ensure!(ended.stderr.is_empty(), "{}", ended.stderr);
    Ok(())
}

#[test]
fn completions_and_the_manual_are_printed_without_a_server() -> Result<()> {
    for shell in ["bash", "zsh", "fish"] {
        let printed = run(dlcmd()?.args(["completions", shell]))?.code(0)?;
        ensure!(printed.text().contains("dlcmd"), "{shell}: {printed:?}");
    }
    ensure!(run(dlcmd()?.arg("man"))?.code(0)?.text().contains("dlcmd"), "man");
    Ok(())
}

#[test]
fn stat_says_size_times_and_permissions() -> Result<()> {
    let scene = Scene::with(&[("a", "12345")])?;
    let text = scene.dl(["stat", "dl://ds/a"])?.code(0)?.text();
    for told in ["5 bytes", "mtime:", "uploaded:", "mode:", "crc32c:"] {
        ensure!(text.contains(told), "{told} is not in {text}");
    }
    scene.dl(["stat", "dl://ds/none"])?.code(3)?;
    Ok(())
}

#[test]
fn stat_of_a_dataset_shows_contents_and_layout() -> Result<()> {
    let scene = Scene::with(&[("a", "12345"), ("d/b", "123")])?;
    let text = scene.dl(["stat", "dl://ds"])?.code(0)?.text();
    let json = scene.dl(["--json", "stat", "dl://ds"])?.code(0)?.text();
    let json: serde_json::Value = serde_json::from_str(&json)?;
    ensure!(json["type"] == "dataset" && json["name"] == "ds", "{json}");
    ensure!(
        json["objects"].as_u64() > Some(0) && json["files"] == 2 && json["bytes"] == 8,
        "{json}"
    );
    for (line, field) in [
        ("name", "name"),
        ("id", "id"),
        ("created", "created"),
        ("changed", "changed"),
        ("objects", "objects"),
        ("files", "files"),
        ("bytes", "bytes"),
        ("chunk size", "chunk_size"),
        ("alignment", "alignment"),
    ] {
        let value = json.get(field).with_context(|| format!("{json} has no {field}"))?;
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let starts = format!("{line}:");
        let shown = text.lines().find(|shown| shown.starts_with(&starts));
        let shown = shown.with_context(|| format!("{text} has no {line}"))?;
        ensure!(shown.contains(&value), "{shown} and not {value}");
    }
    scene.dl(["rm", "dl://ds/a"])?.code(0)?;
    let text = scene.dl(["stat", "dl://ds"])?.code(0)?.text();
    let lines: Vec<_> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    let says = |line: [&str; 2]| lines.iter().any(|found: &Vec<_>| found.starts_with(&line));
    ensure!(says(["files:", "1"]) && says(["bytes:", "3"]), "{text}");
    Ok(())
}

#[test]
fn du_counts_the_files_of_ls() -> Result<()> {
    let scene = Scene::with(&[("a", "12345"), ("d/b", "123"), ("d/e/c", "1")])?;
    let used = scene.dl(["du", "dl://ds"])?.code(0)?.text();
    ensure!(used == "9\t3\tdl://ds\t9 B\n", "{used}");
    let used = scene.dl(["du", "dl://ds/d"])?.code(0)?.text();
    ensure!(used == "4\t2\tdl://ds/d\t4 B\n", "{used}");
    Ok(())
}
