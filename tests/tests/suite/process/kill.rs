//! Kills at random moments of a `dlcmd put`, a restart, and a second put.
//!
//! Must hold: a test passes only if at least half of the requested kills hit a running put with
//! stored chunks.

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

/// Files of this length fill three times as many chunks as a put sends at once. Chunks in flight at
/// an interrupt are still stored.
const LONGER: usize = 60_000;

const PATIENCE: Duration = Duration::from_secs(100);

/// The factor between attempts and requested kills, before a test fails.
const TRIED: usize = 15;

/// A folder of source files, and a server's folder.
struct Scene {
    folder: tempfile::TempDir,
    dice: Dice,
    /// The duration of an undisturbed put on this machine.
    usual: Cell<Duration>,
}

/// A running put.
struct Put {
    process: Process,
    /// Chunks stored before this put.
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

    /// Restarts the server at the same address, so that a running put continues.
    fn start_again(&self, address: &str) -> Result<Server> {
        Server::start_with(&self.path("data"), address, &[])
    }

    /// Starts `dlcmd put` of the source folder with stdout to `told`. Each thread fills its own
    /// chunk, so few threads keep the stores apart in time.
    fn put(&self, server: &Server, dataset: &str, told: Stdio) -> Result<Put> {
        let mut put = server.dlcmd()?;
        put.args(["--json", "put", "--threads", "2"]).arg(self.path("src")).arg(dataset);
        put.stdin(Stdio::null()).stdout(told).stderr(Stdio::null());
        let (before, clock) = (self.chunks(), clock());
        let began = clock.monotonic();
        Ok(Put { process: Process::start(&mut put)?, before, clock, began })
    }

    /// The count of stored chunks.
    fn chunks(&self) -> usize {
        chunks_below(&self.path("data/chunks"))
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
        while put.process.ended()?.is_none() && self.chunks() <= put.before {
            ensure!(put.lasts() < PATIENCE, "the put stores nothing");
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
        Ok(put.process.ended()?.is_none() && self.chunks() > put.before)
    }

    /// Completes the put, gets the dataset and compares the files.
    fn put_and_compare(&self, server: &Server, dataset: &str) -> Result<()> {
        run(server.dlcmd()?.arg("put").arg(self.path("src")).arg(dataset))?.code(0)?;
        self.compare(server, dataset)
    }

    /// Checks that an interrupted put has stored only whole files; returns their count.
    fn check_part(&self, server: &Server, dataset: &str) -> Result<usize> {
        let got = self.path("part");
        let part = run(server.dlcmd()?.arg("get").arg(dataset).arg(&got))?;
        // Not found: the put ended before the dataset existed.
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

/// The count of chunks below a folder; files may appear and vanish meanwhile.
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
        scene.compare(&server, &dataset).context("a single put")?;
        scene.put_and_compare(&server, &dataset).context("another put")?;
        dl(&server, ["delete-dataset", &dataset])?.code(0)?;
        server.kill()?;
        Ok(is_hit)
    })
}

/// Keeps S-03.
#[test]
fn a_killed_put_leaves_whole_files_and_can_be_repeated() -> Result<()> {
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
fn an_interrupted_put_leaves_the_reported_files() -> Result<()> {
    let scene = Scene::new(4, LONGER)?;
    let server = scene.start()?;
    strike(rounds(3, 30), |round| {
        let dataset = format!("dl://round{round}");
        let told = scene.path("told");
        let mut put = scene.put(&server, &dataset, fs::File::create(&told)?.into())?;
        // Before the first store, Ctrl-C ends the program by its signal.
        scene.await_chunk(&mut put)?;
        scene.pause(&mut put)?;
        if put.process.ended()?.is_none() {
            put.process.signal(Signal::INT)?;
        }
        let interrupted = clock().monotonic();
        let code = put.process.wait(PATIENCE)?;
        // Chunks without an answer within a second are given up, but may be stored.
        let was_answered = clock().monotonic() - interrupted < Duration::from_millis(900);
        let there = scene.check_part(&server, &dataset)?;
        let is_right = code == 130 || (code == 0 && there == FILES);
        ensure!(is_right, "ended with {code} after Ctrl-C, and {there} files are there");
        // The reported files are stored, and no others.
        let told = fs::read_to_string(&told)?;
        let told: serde_json::Value =
            serde_json::from_str(told.lines().last().context("put printed nothing")?)?;
        let files = told["files"].as_u64().context("a number")?;
        let is_true = files == there as u64 || !was_answered && files < there as u64;
        ensure!(is_true, "{there} are there: {told}");
        scene.put_and_compare(&server, &dataset)?;
        Ok(code == 130 && was_answered && (1..FILES).contains(&there))
    })?;
    server.stop()?;
    Ok(())
}
