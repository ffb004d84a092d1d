//! Workers that read, keep views and fork, with an agent of eight slots, under random kills and
//! stops. No byte is wrong, every read is answered, and no slot stays pinned.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::{rounds, tell};
use rustix::process::{Pid, Signal, kill_process};

use super::worker::Worker;
use super::{Scene, pause};

/// About 30 chunks of 1 MiB.
const FILES: u32 = 3_000;
const SLOTS: u64 = 8;
const CHUNK: u64 = 1 << 20;
const WORKERS: usize = 3;

/// The workers, and counts of kills and stops.
struct Torture {
    scene: Scene,
    dice: Dice,
    workers: Vec<Worker>,
    started: usize,
    kills: usize,
    stops: usize,
    agents_killed: usize,
    agents_stopped: usize,
}

#[test]
fn heavy_random_kills_give_no_wrong_byte_and_leave_no_pin() -> Result<()> {
    let time = Duration::from_secs(rounds(30, 600));
    let (clock, seed) = (clock(), 71);
    let mut torture = Torture::start(seed)?;
    let until = clock.monotonic() + time;
    while clock.monotonic() < until {
        torture.step()?;
        torture.workers.iter_mut().try_for_each(Worker::must_live)?;
    }
    let Torture { scene, workers, kills, stops, agents_killed, agents_stopped, .. } = torture;
    let mut told = Vec::new();
    for worker in workers {
        told.extend(worker.end()?);
    }
    tell(format_args!(
        "{kills} workers killed, {stops} stopped; {agents_killed} agents killed, \
         {agents_stopped} stopped; the last {WORKERS} workers: {told:?}"
    ));
    ensure!(
        kills > 0 && stops > 0 && agents_killed > 0 && agents_stopped > 0,
        "a kind of failure never happened"
    );
    nothing_is_left(&scene)
}

impl Torture {
    fn start(seed: u64) -> Result<Self> {
        let scene = Scene::stamped(FILES)?;
        let dice = Dice::new(seed);
        let workers = Vec::new();
        let counts = (0, 0, 0, 0, 0);
        let (started, kills, stops, agents_killed, agents_stopped) = counts;
        let mut torture =
            Self { scene, dice, workers, started, kills, stops, agents_killed, agents_stopped };
        for _ in 0..WORKERS {
            let worker = torture.new_worker()?;
            torture.workers.push(worker);
        }
        Ok(torture)
    }

    fn new_worker(&mut self) -> Result<Worker> {
        self.started += 1;
        let mut worker = open(&self.scene, self.started)?;
        worker.tell("mix")?;
        Ok(worker)
    }

    /// Kills or stops a random process after a random pause.
    fn step(&mut self) -> Result<()> {
        pause(&self.dice, 400);
        let victim = self.dice.below(WORKERS);
        match self.dice.below(10) {
            0..4 => {
                self.worker(victim)?.process.kill()?;
                let worker = self.new_worker()?;
                *self.worker(victim)? = worker;
                self.kills += 1;
            }
            4..7 => {
                self.worker(victim)?.process.signal(Signal::STOP)?;
                pause(&self.dice, 1_000);
                self.worker(victim)?.process.signal(Signal::CONT)?;
                self.stops += 1;
            }
            7..9 => {
                if let Some(agent) = self.agent() {
                    kill_process(agent, Signal::KILL)?;
                    self.agents_killed += 1;
                }
            }
            _ => {
                if let Some(agent) = self.agent() {
                    kill_process(agent, Signal::STOP)?;
                    pause(&self.dice, 4_000);
                    kill_process(agent, Signal::CONT)?;
                    self.agents_stopped += 1;
                }
            }
        }
        Ok(())
    }

    /// The agent; none after a kill, until a read starts the next agent.
    fn agent(&self) -> Option<Pid> {
        self.scene.agent().ok()
    }

    fn worker(&mut self, index: usize) -> Result<&mut Worker> {
        self.workers.get_mut(index).context("a worker with this index")
    }
}

/// A worker with an open dataset. An agent started by the worker has eight slots.
fn open(scene: &Scene, number: usize) -> Result<Worker> {
    let mut command = scene.worker_command(number)?;
    command.env("DIESEL_AGENT_MEMORY", (SLOTS * CHUNK).to_string());
    let mut worker = Worker::start(&mut command, scene.path(&format!("errors-{number}")))?;
    worker.ask("open")?;
    Ok(worker)
}

/// Without workers no slot is pinned or lost, and the next worker reads only from the cache.
fn nothing_is_left(scene: &Scene) -> Result<()> {
    let mut last = open(scene, 0)?;
    scene.wait_until(|status| status["workers"].as_array().is_some_and(|all| all.len() == 1))?;
    let before = scene.status()?;
    let read = last.ask("all")?;
    ensure!(read == format!("{FILES} read"), "{read}");
    let after = scene.status()?;
    // Where memory is full, the first file of a chunk comes alone.
    let alone = |status: &serde_json::Value| status["fallbacks"].as_u64().unwrap_or_default();
    let most = 4 * after["chunks"].as_u64().unwrap_or_default();
    ensure!(alone(&after) - alone(&before) <= most, "{before} became {after}");
    ensure!(after["pid"] == before["pid"], "another agent: {before} became {after}");
    last.end()?;
    let is_free = |status: &serde_json::Value| {
        let held = status["chunks_present"].as_u64().map(|chunks| chunks * CHUNK);
        status["workers"] == serde_json::json!([]) && status["memory_used"].as_u64() == held
    };
    scene.wait_until(is_free).context("a slot is pinned or lost")
}
