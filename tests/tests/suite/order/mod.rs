//! The order of an epoch, compared with `tests/order/order.py`, an implementation of docs/ORDER.md,
//! and with frozen test vectors.

mod faults;
mod memory;
mod read;
mod scene;
mod trained;

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use dl_format::Crc32c;
use dl_tests::dice::Dice;
use dl_tests::workspace;
use libdiesel::order::{Cursor, Order, OrderError, Stage};
use libdiesel::{OrderSettings, Partition, ResumeToken, Selection, Tail, Worker};
use serde_json::{Value, json};

/// The nodes of a stage, its position, and its skips in any order.
type RawStage = (u32, u64, Vec<[u64; 2]>);

/// Arguments of an order and of a token.
#[derive(Debug, Clone)]
struct Case {
    counts: Vec<u32>,
    /// Ranges of selected files: first file and end.
    selected: Option<Vec<[u32; 2]>>,
    settings: OrderSettings,
    /// Workers per rank, and files per batch.
    workers: [u32; 2],
    stages: Vec<RawStage>,
    /// Files read by each rank when the token is made.
    read: u64,
}

impl Case {
    fn of(json: &Value) -> Result<Self> {
        let number =
            |name: &'static str| json[name].as_u64().with_context(|| format!("{name} in {json}"));
        let small = |name: &'static str| anyhow::Ok(u32::try_from(number(name)?)?);
        let settings = OrderSettings {
            seed: number("seed")?,
            epoch: number("epoch")?,
            group: small("group")?,
            world: small("world")?,
            partition: match small("nodes")? {
                1 => Partition::Global,
                nodes => Partition::Local { nodes },
            },
            tail: match json["tail"].as_str() {
                Some("drop") => Tail::Drop,
                Some("pad") => Tail::Pad,
                tail => anyhow::bail!("the tail {tail:?}"),
            },
        };
        Ok(Self {
            counts: serde_json::from_value(json["counts"].clone())?,
            selected: serde_json::from_value(json["selected"].clone())?,
            settings,
            workers: serde_json::from_value(json["workers"].clone())?,
            stages: serde_json::from_value(json["stages"].clone())?,
            read: number("read")?,
        })
    }

    fn json(&self) -> Value {
        let OrderSettings { seed, epoch, group, world, partition, tail } = self.settings;
        json!({
            "counts": self.counts,
            "selected": self.selected,
            "seed": seed,
            "epoch": epoch,
            "group": group,
            "world": world,
            "nodes": match partition { Partition::Global => 1, Partition::Local { nodes } => nodes },
            "tail": match tail { Tail::Drop => "drop", Tail::Pad => "pad" },
            "workers": self.workers,
            "stages": self.stages,
            "read": self.read,
        })
    }

    fn stages(&self) -> Result<Vec<Stage>> {
        let stages = self.stages.iter().map(|(nodes, position, skips)| {
            let skips = skips.iter().map(|[from, to]| format!("!{from}-{to}"));
            anyhow::Ok(format!("{nodes}@{position}{}", skips.collect::<String>()).parse::<Stage>()?)
        });
        stages.collect()
    }

    /// The files of each worker of each rank, and the token.
    fn result(&self) -> Result<Value> {
        let mut first_files = vec![0];
        for count in &self.counts {
            first_files.push(first_files.last().copied().unwrap_or(0) + count);
        }
        let files = first_files.last().copied().unwrap_or(0);
        let selection = match &self.selected {
            None => Selection::all(files),
            Some(ranges) => Selection::of(files, ranges.iter().flat_map(|[from, to]| *from..*to))?,
        };
        let (label, settings) = (selection.label(), self.settings);
        let (selection, stages) = (Arc::new(selection), self.stages()?);
        let order = Order::resumed(first_files.into(), selection, settings, &stages)?;
        let order = Arc::new(order);
        let [workers, batch] = self.workers;
        let files = |rank, number| {
            let worker = Worker { number, workers, batch };
            Ok(Cursor::of_worker(Arc::clone(&order), rank, worker)?.collect::<Vec<u32>>())
        };
        let ranks = (0..settings.world)
            .map(|rank| (0..workers).map(|number| files(rank, number)).collect())
            .collect::<Result<Vec<Vec<_>>, OrderError>>()?;
        let token = ResumeToken {
            dataset: "ID".to_owned(),
            version: "VERSION".to_owned(),
            selection: label,
            seed: settings.seed,
            epoch: settings.epoch,
            group: settings.group,
            stages: order.stages_after(self.read),
        };
        Ok(json!({ "ranks": ranks, "token": token.to_string() }))
    }
}

/// Random cases of all kinds.
fn cases(dice: &Dice, count: usize) -> Vec<Case> {
    let number = |below: usize| dice.below(below) as u32;
    let mut cases = Vec::new();
    for _ in 0..count {
        let counts: Vec<u32> = (0..number(30)).map(|_| number(12)).collect();
        let files: u32 = counts.iter().sum();
        let some = || (0..files).filter(|_| dice.once_in(2)).map(|file| [file, file + 1]).collect();
        let selected = dice.once_in(3).then(some);
        let nodes = 1 + number(4);
        let large = |below: usize| u64::from(number(below));
        let skip = || {
            let from = large(20);
            [from, from + 1 + large(9)]
        };
        let skips = || (0..number(4)).map(|_| skip()).collect::<Vec<_>>();
        let stages = (0..number(3)).map(|_| (1 + number(4), large(9), skips())).collect();
        let settings = OrderSettings {
            seed: if dice.once_in(2) { u64::MAX - u64::from(number(9)) } else { number(9).into() },
            epoch: number(5).into(),
            group: 1 + number(8),
            world: nodes * (1 + number(4)),
            partition: if nodes == 1 { Partition::Global } else { Partition::Local { nodes } },
            tail: if dice.once_in(2) { Tail::Drop } else { Tail::Pad },
        };
        let workers = if dice.once_in(2) { [1 + number(3), 1 + number(5)] } else { [1, 1] };
        cases.push(Case { counts, selected, settings, workers, stages, read: large(9) });
    }
    cases
}

/// The results of `tests/order/order.py` for these cases.
fn order_py<'a>(cases: impl Iterator<Item = &'a Value>) -> Result<Vec<Value>> {
    let script = workspace::root().join("tests/order/order.py");
    let mut python = Command::new("python3");
    python.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = python.spawn().context("run python3, of Debian's package python3")?;
    let mut stdin = python.stdin.take().context("stdin is a pipe")?;
    let lines: Vec<String> = cases.map(|case| format!("{case}\n")).collect();
    let count = lines.len();
    let writer = std::thread::spawn(move || stdin.write_all(lines.concat().as_bytes()));
    let output = python.wait_with_output()?;
    writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
    ensure!(output.status.success(), "order.py failed");
    let printed = String::from_utf8(output.stdout)?;
    ensure!(printed.lines().count() == count, "order.py prints a line for each case");
    Ok(printed.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

#[test]
fn an_independent_implementation_gives_the_same_order() -> Result<()> {
    let cases = cases(&Dice::new(20), 600);
    let lines: Vec<Value> = cases.iter().map(Case::json).collect();
    for (case, theirs) in cases.iter().zip(order_py(lines.iter())?) {
        let ours = case.result()?;
        ensure!(ours == theirs, "{}\n  ours   {ours}\n  theirs {theirs}", case.json());
    }
    Ok(())
}

/// The vectors of `tests/order/vectors.py`, each with a case and its frozen result; a difference
/// means a new order version.
fn vectors() -> Result<Vec<Value>> {
    let path = workspace::root().join("tests/order/vectors.jsonl");
    let lines = std::fs::read_to_string(&path).context("read the vectors")?;
    Ok(lines.lines().map(serde_json::from_str).collect::<Result<_, _>>()?)
}

/// Compares a result with a vector: the token, and the ranks or the CRC-32C of their JSON without
/// spaces.
fn check(vector: &Value, found: &Value) -> Result<()> {
    let crc = Crc32c::of(found["ranks"].to_string().as_bytes());
    let is_same = match vector.get("ranks") {
        Some(ranks) => *ranks == found["ranks"],
        None => vector["crc32c"] == format!("{:08x}", crc.value()),
    };
    ensure!(is_same && vector["token"] == found["token"], "{vector}\n  found {found}");
    Ok(())
}

#[test]
fn the_order_of_version_1_never_changes() -> Result<()> {
    let vectors = vectors()?;
    ensure!(vectors.len() == 104, "{} vectors", vectors.len());
    for vector in &vectors {
        let case = Case::of(&vector["case"])?;
        ensure!(case.json() == vector["case"], "{vector} was read as {}", case.json());
        check(vector, &case.result()?)?;
        let token = vector["token"].as_str().context("a token")?;
        let read: ResumeToken = token.parse()?;
        ensure!(read.to_string() == token, "{token} was read as {read}");
    }
    Ok(())
}

#[test]
fn the_vectors_match_the_document() -> Result<()> {
    let vectors = vectors()?;
    let found = order_py(vectors.iter().map(|vector| &vector["case"]))?;
    vectors.iter().zip(&found).try_for_each(|(vector, found)| check(vector, found))
}
