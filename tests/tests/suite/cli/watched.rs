//! Progress and interruption of a running dlcmd.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::folder;
use dl_tests::program::{Process, dlcmd};
use rustix::process::Signal;
use serde_json::Value;

use super::common::Scene;

/// The output of `command` on a terminal, including overdrawn text.
fn on_a_terminal(command: &str, folder: &Path) -> Result<String> {
    let command = format!("stty cols 120 rows 40; exec {command}");
    let mut script = Command::new("script");
    script.args(["-qefc", &command, "/dev/null"]).current_dir(folder);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("DIESEL_") {
            script.env_remove(name);
        }
    }
    let script = script.env("TERM", "xterm").stdin(Stdio::null()).output();
    let output = script.context("run script, of Debian's bsdutils")?;
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{}: {shown}", output.status);
    Ok(shown)
}

#[test]
fn put_on_a_terminal_shows_progress_rates_and_time_left() -> Result<()> {
    let scene = Scene::new()?;
    // Storing these files takes far longer than counting them.
    let (count, file) = (dl_tests::rounds(10_000, 20_000), "some bytes of a file".repeat(1_500));
    for number in 0..count {
        scene.write(&format!("{}/{number}", number / 1_000), &file)?;
    }
    let put = dlcmd()?;
    let program = put.get_program().to_string_lossy().into_owned();
    let address = scene.server.address();
    let command = format!("{program} --server {address} put --threads 1 src dl://ds");
    let shown = on_a_terminal(&command, &scene.path(""))?;
    let drawn: Vec<_> = shown.split(['\r', '\n']).filter(|line| line.contains("left")).collect();
    let drawn_all = || shown.replace('\x1b', "\\e");
    let line = drawn.last().with_context(drawn_all)?;
    for told in ["iB/", "B/s", "files/s", "left"] {
        ensure!(line.contains(told), "{told} is not in {line}: {}", drawn_all());
    }
    // Before the first measurement, no numbers are shown.
    for line in shown.split(['\r', '\n']) {
        ensure!(!line.contains(" 0 B/s"), "{line}: {}", drawn_all());
        ensure!(!line.contains(" 0s left") || line.contains("files/s"), "{line}: {}", drawn_all());
    }
    ensure!(shown.contains(&format!("{count} files put")), "{}", drawn_all());
    // Without a terminal nothing is drawn.
    let quiet = scene.dl(["put", "--checksum", "src", "dl://ds"])?.code(0)?;
    ensure!(quiet.stderr.is_empty(), "{}", quiet.stderr);
    Ok(())
}

#[test]
fn an_interrupted_put_prints_its_last_line_if_servers_hang() -> Result<()> {
    let mut scene = Scene::new()?;
    // Sparse files, too many to be stored before the interrupt.
    for number in 0..4_000 {
        scene.write(&format!("{number:04}"), "")?;
        fs::File::create(scene.path(&format!("src/{number:04}")))?.set_len(3 << 20)?;
    }
    let (out, errors) = (scene.path("out"), scene.path("errors"));
    let mut put = scene.command(["--json", "put", "src", "dl://ds"])?;
    put.stdout(fs::File::create(&out)?).stderr(fs::File::create(&errors)?);
    let mut put = Process::start(&mut put)?;
    let mut tries = 0;
    while folder::bytes_under(&scene.path("data/chunks"))? < 1 << 20 {
        std::thread::sleep(Duration::from_millis(10));
        tries += 1;
        ensure!(tries < 3_000, "the put sends nothing");
    }
    scene.server.process().signal(Signal::STOP)?;
    std::thread::sleep(Duration::from_millis(300));
    put.signal(Signal::INT)?;
    let code = put.wait(Duration::from_secs(10))?;
    let (said, errors) = (fs::read_to_string(&out)?, fs::read_to_string(&errors)?);
    ensure!(code == 130, "put ended with exit code {code}: {said}{errors}");
    ensure!(errors.contains("the same command goes on"), "{errors}");
    let last = said.lines().last().with_context(|| format!("no last line: {errors}"))?;
    let line: Value = serde_json::from_str(last)?;
    ensure!(line["type"] == "put" && line["failed"] == 0, "{line}");
    scene.server.process().signal(Signal::CONT)
}
