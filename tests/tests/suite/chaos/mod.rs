//! Three servers on a real Redis Cluster and a real S3 server, with failures under writers that
//! overwrite and delete.
//!
//! Must hold: after at most one recovery, every acknowledged file is there with its bytes and every
//! deleted file is gone. Of concurrent writes the same write wins at every server, also after
//! another recovery.

mod clocks;
mod lag;
mod network;
mod purges;
mod reader;
mod writer;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use dl_format::{ChunkShape, DatasetName, FilePath};
use dl_meta::redis_testing::Cluster;
use dl_runtime::SeededRandom;
use dl_runtime::fault::Rates;
use dl_store::Throttle;
use dl_tests::dice::Dice;
use dl_tests::history::{Content, HistoryChecker};
use dl_tests::http::sample;
use dl_tests::program::{Ended, Server, dlcmd, run};
use dl_tests::proxy::{FaultyAnswer, Proxy};
use dl_tests::s3::{Kind, S3, settings};
use dl_tests::scene::Scene;
use dl_tests::shift::ClockShift;
use dl_tests::{rounds, soon};
use libdiesel::{Client, ConnectOptions, DirPath, ListEntry};
use tokio::runtime::Runtime;

use self::reader::Reader;
use self::writer::{Access, Programs, Writer};

/// The files of a server, with their bytes.
type Files = BTreeMap<FilePath, Bytes>;

/// A thread that sums the results of a repeated step.
type Counting = JoinHandle<Result<u32>>;

const NAME: &str = "chaos";
const WRITERS: u8 = 2;

/// The quotas of the fast stores of the first two servers.
const QUOTAS: [&str; 2] = ["1GiB", "4MiB"];

/// The time limit for the return to normal after a failure, with a Redis failover and the servers'
/// repairs.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The latency of the bucket for a slow recovery.
const SLOWLY: Duration = Duration::from_millis(200);

/// The silence in the middle of a stalled answer: longer than every time-out.
const STALLED: Duration = Duration::from_secs(30);

/// The request time-out of a reader.
const HASTE: Duration = Duration::from_secs(5);

struct Stage {
    scene: Scene,
    runtime: Runtime,
    redis: Cluster,
    _bucket: S3,
    proxy: Proxy,
    url: String,
    servers: Vec<Option<Server>>,
    addresses: Vec<String>,
    dice: Dice,
    history: Arc<HistoryChecker>,
    /// The clock shifts of the servers, then of the bucket's server; missing entries mean no shift.
    clocks: Vec<ClockShift>,
    /// The clock shifts of the writers: a writer with a shift uses dlcmd, all other writers use
    /// libdiesel.
    writers: Vec<ClockShift>,
}

impl Stage {
    fn new(seed: u64, replicas: usize) -> Result<Self> {
        Self::with(seed, replicas, ChunkShape::default(), &[])
    }

    /// Starts three servers, with a chunk shape and clock shifts in seconds for the servers and the
    /// bucket's server.
    fn with(seed: u64, replicas: usize, shape: ChunkShape, off: &[i64]) -> Result<Self> {
        let runtime = Runtime::new()?;
        let scene = Scene::new()?;
        let clocks = shifts(&scene.path(""), "server", off)?;
        let of_bucket = clocks.get(3).map(ClockShift::variables).unwrap_or_default();
        let bucket = S3::start_among(Kind::S3sFs, &of_bucket)?;
        let proxy = Proxy::start(bucket.address(), Arc::new(SeededRandom::new(seed)))?;
        let mut stage = Self {
            scene,
            redis: runtime.block_on(Cluster::start(3, replicas)),
            runtime,
            url: bucket.fresh(),
            _bucket: bucket,
            proxy,
            servers: Vec::new(),
            addresses: Vec::new(),
            dice: Dice::new(seed),
            history: Arc::default(),
            clocks,
            writers: Vec::new(),
        };
        for number in 0..3 {
            let server = stage.start(number, "127.0.0.1:0")?;
            stage.addresses.push(server.address().to_owned());
            stage.servers.push(Some(server));
        }
        stage.client()?.create_dataset(&DatasetName::new(NAME)?, shape)?;
        Ok(stage)
    }

    /// Two of the servers have a fast store; the second fast store is too small for the dataset.
    fn start(&self, number: usize, listen: &str) -> Result<Server> {
        let data = self.scene.path(&format!("data{number}"));
        let (redis, fast) = (self.redis.url(), self.fast(number).display().to_string());
        let mut flags = vec!["--meta", &redis, "--store", &self.url, "--http", "127.0.0.1:0"];
        if let Some(quota) = QUOTAS.get(number) {
            flags.extend(["--fast-store", &fast, "--fast-store-quota", quota]);
        }
        let mut variables = settings(self.proxy.address());
        variables.extend(self.clocks.get(number).map(ClockShift::variables).unwrap_or_default());
        Server::start_among(&data, listen, &flags, &variables)
    }

    fn fast(&self, number: usize) -> PathBuf {
        self.scene.path(&format!("fast{number}"))
    }

    /// Ranges read from fast stores since the start of the servers.
    fn hits(&self) -> Result<f64> {
        let hits = |server: &Server| sample(server.http(), "diesel_fast_store_hits_total");
        self.servers.iter().flatten().map(hits).sum()
    }

    fn client(&self) -> Result<Client> {
        connect(&self.addresses)
    }

    fn kill(&mut self, number: usize) -> Result<()> {
        let server = self.servers.get_mut(number).and_then(Option::take);
        server.context("the server does not run")?.kill()?;
        Ok(())
    }

    fn restart(&mut self, number: usize) -> Result<()> {
        let address = self.addresses.get(number).context("there are three")?.clone();
        let server = self.start(number, &address)?;
        *self.servers.get_mut(number).context("there are three")? = Some(server);
        Ok(())
    }

    /// Runs writers before, during and after an event.
    fn under_writers(&mut self, event: Event) -> Result<()> {
        let pause = Duration::from_millis(500 + self.dice.below(1_000) as u64);
        self.under_writers_after(event, || {
            std::thread::sleep(pause);
            Ok(())
        })
    }

    /// Runs writers before, during and after an event, which follows `wait`.
    fn under_writers_after(
        &mut self,
        event: Event,
        wait: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let stop = Arc::new(AtomicBool::new(false));
        let writers = self.writers(&stop)?;
        let happened =
            self.wait_for_files().and_then(|()| wait()).and_then(|()| self.happen(event));
        std::thread::sleep(Duration::from_secs(2));
        stop.store(true, Ordering::Relaxed);
        for writer in writers {
            ensure!(counted(writer)? > 0, "a writer overwrote nothing that the others write");
        }
        happened
    }

    /// Waits until the writers have stored files, on busy machines too.
    fn wait_for_files(&self) -> Result<()> {
        soon("50 files are written", || Ok(self.history.paths().len() > 50))
    }

    fn writers(&self, stop: &Arc<AtomicBool>) -> Result<Vec<Counting>> {
        let name = DatasetName::new(NAME)?;
        let mut writers = Vec::new();
        for number in 0..WRITERS {
            let access = match self.writers.get(usize::from(number)) {
                None => Access::Library(self.client()?.dataset(&name)?),
                Some(shift) => {
                    let folder = self.scene.path(&format!("writer{number}"));
                    Access::Programs(Programs::new(&self.addresses, shift, folder))
                }
            };
            let history = Arc::clone(&self.history);
            let mut writer = Writer::new(access, history, number, Dice::new(u64::from(number)));
            writers.push(again(stop, move || writer.step()));
        }
        Ok(writers)
    }

    /// A reader of the written files that counts answers.
    fn reader(&self, stop: &Arc<AtomicBool>) -> Result<Counting> {
        let servers = self.addresses.clone();
        let options =
            ConnectOptions { servers, request_timeout: HASTE, ..ConnectOptions::default() };
        let dataset = Client::connect(options)?.dataset(&DatasetName::new(NAME)?)?;
        let dice = Dice::new(u64::from(WRITERS));
        let reader = Reader::new(dataset, Arc::clone(&self.history), dice);
        Ok(again(stop, move || reader.step()))
    }

    fn happen(&mut self, event: Event) -> Result<()> {
        let number = self.dice.below(3);
        match event {
            Event::ServerDies => {
                self.kill(number)?;
                std::thread::sleep(Duration::from_secs(1));
                self.restart(number)?;
            }
            Event::PrimaryDies => self.primary(number)?.kill(),
            Event::PrimaryIsEmptied => {
                self.primary(number)?.kill();
                self.runtime.block_on(self.primary(number)?.run());
            }
            Event::AllIsFlushed => self.runtime.block_on(self.redis.flush()),
            Event::BucketFails(error) => {
                let rates = Rates {
                    before: 0.1,
                    answer_lost: 0.1,
                    delay: 0.1,
                    longest_delay: Duration::from_millis(300),
                    error,
                };
                let before = self.proxy.failed();
                self.proxy.set_rates(Some(rates));
                std::thread::sleep(Duration::from_secs(4));
                soon("a request fails", || Ok(self.proxy.failed() > before))?;
                self.proxy.set_rates(None);
            }
        }
        Ok(())
    }

    fn primary(&self, number: usize) -> Result<&dl_meta::redis_testing::Server> {
        self.redis.servers().get(number).context("three primaries")
    }

    /// Runs dlcmd with all servers.
    fn ask(&self, arguments: &[&str]) -> Result<Ended> {
        let servers = self.addresses.join(",");
        run(dlcmd()?.args(["--server", &servers]).args(arguments))
    }

    /// Repeats a dlcmd command while `happens` runs.
    fn beside<T>(
        &mut self,
        arguments: &[&str],
        happens: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let (stop, servers) = (Arc::new(AtomicBool::new(false)), self.addresses.join(","));
        let shown = arguments.join(" ");
        let arguments: Vec<String> = arguments.iter().map(|&argument| argument.into()).collect();
        let running = again(&stop, move || {
            let ended = run(dlcmd()?.args(["--server", &servers]).args(&arguments))?;
            Ok(u32::from(ended.code == 0))
        });
        let happened = happens(self);
        stop.store(true, Ordering::Relaxed);
        let done = counted(running)?;
        ensure!(done > 0, "dlcmd {shown} never came to its end");
        happened
    }

    /// Recovers on demand, and compares all servers with the history.
    fn check(&self) -> Result<()> {
        self.recover_if_asked()?;
        compare(&self.addresses, &self.history)
    }

    /// Recovers on demand and compares. After a loss in Redis, the demand must come.
    fn check_after(&self, event: Event) -> Result<()> {
        let is_asked = self.recover_if_asked()?;
        // The servers rebuild a lost primary themselves.
        let is_flushed = matches!(event, Event::AllIsFlushed);
        ensure!(is_asked || !is_flushed, "no server asked for a recovery");
        compare(&self.addresses, &self.history)
    }

    /// Waits until listings succeed or ask for a recovery; returns whether a recovery was run.
    fn recover_if_asked(&self) -> Result<bool> {
        let mut is_asked = false;
        soon("listings succeed or ask for a recovery", || {
            let listed = self.ask(&["ls", "-R", "dl://chaos"])?;
            is_asked = listed.code == 1 && listed.stderr.contains("recover --all");
            Ok(is_asked || listed.code == 0)
        })?;
        if is_asked {
            self.ask(&["recover", "--all"])?.code(0)?;
        }
        Ok(is_asked)
    }
}

/// Clock shifts of the given seconds.
fn shifts(folder: &Path, name: &str, off: &[i64]) -> Result<Vec<ClockShift>> {
    let shift = |(number, seconds): (usize, &i64)| {
        ClockShift::new(folder, &format!("{name}{number}"), *seconds)
    };
    off.iter().enumerate().map(shift).collect()
}

/// Repeats a step in a thread until `stop`.
fn again(
    stop: &Arc<AtomicBool>,
    mut step: impl FnMut() -> Result<u32> + Send + 'static,
) -> Counting {
    let stop = Arc::clone(stop);
    std::thread::spawn(move || {
        let mut count = 0;
        while !stop.load(Ordering::Relaxed) {
            count += step()?;
        }
        anyhow::Ok(count)
    })
}

/// The sum of a thread's results.
fn counted(counting: Counting) -> Result<u32> {
    counting.join().ok().context("the thread returns its errors")?
}

fn connect(servers: &[String]) -> Result<Client> {
    let servers = servers.to_vec();
    Ok(Client::connect(ConnectOptions { servers, ..ConnectOptions::default() })?)
}

/// Compares the files of each server with the history, before and after a recovery.
fn compare(servers: &[String], history: &HistoryChecker) -> Result<()> {
    let before = compare_each(servers, history, None)?;
    let all = servers.join(",");
    run(dlcmd()?.args(["--server", &all, "recover", "--all"]))?.code(0)?;
    compare_each(servers, history, before).context("after another recovery")?;
    Ok(())
}

/// Compares the files of each server with the history and with `before`. Only unacknowledged writes
/// may appear in between.
fn compare_each(
    servers: &[String],
    history: &HistoryChecker,
    mut before: Option<Files>,
) -> Result<Option<Files>> {
    let (now, written) = (history.now(), history.paths());
    for address in servers {
        let files = files_at(&connect(std::slice::from_ref(address))?)?;
        let paths: BTreeSet<&FilePath> = written.iter().chain(files.keys()).collect();
        for path in paths {
            let bytes = files.get(path);
            let content = bytes.map(|bytes| Content::of(bytes));
            let shown = || format!("{address}: {}", beginning(bytes));
            history.check(path, content, now).with_context(shown)?;
            let is_same = before.as_ref().is_none_or(|before| before.get(path) == bytes);
            let is_right = is_same || history.may_appear(path, content);
            ensure!(is_right, "{path} is another one than before at {}", shown());
        }
        before = Some(files);
    }
    Ok(before)
}

fn files_at(client: &Client) -> Result<Files> {
    let dataset = client.dataset(&DatasetName::new(NAME)?)?;
    let mut there = Vec::new();
    for entry in dataset.list(&DirPath::ROOT, true, true)? {
        if let ListEntry::File(path, _) = entry? {
            there.push(path);
        }
    }
    let mut files = Files::new();
    for paths in there.chunks(256) {
        for (path, bytes) in paths.iter().zip(dataset.get_many(paths)?) {
            files.insert(path.clone(), bytes.with_context(|| format!("read {path}"))?);
        }
    }
    Ok(files)
}

/// The first bytes of a file, which name the writer.
fn beginning(bytes: Option<&Bytes>) -> String {
    match bytes {
        Some(bytes) => {
            let first = bytes.get(..40).unwrap_or(bytes);
            format!("{} bytes that begin with {}", bytes.len(), first.escape_ascii())
        }
        None => "nothing".to_owned(),
    }
}

#[derive(Debug, Clone, Copy)]
enum Event {
    ServerDies,
    /// With a replica that takes over.
    PrimaryDies,
    /// Without a replica: the primary restarts empty.
    PrimaryIsEmptied,
    AllIsFlushed,
    BucketFails(FaultyAnswer),
}

impl Event {
    /// Whether the servers refuse reads until they rebuilt the metadata.
    fn needs_rebuild(self) -> bool {
        match self {
            Self::PrimaryDies | Self::PrimaryIsEmptied | Self::AllIsFlushed => true,
            Self::ServerDies | Self::BucketFails(_) => false,
        }
    }
}

fn survive(event: Event, replicas: usize) -> Result<()> {
    survive_on(event, |round| Stage::new(round, replicas))
}

/// Runs the event in each round on a prepared stage.
fn survive_on(event: Event, set: impl Fn(u64) -> Result<Stage>) -> Result<()> {
    for round in 0..rounds(1, 10) {
        let mut stage = set(round)?;
        stage.under_writers(event)?;
        stage.check_after(event).with_context(|| format!("round {round}, {event:?}"))?;
    }
    Ok(())
}

/// Keeps S-01, S-03, S-04 (I4), S-06 and S-07.
#[test]
fn a_server_is_killed() -> Result<()> {
    survive(Event::ServerDies, 0)
}

/// Keeps S-01, S-02, S-04 (I4) and S-50.
#[test]
fn a_redis_primary_with_a_replica_is_killed() -> Result<()> {
    survive(Event::PrimaryDies, 1)
}

/// Keeps S-01, S-02, S-04 (I4), S-05 and S-50.
#[test]
fn a_redis_primary_without_a_replica_comes_back_empty() -> Result<()> {
    survive(Event::PrimaryIsEmptied, 0)
}

/// Keeps S-01, S-02, S-04 (I4), S-05, S-21 and S-50.
#[test]
fn all_of_redis_is_flushed() -> Result<()> {
    survive(Event::AllIsFlushed, 0)
}

/// Keeps S-01, S-03, S-04 (I4) and S-06.
#[test]
fn the_bucket_answers_with_errors_slowly_or_in_part() -> Result<()> {
    let stalled = FaultyAnswer::Stalled(STALLED);
    let all = [
        FaultyAnswer::SlowDown,
        FaultyAnswer::Cut,
        stalled,
        FaultyAnswer::Internal,
        FaultyAnswer::Dropped,
    ];
    for error in all.into_iter().take(rounds(3, all.len())) {
        survive(Event::BucketFails(error), 0)?;
    }
    Ok(())
}

/// Runs the event beside a repeated command and a reader.
fn survive_beside(arguments: &[&str], event: Event, replicas: usize) -> Result<()> {
    for round in 0..rounds(1, 10) {
        let mut stage = Stage::new(round, replicas)?;
        let stop = Arc::new(AtomicBool::new(false));
        let reader = stage.reader(&stop)?;
        let happened = stage.beside(arguments, |stage| stage.under_writers(event));
        stop.store(true, Ordering::Relaxed);
        let answers = counted(reader).context("read")?;
        happened?;
        ensure!(answers > 0, "the reader had no answer");
        stage.check_after(event).with_context(|| format!("round {round}, {event:?}"))?;
    }
    Ok(())
}

/// Keeps S-01, S-02 and S-07.
#[test]
fn a_server_is_killed_while_recoveries_run() -> Result<()> {
    survive_beside(&["recover", "--all"], Event::ServerDies, 0)
}

/// Keeps S-01 and S-02.
#[test]
fn a_primary_with_a_replica_is_killed_while_recoveries_run() -> Result<()> {
    survive_beside(&["recover", "--all"], Event::PrimaryDies, 1)
}

/// Keeps S-01 and S-03.
#[test]
fn the_bucket_fails_while_recoveries_run() -> Result<()> {
    let all = [FaultyAnswer::Cut, FaultyAnswer::SlowDown, FaultyAnswer::Internal];
    for error in all.into_iter().take(rounds(1, all.len())) {
        survive_beside(&["recover", "--all"], Event::BucketFails(error), 0)?;
    }
    Ok(())
}

/// Keeps S-01, S-02, S-05 and S-38: a second loss during a recovery.
#[test]
fn redis_loses_data_again_during_a_recovery() -> Result<()> {
    for first in [Event::AllIsFlushed, Event::PrimaryIsEmptied] {
        for number in 0..rounds(1, 3) {
            let mut stage = Stage::new(number as u64, 0)?;
            stage.under_writers(first)?;
            // The servers rebuild by themselves what a single primary has lost.
            if matches!(first, Event::AllIsFlushed) {
                stage.ask(&["ls", "dl://chaos"])?.code(1)?;
            }
            // A slow bucket, so that the recovery takes a second or two.
            stage.proxy.set_throttle(Throttle { latency: SLOWLY, ..Throttle::default() });
            let servers = stage.addresses.join(",");
            let recovery = std::thread::spawn(move || {
                run(dlcmd()?.args(["--server", &servers, "recover", "--all"]))
            });
            std::thread::sleep(SLOWLY * (1 + stage.dice.below(4) as u32));
            ensure!(!recovery.is_finished(), "the recovery had ended: {:?}", recovery.join());
            stage.runtime.block_on(stage.primary(number)?.ask(&["FLUSHALL"]));
            let ended = recovery.join().ok().context("the thread returns its errors")??;
            stage.proxy.set_throttle(Throttle::default());
            if ended.code != 0 {
                ensure!(ended.stderr.contains("recover --all"), "{ended:?}");
            }
            stage.check().with_context(|| format!("{first:?}, then {number}: {ended:?}"))?;
        }
    }
    Ok(())
}
