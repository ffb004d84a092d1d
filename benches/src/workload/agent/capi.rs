//! Reads by the library for C, beside memcpy and beside the library for Rust.
//!
//! Must hold: both languages read the same files through the same agent, in turns.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::node::{Node, open, put};
use crate::measure::{Bar, Bench, Side, in_turns, time};
use crate::setup::{Server, Settings, program};

const DATASET: &str = "capi";
const FILES: u32 = 16_384;
const LENGTH: usize = 4 << 10;
const BATCH: usize = 256;
const BATCHES: usize = 60_000 / BATCH;

/// The bar of a single read, as time: this factor of memcpy, and some nanoseconds.
const OF_MEMCPY: f64 = 1.3;
const OF_A_CALL: f64 = 200.0;

pub(in crate::workload) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let folder = settings.on_disk("capi");
    let server = Server::start(&folder.join("data"))?;
    put(&server.address, DATASET, FILES, LENGTH)?;
    let node = Node::start("capi", &server.address, DATASET, &folder, 256 << 20, "oneshot")?;
    node.wait()?;
    let dataset = open(&server.address, DATASET, &folder, Some("capi"), Some(program("dlcmd")?))?;
    let names = ["DL_get_into by path", "memcpy of as many bytes", "DL_read_into", "get_many_into"];
    let mut command = Command::new(compiled(&folder)?);
    command.arg(DATASET).env("DIESEL_SERVER", &server.address).env("DIESEL_TASK", "capi");
    command.env("DIESEL_AGENT", program("dlcmd")?).env("DIESEL_RUNTIME_DIR", folder.join("run"));
    let mut reader = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let ends = "the reader has pipes";
    let mut to = reader.stdin.take().context(ends)?;
    let mut from = BufReader::new(reader.stdout.take().context(ends)?).lines();
    let [single, memcpy, c, rust] = in_turns(settings.runs(), names, |round| {
        writeln!(to, "{round}")?;
        let told = from.next().context("the reader has ended")??;
        let mut figures = told.split_whitespace().map(str::parse::<f64>);
        let mut next = || figures.next().context("three figures are told")?.context("a figure");
        let (single, memcpy, batch) = (next()?, next()?, next()?);
        let (_, seconds) = time(|| in_rust(&dataset, round))?;
        Ok([single, memcpy, batch, seconds * 1e9 / (BATCHES * BATCH) as f64])
    })?;
    drop(to);
    ensure!(reader.wait()?.success(), "the reader failed");
    let allowed = Side {
        what: format!("{OF_MEMCPY} x {} + {OF_A_CALL} ns", memcpy.what),
        samples: memcpy.samples.iter().map(|time| time * OF_MEMCPY + OF_A_CALL).collect(),
    };
    let about = format!("{FILES} files of 4 KiB in the memory of the node, one thread");
    Ok(vec![
        Bench::new("capi, a file", &*about, "ns", [single, allowed], Bar::AtMostTimes(1.0)),
        Bench::new("capi, 256 files", about, "ns", [c, rust], Bar::AtMostTimes(1.1)),
    ])
}

/// Compiles the reader against the library of the profile of this program.
fn compiled(folder: &Path) -> Result<std::path::PathBuf> {
    let prefix = program("dlcmd")?.with_file_name("capi");
    let (source, reader) = ("benches/capi/read.c", folder.join("read"));
    let mut command = Command::new("cc");
    command.args(["-std=gnu99", "-O2", "-o"]).arg(&reader).arg(source);
    command.arg("-I").arg(prefix.join("include")).arg("-L").arg(prefix.join("lib"));
    command.arg("-ldiesel").arg(format!("-Wl,-rpath,{}", prefix.join("lib").display()));
    let ended = command.output().context("start cc")?;
    ensure!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    Ok(reader)
}

/// Reads random batches.
fn in_rust(dataset: &libdiesel::Dataset, seed: u64) -> Result<()> {
    let (mut state, mut buffer) = (seed, vec![0; BATCH * LENGTH]);
    for _ in 0..BATCHES {
        let numbers: Vec<u32> = (0..BATCH)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005);
                state = state.wrapping_add(1_442_695_040_888_963_407);
                ((state >> 33) % u64::from(FILES)) as u32
            })
            .collect();
        dataset.get_many_into(&numbers, &mut buffer)?;
    }
    Ok(())
}
