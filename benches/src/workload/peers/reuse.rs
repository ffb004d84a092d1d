//! Chunks from one agent into used slots of another, beside a plain TCP stream into used slots.
//!
//! Must hold: the memory of the receiving agent is a tenth of the dataset. All of its slots were
//! filled before the first counted run. The reader copies few of the received bytes.

use anyhow::Result;

use super::cluster::{Cluster, Job, until};
use super::stream::StreamPair;
use super::transfer::{CHUNK, LENGTH, MEMORY, received};
use crate::measure::{Bar, Bench, in_turns};
use crate::setup::{Settings, processor_seconds};
use crate::workload::agent::node::Start;
use crate::workload::agent::reader::{Command, ReaderProcess};
use crate::workload::agent::runs;

/// Slots of the receiver, and chunks of a group. The chunks of two groups pass through these slots.
const SLOTS: u32 = 48;
const GROUP: u32 = 16;

/// Interval of the read files.
const STEP: u32 = 16;

/// Measures transfers of a dataset of `bytes` bytes.
pub(super) fn run(settings: &Settings, job: &Job<'_>, bytes: u32) -> Result<Vec<Bench>> {
    let giving = Start { memory: MEMORY, policy: "oneshot", ..Start::default() };
    let memory = u64::from(SLOTS) * u64::from(CHUNK);
    let pair = Cluster::of_giver_and_taker(job, &giving, memory)?;
    let mut reader = ReaderProcess::start(&pair.nodes[1].reader(LENGTH, 0))?;
    let times = (bytes / CHUNK).div_ceil(SLOTS);
    let mut stream = StreamPair::start(SLOTS, CHUNK, times)?;
    let sent = f64::from(times) * f64::from(SLOTS) * f64::from(CHUNK);
    let ours = "chunks from one agent to another, each file checked";
    let theirs = "a plain TCP stream, writes of 4 MiB into as many slots again and again";
    let sides = in_turns(runs(settings), [ours, theirs, ours, theirs], |round| {
        until("the agents don't come to rest", || pair.is_idle())?;
        let before = pair.statuses()?;
        let processes: Vec<u32> = before.iter().map(|status| status.pid).collect();
        let processor_before = processor_seconds(&processes)?;
        let epoch = Command::Sparse { epoch: round, group: GROUP, step: STEP };
        let seconds = reader.run(epoch)?.seconds;
        // Chunks of the next epoch arrive from now on.
        let received = received(&before[1], &pair.nodes[1].status()?)?;
        let processor_seconds = processor_seconds(&processes)? - processor_before;
        let (stream_seconds, stream_processor) = stream.run(false)?;
        Ok([
            received.from_peer / seconds / 1e6,
            sent / stream_seconds / 1e6,
            processor_seconds / received.all * 1e9,
            stream_processor / sent * 1e9,
        ])
    })?;
    let [ours, theirs, our_processor, their_processor] = sides;
    let described = format!(
        "{} MiB in chunks of 4 MiB with files of 64 KiB, {SLOTS} slots at the receiving end, an epoch with groups of \
         {GROUP} chunks and a reader of each {STEP}th file, loopback",
        bytes >> 20
    );
    let bench = |name: &str, unit, sides, bar| {
        Bench::new(format!("peers {name}"), &described, unit, sides, bar)
    };
    let processor = [our_processor, their_processor];
    Ok(vec![
        bench("chunks into used slots", "MB/s", [ours, theirs], Bar::AtLeastTimes(0.65)),
        bench("processor time into used slots", "s/GB", processor, Bar::None),
    ])
}
