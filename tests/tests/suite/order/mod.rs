//! The order of an epoch, compared with what `tests/order/order.py` makes of docs/ORDER.md, and
//! with the vectors that no later version may change.

mod faults;
mod memory;
mod read;
mod scene;
mod trained;

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use dl_tests::dice::Dice;
use dl_tests::workspace;
use libdiesel::{Cursor, Order, OrderError, OrderSettings, Partition, Selection, Stage, Tail};
use serde_json::{Value, json};

/// One set of arguments of an order.
#[derive(Debug, Clone)]
struct Case {
    counts: Vec<u32>,
    selected: Option<Vec<u32>>,
    settings: OrderSettings,
    stages: Vec<Stage>,
}

impl Case {
    fn nodes(&self) -> u32 {
        match self.settings.partition {
            Partition::Global => 1,
            Partition::Local { nodes } => nodes,
        }
    }

    fn json(&self) -> Value {
        let stages = self.stages.iter().map(|stage| {
            let skips: Vec<_> = stage.skips().iter().map(|skip| [skip.start, skip.end]).collect();
            json!([stage.nodes(), stage.position(), skips])
        });
        let OrderSettings { seed, epoch, group, world, tail, .. } = self.settings;
        json!({
            "counts": self.counts,
            "selected": self.selected,
            "seed": seed,
            "epoch": epoch,
            "group": group,
            "world": world,
            "nodes": self.nodes(),
            "tail": match tail { Tail::Drop => "drop", Tail::Pad => "pad" },
            "stages": stages.collect::<Vec<_>>(),
        })
    }

    /// What each rank reads; null when there is no such order.
    fn ranks(&self) -> Result<Value> {
        let mut first_files = vec![0];
        for count in &self.counts {
            first_files.push(first_files.last().copied().unwrap_or(0) + count);
        }
        let files = first_files.last().copied().unwrap_or(0);
        let selection = match &self.selected {
            None => Selection::all(files),
            Some(selected) => Selection::of(files, selected.iter().copied())?,
        };
        let order =
            Order::resumed(first_files.into(), Arc::new(selection), self.settings, &self.stages);
        let order = match order {
            Err(OrderError::TooFew { .. }) => return Ok(Value::Null),
            order => Arc::new(order?),
        };
        let ranks = (0..self.settings.world).map(|rank| {
            let cursor = Cursor::new(Arc::clone(&order), rank)?;
            Ok(Value::from(cursor.collect::<Vec<u32>>()))
        });
        Ok(Value::Array(ranks.collect::<Result<_, OrderError>>()?))
    }
}

/// As many cases, of all kinds.
fn cases(dice: &Dice, count: usize) -> Vec<Case> {
    let number = |below: usize| dice.below(below) as u32;
    let mut cases = Vec::new();
    for _ in 0..count {
        let counts: Vec<u32> = (0..number(30)).map(|_| number(12)).collect();
        let files: u32 = counts.iter().sum();
        let selected = (number(3) == 0).then(|| (0..files).filter(|_| number(2) == 0).collect());
        let nodes = 1 + number(4);
        let stages = (0..number(3)).map(|_| {
            let (nodes, position) = (1 + number(4), number(9));
            let mut text = format!("{nodes}@{position}");
            if number(2) == 0 {
                let from = number(20);
                text.push_str(&format!("!{from}-{}", from + 1 + number(9)));
            }
            text.parse::<Stage>()
        });
        let settings = OrderSettings {
            seed: if number(2) == 0 { u64::MAX - u64::from(number(9)) } else { number(9).into() },
            epoch: number(5).into(),
            group: 1 + number(8),
            world: nodes * (1 + number(4)),
            partition: if nodes == 1 { Partition::Global } else { Partition::Local { nodes } },
            tail: if number(2) == 0 { Tail::Drop } else { Tail::Pad },
        };
        let stages = stages.collect::<Result<_, _>>().expect("a stage as it is written");
        cases.push(Case { counts, selected, settings, stages });
    }
    cases
}

#[test]
fn a_program_written_from_the_document_alone_gives_the_same_order() -> Result<()> {
    let cases = cases(&Dice::new(20), 600);
    let script = workspace::root().join("tests/order/order.py");
    let mut python = Command::new("python3");
    python.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut python = python.spawn().context("run python3, of Debian's package python3")?;
    let mut stdin = python.stdin.take().context("it has a stdin")?;
    let lines: Vec<String> = cases.iter().map(|case| format!("{}\n", case.json())).collect();
    let writer = std::thread::spawn(move || stdin.write_all(lines.concat().as_bytes()));
    let output = python.wait_with_output()?;
    writer.join().map_err(|_| anyhow::anyhow!("the writer panicked"))??;
    ensure!(output.status.success(), "order.py failed");
    let printed = String::from_utf8(output.stdout)?;
    ensure!(printed.lines().count() == cases.len(), "one line for each case");
    for (case, line) in cases.iter().zip(printed.lines()) {
        let theirs: Value = serde_json::from_str(line)?;
        let ours = case.ranks()?;
        ensure!(ours == theirs, "{}\n  ours   {ours}\n  theirs {theirs}", case.json());
    }
    Ok(())
}

/// Written once with `DIESEL_WRITE_GOLDEN=1`; a difference means another order version.
#[test]
fn the_order_of_version_1_never_changes() -> Result<()> {
    let path = workspace::root().join("tests/order/vectors.jsonl");
    let mut lines = String::new();
    for case in cases(&Dice::new(1), 40) {
        let line = json!({ "case": case.json(), "ranks": case.ranks()? });
        lines.push_str(&format!("{line}\n"));
    }
    if std::env::var_os("DIESEL_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, &lines)?;
    }
    let vectors = std::fs::read_to_string(&path).context("read the vectors")?;
    ensure!(vectors == lines, "{} has another order", path.display());
    Ok(())
}
