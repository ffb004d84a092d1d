//! Processes killed at random moments of a `dlcmd put`, restarted, and the put run again.
//!
//! Must hold: a test passes only where at least half as many strikes as were asked for came upon a
//! put that was running, with some of its chunks stored.

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_runtime::Clock;
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::program::{Process, Server, dl, run};
use dl_tests::{folder, rounds};
use rustix::process::Signal;

const FILES: usize = 3_000;
const LONGEST: usize = 20_000;

/// Such files fill three times as many chunks as a put sends at once, and the ones that it sends when
/// it is interrupted are still stored.
const LONGER: usize = 60_000;

const PATIENCE: Duration = Duration::from_secs(100);

/// So many times as many strikes as were asked for are tried before too few have hit.
const TRIED: usize = 15;

/// A folder of files, and one for the server.
struct Scene {
    folder: tempfile::TempDir,
    dice: Dice,
    /// How long an undisturbed put takes here, so that strikes come in the middle of it.
    usual: Cell<Duration>,
}

/// A put that was started.
struct Put {
    process: Process,
    /// Chunks that were stored before.
    before: usize,
    clock: Arc<dyn Clock>,
    began: Duration,
}

impl Put {
    fn lasts(&self) -> Duration {
        self.clock.monotonic().saturating_sub(self.began)
    }
}

impl Scene {
    fn new(seed: u64, longest: usize) -> Result<Self> {
        let (folder, dice) = (tempfile::tempdir()?, Dice::new(seed));
        folder::fill(&folder.path().join("src"), FILES, longest, &dice)?;
        let scene = Self { folder, dice, usual: Cell::default() };
        let server = scene.start()?;
        let mut put = scene.put(&server, "dl://measure", Stdio::null())?;
        ensure!(put.process.wait(PATIENCE)? == 0, "put failed");
        scene.usual.set(put.lasts());
        dl(&server, ["delete-dataset", "dl://measure"])?.code(0)?;
        server.kill()?;
        Ok(scene)
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn start(&self) -> Result<Server> {
        Server::start(&self.path("data"))
    }

    /// Starts it where another one was, so that a put that is still running finds it again.
    fn start_again(&self, address: &str) -> Result<Server> {
        Server::start_with(&self.path("data"), address, &[])
    }

    /// Starts `dlcmd put` of the whole folder; `told` is where it reports. Each thread fills a chunk
    /// of its own: of many threads, all chunks would be stored at the end, and at once.
    fn put(&self, server: &Server, dataset: &str, told: Stdio) -> Result<Put> {
        let mut put = server.dlcmd()?;
        put.args(["--json", "put", "--threads", "2"]).arg(self.path("src")).arg(dataset);
        put.stdin(Stdio::null()).stdout(told).stderr(Stdio::null());
        let (before, clock) = (self.chunks(), clock());
        let began = clock.monotonic();
        Ok(Put { process: Process::start(&mut put)?, before, clock, began })
    }

    /// Chunks that are stored now.
    fn chunks(&self) -> usize {
        chunks_below(&self.path("data/chunks"))
    }

    /// Waits for a random moment of a put; two of three times for one with some of it stored.
    fn await_moment(&self, put: &mut Put) -> Result<()> {
        if !self.dice.once_in(3) {
            self.await_chunk(put)?;
        }
        self.pause(put)
    }

    /// Waits until something of a put is stored, or the put has ended.
    fn await_chunk(&self, put: &mut Put) -> Result<()> {
        while put.process.ended()?.is_none() && self.chunks() <= put.before {
            ensure!(put.lasts() < PATIENCE, "it stores nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Waits for a random part of what is usually left of a put.
    fn pause(&self, put: &mut Put) -> Result<()> {
        let left = self.usual.get().saturating_sub(put.lasts());
        std::thread::sleep(left.mul_f64(self.dice.below(1000) as f64 / 1000.0));
        if put.process.ended()?.is_some() {
            // They have become faster: the machine was busier when the first one was measured.
            self.usual.set(put.lasts());
        }
        Ok(())
    }

    /// Whether a strike would hit: the put runs, with something of it stored.
    fn is_under_way(&self, put: &mut Put) -> Result<bool> {
        Ok(put.process.ended()?.is_none() && self.chunks() > put.before)
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

/// Chunks below a folder, in which they come and go.
fn chunks_below(folder: &Path) -> usize {
    let Ok(entries) = fs::read_dir(folder) else { return 0 };
    let mut count = 0;
    for entry in entries.map_while(Result::ok) {
        let path = entry.path();
        count += match entry.file_type() {
            Ok(kind) if kind.is_dir() => chunks_below(&path),
            _ => usize::from(path.extension().is_some_and(|ending| ending == "c")),
        };
    }
    count
}

/// Strikes so many times, each time another put, and goes on until half as many have hit. A strike
/// says whether it did.
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
fn a_put_goes_on_over_kills_of_the_server_and_every_byte_comes_back() -> Result<()> {
    let scene = Scene::new(1, LONGEST)?;
    strike(rounds(5, 60), |round| {
        let dataset = format!("dl://round{round}");
        let server = scene.start()?;
        let address = server.address().to_owned();
        let mut put = scene.put(&server, &dataset, Stdio::null())?;
        scene.await_moment(&mut put)?;
        let is_hit = scene.is_under_way(&mut put)?;
        server.kill()?;
        let server = scene.start_again(&address)?;
        let ended = put.process.wait(PATIENCE)?;
        ensure!(ended == 0, "the put ended with {ended}");
        scene.compare(&server, &dataset).context("one put")?;
        scene.put_and_compare(&server, &dataset).context("another put")?;
        dl(&server, ["delete-dataset", &dataset])?.code(0)?;
        server.kill()?;
        Ok(is_hit)
    })
}

/// Keeps S-03.
#[test]
fn a_killed_put_leaves_only_whole_files_and_the_next_one_goes_on() -> Result<()> {
    let scene = Scene::new(2, LONGEST)?;
    let server = scene.start()?;
    strike(rounds(3, 30), |round| {
        let dataset = format!("dl://round{round}");
        let mut put = scene.put(&server, &dataset, Stdio::null())?;
        scene.await_moment(&mut put)?;
        let ended = put.process.ended()?;
        put.process.kill()?;
        let there = scene.check_part(&server, &dataset)?;
        let is_right = ended.is_none_or(|code| code == 0 && there == FILES);
        ensure!(is_right, "the put ended with {ended:?}, and {there} files are there");
        scene.put_and_compare(&server, &dataset)?;
        Ok((1..FILES).contains(&there))
    })?;
    server.stop()?;
    Ok(())
}

/// Keeps S-13.
#[test]
fn an_interrupted_put_leaves_a_whole_dataset_as_far_as_it_went() -> Result<()> {
    let scene = Scene::new(4, LONGER)?;
    let server = scene.start()?;
    strike(rounds(3, 30), |round| {
        let dataset = format!("dl://round{round}");
        let told = scene.path("told");
        let mut put = scene.put(&server, &dataset, fs::File::create(&told)?.into())?;
        // Before it has begun, Ctrl-C ends it as it ends any program.
        scene.await_chunk(&mut put)?;
        scene.pause(&mut put)?;
        if put.process.ended()?.is_none() {
            put.process.signal(Signal::INT)?;
        }
        let interrupted = clock().monotonic();
        let code = put.process.wait(PATIENCE)?;
        // What the server does not answer within a second is given up, and may be stored all the same.
        let was_answered = clock().monotonic() - interrupted < Duration::from_millis(900);
        let there = scene.check_part(&server, &dataset)?;
        let is_right = code == 130 || (code == 0 && there == FILES);
        ensure!(is_right, "ended with {code} after Ctrl-C, and {there} files are there");
        // What it reports is there, and nothing else.
        let told = fs::read_to_string(&told)?;
        let told: serde_json::Value =
            serde_json::from_str(told.lines().last().context("it said nothing")?)?;
        let files = told["files"].as_u64().context("a number")?;
        let is_true = files == there as u64 || !was_answered && files < there as u64;
        ensure!(is_true, "{there} are there: {told}");
        scene.put_and_compare(&server, &dataset)?;
        Ok(code == 130 && was_answered && (1..FILES).contains(&there))
    })?;
    server.stop()?;
    Ok(())
}
