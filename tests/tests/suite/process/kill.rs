//! Processes killed at random moments of a `dlcmd put`, restarted, and the put run again.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::program::{Process, Server, dl, run};
use dl_tests::{folder, rounds};
use rustix::process::Signal;

const FILES: usize = 3_000;
const LONGEST: usize = 20_000;
const PATIENCE: Duration = Duration::from_secs(100);

/// A folder of files, and one for the server.
struct Scene {
    folder: tempfile::TempDir,
    dice: Dice,
}

impl Scene {
    fn new(seed: u64) -> Result<Self> {
        let (folder, dice) = (tempfile::tempdir()?, Dice::new(seed));
        folder::fill(&folder.path().join("src"), FILES, LONGEST, &dice)?;
        Ok(Self { folder, dice })
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Starts `dlcmd put` of the whole folder.
    fn put(&self, server: &Server, dataset: &str) -> Result<Process> {
        let mut put = server.dlcmd()?;
        put.arg("put").arg(self.path("src")).arg(dataset);
        Process::start(put.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))
    }

    fn pause(&self, longest: Duration) {
        std::thread::sleep(longest.mul_f64(self.dice.below(1000) as f64 / 1000.0));
    }

    /// Puts until it is done, gets it into a fresh folder, and compares.
    fn put_and_compare(&self, server: &Server, dataset: &str) -> Result<()> {
        run(server.dlcmd()?.arg("put").arg(self.path("src")).arg(dataset))?.code(0)?;
        self.compare(server, dataset)
    }

    /// What is there of a put that was cut off are whole files; gives how many.
    fn check_part(&self, server: &Server, dataset: &str) -> Result<usize> {
        let got = self.path("part");
        let part = run(server.dlcmd()?.arg("get").arg(dataset).arg(&got))?;
        // Cut off before it had made the dataset: not found.
        if part.code == 3 {
            return Ok(0);
        }
        part.code(0)?;
        let (all, part) = (folder::read(&self.path("src"))?, folder::read(&got)?);
        for (path, file) in &part {
            let path_shown = String::from_utf8_lossy(path);
            ensure!(all.get(path) == Some(file), "{path_shown} is not whole");
        }
        fs::remove_dir_all(&got)?;
        Ok(part.len())
    }

    fn compare(&self, server: &Server, dataset: &str) -> Result<()> {
        let got = self.path("got");
        run(server.dlcmd()?.arg("get").arg(dataset).arg(&got))?.code(0)?;
        folder::compare(&self.path("src"), &got)?;
        fs::remove_dir_all(&got).context("remove what was got")
    }
}

/// How long an undisturbed put takes here, so that the kills come in the middle of it.
fn usual_time(scene: &Scene, data: &Path) -> Result<Duration> {
    let (server, clock) = (Server::start(data)?, clock());
    let began = clock.monotonic();
    ensure!(scene.put(&server, "dl://measure")?.wait(PATIENCE)? == 0, "put failed");
    let took = clock.monotonic() - began;
    dl(&server, ["delete-dataset", "dl://measure"])?.code(0)?;
    server.kill()?;
    Ok(took)
}

/// Keeps S-01 (I1) and S-03 (I3).
#[test]
fn a_put_goes_on_over_kills_of_the_server_and_every_byte_comes_back() -> Result<()> {
    let scene = Scene::new(1)?;
    let data = scene.path("data");
    let usual = usual_time(&scene, &data)?;
    for round in 0..rounds(5, 60) {
        let dataset = format!("dl://round{round}");
        let server = Server::start(&data)?;
        let address = server.address().to_owned();
        let mut put = scene.put(&server, &dataset)?;
        scene.pause(usual);
        server.kill()?;
        // On the same port, so that a put that is still running finds it again.
        let server = Server::start_with(&data, &address, &[])?;
        let ended = put.wait(PATIENCE)?;
        ensure!(ended == 0, "round {round}: the put ended with {ended}");
        scene.compare(&server, &dataset).with_context(|| format!("round {round}, one put"))?;
        scene.put_and_compare(&server, &dataset).with_context(|| format!("round {round}"))?;
        dl(&server, ["delete-dataset", &dataset])?.code(0)?;
        server.kill()?;
    }
    Ok(())
}

/// Keeps S-03.
#[test]
fn a_killed_put_leaves_only_whole_files_and_the_next_one_goes_on() -> Result<()> {
    let scene = Scene::new(2)?;
    let data = scene.path("data");
    let usual = usual_time(&scene, &data)?;
    let server = Server::start(&data)?;
    for round in 0..rounds(3, 30) {
        let dataset = format!("dl://round{round}");
        let mut put = scene.put(&server, &dataset)?;
        scene.pause(usual);
        put.kill()?;
        scene.check_part(&server, &dataset).with_context(|| format!("round {round}"))?;
        scene.put_and_compare(&server, &dataset).with_context(|| format!("round {round}"))?;
    }
    server.stop()?;
    Ok(())
}

/// Keeps S-11.
#[test]
fn a_server_that_is_asked_to_stop_finishes_what_is_in_flight() -> Result<()> {
    let scene = Scene::new(3)?;
    let data = scene.path("data");
    let usual = usual_time(&scene, &data)?;
    for round in 0..rounds(3, 30) {
        let dataset = format!("dl://round{round}");
        let server = Server::start(&data)?;
        let address = server.address().to_owned();
        let mut put = scene.put(&server, &dataset)?;
        scene.pause(usual);
        server.stop().with_context(|| format!("round {round}"))?;
        let server = Server::start_with(&data, &address, &[])?;
        let ended = put.wait(PATIENCE)?;
        ensure!(ended == 0, "round {round}: the put ended with {ended} over a restart");
        scene.compare(&server, &dataset).with_context(|| format!("round {round}"))?;
        server.stop()?;
    }
    Ok(())
}

/// Keeps S-13.
#[test]
fn an_interrupted_put_leaves_a_whole_dataset_as_far_as_it_went() -> Result<()> {
    let scene = Scene::new(4)?;
    let data = scene.path("data");
    let usual = usual_time(&scene, &data)?;
    let server = Server::start(&data)?;
    for round in 1..4 {
        let dataset = format!("dl://round{round}");
        let mut command = server.dlcmd()?;
        command.args(["--json", "put"]).arg(scene.path("src")).arg(&dataset);
        let told = scene.path("told");
        let (out, notes) = (fs::File::create(&told)?, Stdio::null());
        let mut put = Process::start(command.stdin(Stdio::null()).stdout(out).stderr(notes))?;
        std::thread::sleep(usual * round / 6);
        put.signal(Signal::INT)?;
        let code = put.wait(PATIENCE)?;
        ensure!(code == 130 || code == 0, "ended with {code} after Ctrl-C");
        let there = scene.check_part(&server, &dataset)?;
        // What it reports is there, and nothing else.
        let told = fs::read_to_string(&told)?;
        let last =
            told.lines().last().with_context(|| format!("round {round}: it said nothing"))?;
        let told: serde_json::Value = serde_json::from_str(last)?;
        ensure!(told["files"] == there, "round {round}: {there} are there: {told}");
        scene.put_and_compare(&server, &dataset)?;
    }
    server.stop()?;
    Ok(())
}
