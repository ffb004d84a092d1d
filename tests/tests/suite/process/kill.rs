//! Kills at random moments of a `dlcmd put`, a restart, and a second put.
//!
//! Must hold: a test passes only if at least half of the requested kills hit a running put with
//! stored chunks.

use std::cell::Cell;
use std::fs;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::program::{Process, Server, dl, run};
use dl_tests::scene::Scene;
use dl_tests::{folder, rounds};
use rustix::process::Signal;

const FILES: usize = 3_000;
const LONGEST: usize = 20_000;

/// Files of this length fill three times as many chunks as a put sends at once. Chunks in flight at
/// an interrupt are still stored.
const LONGER: usize = 60_000;

const TIMEOUT: Duration = Duration::from_secs(100);

/// The factor between attempts and requested kills, before a test fails.
const TRIED: usize = 15;

/// A scene with the duration of an undisturbed put on this machine.
struct Stage {
    scene: Scene,
    dice: Dice,
    usual: Cell<Duration>,
}

/// A running put.
struct Put {
    process: Process,
    /// Chunks stored before this put.
    before: usize,
    began: Duration,
}

impl Put {
    fn lasts(&self) -> Duration {
        clock().monotonic().saturating_sub(self.began)
    }
}

impl Stage {
    fn new(seed: u64, longest: usize) -> Result<Self> {
        let scene = Scene::filled(FILES, longest)?;
        let stage = Self { scene, dice: Dice::new(seed), usual: Cell::default() };
        let server = stage.scene.start()?;
        let mut put = stage.put(&server, "dl://measure", Stdio::null())?;
        ensure!(put.process.wait(TIMEOUT)? == 0, "put failed");
        stage.usual.set(put.lasts());
        dl(&server, ["delete-dataset", "dl://measure"])?.code(0)?;
        Ok(stage)
    }

    /// Starts `dlcmd put` of the source folder with stdout to `told`. Each thread fills its own
    /// chunk, so few threads keep the stores apart in time.
    fn put(&self, server: &Server, dataset: &str, told: Stdio) -> Result<Put> {
        let mut put = server.dlcmd()?;
        put.args(["--json", "put", "--threads", "2"]).arg(self.scene.src()).arg(dataset);
        put.stdin(Stdio::null()).stdout(told).stderr(Stdio::null());
        let (before, began) = (self.scene.objects()?.len(), clock().monotonic());
        Ok(Put { process: Process::start(&mut put)?, before, began })
    }

    /// Waits for a random moment of a put; in two of three cases after its first chunk.
    fn await_moment(&self, put: &mut Put) -> Result<()> {
        if !self.dice.once_in(3) {
            self.await_chunk(put)?;
        }
        self.pause(put)
    }

    /// Waits until a put has stored a chunk or has ended.
    fn await_chunk(&self, put: &mut Put) -> Result<()> {
        while put.process.ended()?.is_none() && self.scene.objects()?.len() <= put.before {
            ensure!(put.lasts() < TIMEOUT, "the put stores nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Waits for a random part of the put's expected remaining time.
    fn pause(&self, put: &mut Put) -> Result<()> {
        let left = self.usual.get().saturating_sub(put.lasts());
        std::thread::sleep(left.mul_f64(self.dice.below(1000) as f64 / 1000.0));
        if put.process.ended()?.is_some() {
            // Puts have become faster: the first measurement was made on a busier machine.
            self.usual.set(put.lasts());
        }
        Ok(())
    }

    /// Whether the put runs and has stored a chunk.
    fn is_under_way(&self, put: &mut Put) -> Result<bool> {
        Ok(put.process.ended()?.is_none() && self.scene.objects()?.len() > put.before)
    }

    /// Completes the put, gets the dataset and compares the files.
    fn put_and_compare(&self, server: &Server, dataset: &str) -> Result<()> {
        server.put(self.scene.src(), dataset)?;
        server.compare(dataset, &self.scene.src())
    }

    /// Checks that an interrupted put has stored only whole files; returns their count.
    fn check_part(&self, server: &Server, dataset: &str) -> Result<usize> {
        let got = self.scene.path("part");
        let part = run(server.dlcmd()?.arg("get").arg(dataset).arg(&got))?;
        // Not found: the put ended before the dataset existed.
        if part.code == 3 {
            return Ok(0);
        }
        part.code(0)?;
        let (all, part) = (folder::read(&self.scene.src())?, folder::read(&got)?);
        for (path, file) in &part {
            let path_shown = String::from_utf8_lossy(path);
            ensure!(all.get(path) == Some(file), "{path_shown} is not whole");
        }
        fs::remove_dir_all(&got)?;
        Ok(part.len())
    }
}

/// Runs `once` the given number of times, and more often until half of the runs have hit. `once`
/// returns whether its kill has hit.
fn strike(times: usize, mut once: impl FnMut(usize) -> Result<bool>) -> Result<()> {
    let wanted = times.div_ceil(2);
    let (mut struck, mut hit) = (0, 0);
    while struck < times || (hit < wanted && struck < TRIED * times) {
        hit += usize::from(once(struck).with_context(|| format!("round {struck}"))?);
        struck += 1;
    }
    ensure!(
        hit >= wanted,
        "{hit} of {struck} strikes came while a put ran with a part of its files stored; {wanted} \
         have to"
    );
    Ok(())
}

/// Keeps S-01 (I1) and S-03 (I3).
#[test]
fn a_put_survives_kills_of_the_server() -> Result<()> {
    let stage = Stage::new(1, LONGEST)?;
    strike(rounds(5, 60), |round| {
        let dataset = format!("dl://round{round}");
        let server = stage.scene.start()?;
        let address = server.address().to_owned();
        let mut put = stage.put(&server, &dataset, Stdio::null())?;
        stage.await_moment(&mut put)?;
        let is_hit = stage.is_under_way(&mut put)?;
        server.kill()?;
        // A running put continues at the same address.
        let server = Server::start_with(&stage.scene.data(), &address, &[])?;
        let ended = put.process.wait(TIMEOUT)?;
        ensure!(ended == 0, "the put ended with {ended}");
        server.compare(&dataset, &stage.scene.src()).context("a single put")?;
        stage.put_and_compare(&server, &dataset).context("another put")?;
        dl(&server, ["delete-dataset", &dataset])?.code(0)?;
        server.kill()?;
        Ok(is_hit)
    })
}

/// Keeps S-03.
#[test]
fn a_killed_put_leaves_whole_files_and_can_be_repeated() -> Result<()> {
    let stage = Stage::new(2, LONGEST)?;
    let server = stage.scene.start()?;
    strike(rounds(3, 30), |round| {
        let dataset = format!("dl://round{round}");
        let mut put = stage.put(&server, &dataset, Stdio::null())?;
        stage.await_moment(&mut put)?;
        let ended = put.process.ended()?;
        put.process.kill()?;
        let there = stage.check_part(&server, &dataset)?;
        let is_right = ended.is_none_or(|code| code == 0 && there == FILES);
        ensure!(is_right, "the put ended with {ended:?}, and {there} files are there");
        stage.put_and_compare(&server, &dataset)?;
        Ok((1..FILES).contains(&there))
    })?;
    Ok(())
}

/// Keeps S-13.
#[test]
fn an_interrupted_put_leaves_the_reported_files() -> Result<()> {
    let stage = Stage::new(4, LONGER)?;
    let server = stage.scene.start()?;
    strike(rounds(3, 30), |round| {
        let dataset = format!("dl://round{round}");
        let told = stage.scene.path("told");
        let mut put = stage.put(&server, &dataset, fs::File::create(&told)?.into())?;
        // Before the first store, Ctrl-C ends the program by its signal.
        stage.await_chunk(&mut put)?;
        stage.pause(&mut put)?;
        if put.process.ended()?.is_none() {
            put.process.signal(Signal::INT)?;
        }
        let interrupted = clock().monotonic();
        let code = put.process.wait(TIMEOUT)?;
        // Chunks without an answer within a second are given up, but may be stored.
        let was_answered = clock().monotonic() - interrupted < Duration::from_millis(900);
        let there = stage.check_part(&server, &dataset)?;
        let is_right = code == 130 || (code == 0 && there == FILES);
        ensure!(is_right, "ended with {code} after Ctrl-C, and {there} files are there");
        // The reported files are stored, and no others.
        let told = fs::read_to_string(&told)?;
        let told: serde_json::Value =
            serde_json::from_str(told.lines().last().context("put printed nothing")?)?;
        let files = told["files"].as_u64().context("a number")?;
        let is_true = files == there as u64 || !was_answered && files < there as u64;
        ensure!(is_true, "{there} are there: {told}");
        stage.put_and_compare(&server, &dataset)?;
        Ok(code == 130 && was_answered && (1..FILES).contains(&there))
    })?;
    Ok(())
}
