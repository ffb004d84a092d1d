//! A plain TCP stream between two processes, the reference for a transfer of chunks.
//!
//! Must hold: both ends only write and read. The memory of the receiver is created, mapped and
//! touched like the memory of an agent.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write, stdin, stdout};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ChildStdout;

use anyhow::{Context, Result, ensure};
use clap::Args;
use libdiesel::agent::{Arena, Shape};

use crate::measure::Stopwatch;
use crate::setup::{Process, bytes, processor_seconds, start_own};

/// Limit of one read in bytes, as in an agent.
const READ_MAX: usize = 256 << 10;

/// Request for new memory at the receiver.
const NEW: &str = "new";

/// One end of a stream.
#[derive(Debug, Clone, Args)]
pub struct Stream {
    /// Number of slots of the receiver
    slots: u32,
    /// Length of a slot in bytes
    slot_bytes: u32,
    /// Writes of each slot in one run
    times: u32,
    /// Address of the sender; default: be the sender
    #[arg(long)]
    from: Option<SocketAddr>,
}

/// Body of a process: runs one end of a stream until its input ends.
///
/// # Errors
/// The connection breaks.
pub fn stream(stream: &Stream) -> Result<()> {
    match stream.from {
        None => send(stream),
        Some(from) => receive(stream, from),
    }
}

/// Sends all slots over every connection.
fn send(stream: &Stream) -> Result<()> {
    let source = vec![bytes(stream.slot_bytes as usize); stream.slots as usize];
    let listener = TcpListener::bind("127.0.0.1:0")?;
    writeln!(stdout(), "{}", listener.local_addr()?)?;
    for connection in listener.incoming() {
        let mut connection = connection?;
        connection.set_nodelay(true)?;
        let slots = (0..stream.times).flat_map(|_| &source);
        slots.into_iter().try_for_each(|slot| connection.write_all(slot))?;
    }
    Ok(())
}

/// Receives all slots for each line of the input; the line [`NEW`] requests new memory.
fn receive(stream: &Stream, from: SocketAddr) -> Result<()> {
    let stopwatch = Stopwatch::new();
    let shape = Shape { slot_bytes: stream.slot_bytes, slots: stream.slots };
    let mut arena = None;
    for line in stdin().lines() {
        if line? == NEW {
            // The old memory is freed first.
            drop(arena.take());
        }
        let (kept, seconds) = stopwatch.time(|| {
            let kept = match arena.take() {
                Some(arena) => arena,
                None => Arena::create(shape)?.0,
            };
            let mut connection = TcpStream::connect(from)?;
            let mut slots = (0..stream.times).flat_map(|_| 0..stream.slots);
            slots.try_for_each(|slot| fill(&kept, slot, &mut connection))?;
            Ok(kept)
        })?;
        arena = Some(kept);
        writeln!(stdout(), "{seconds}")?;
    }
    Ok(())
}

fn fill(arena: &Arena, slot: u32, connection: &mut TcpStream) -> Result<()> {
    arena.populate(slot);
    let (mut received, all) = (0, arena.shape().slot_bytes as usize);
    while received < all {
        let most = READ_MAX.min(all - received);
        let read = arena.write_with(slot, received as u32, most, |bytes| connection.read(bytes));
        let read = read.context("a slot is too short")??;
        ensure!(read > 0, "the stream ended too soon");
        received += read;
    }
    Ok(())
}

/// Both ends of a stream.
#[derive(Debug)]
pub(super) struct StreamPair {
    sender: Process,
    receiver: Process,
    durations: BufReader<ChildStdout>,
}

impl StreamPair {
    /// Starts both ends; each run writes each slot `times` times.
    pub(super) fn start(slots: u32, slot_bytes: u32, times: u32) -> Result<Self> {
        let [slots, slot_bytes, times] =
            [slots, slot_bytes, times].map(|number| number.to_string());
        let stream: [&OsStr; 4] =
            ["stream".as_ref(), slots.as_ref(), slot_bytes.as_ref(), times.as_ref()];
        let (sender, mut durations) = start_own(None, stream)?;
        let mut address = String::new();
        durations.read_line(&mut address)?;
        let from = ["--from".as_ref(), address.trim().as_ref()];
        let (receiver, durations) = start_own(None, stream.into_iter().chain(from))?;
        Ok(Self { sender, receiver, durations })
    }

    /// Sends all slots into new memory or into the memory of the last run. Returns the seconds, and
    /// the seconds of processor time of both ends.
    pub(super) fn run(&mut self, is_new: bool) -> Result<(f64, f64)> {
        let processes = [self.sender.0.id(), self.receiver.0.id()];
        let before = processor_seconds(&processes)?;
        let stdin = self.receiver.0.stdin.as_mut().context("take its input")?;
        writeln!(stdin, "{}", if is_new { NEW } else { "" })?;
        let mut line = String::new();
        self.durations.read_line(&mut line)?;
        let seconds = line.trim().parse().context("the stream broke")?;
        Ok((seconds, processor_seconds(&processes)? - before))
    }
}
