//! A plain TCP stream between two processes, the reference for a transfer of chunks.
//!
//! Must hold: both ends only write and read. The memory of the receiver is created, mapped and
//! touched like the memory of an agent.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, Result, ensure};
use dl_node::{Arena, Shape};
use serde::{Deserialize, Serialize};

use crate::measure::time;
use crate::setup::{OwnProcess, answer, bytes, commands, processor_seconds};
use crate::workload::Role;

/// Limit of one read in bytes, as in an agent.
const READ_MAX: usize = 256 << 10;

/// One end of a stream.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::workload) struct Stream {
    /// Number of slots of the receiver.
    slots: u32,
    /// Length of a slot in bytes.
    slot_bytes: u32,
    /// Writes of each slot in one run.
    times: u32,
    /// Address of the sender; `None` for the sender itself.
    from: Option<SocketAddr>,
}

/// Body of a process: runs one end of a stream until its input ends.
pub(in crate::workload) fn stream(stream: &Stream) -> Result<()> {
    match stream.from {
        None => send(stream),
        Some(from) => receive(stream, from),
    }
}

/// Sends all slots over every connection.
fn send(stream: &Stream) -> Result<()> {
    let source = vec![bytes(stream.slot_bytes as usize); stream.slots as usize];
    let listener = TcpListener::bind("127.0.0.1:0")?;
    answer(listener.local_addr()?)?;
    for connection in listener.incoming() {
        let mut connection = connection?;
        connection.set_nodelay(true)?;
        let slots = (0..stream.times).flat_map(|_| &source);
        slots.into_iter().try_for_each(|slot| connection.write_all(slot))?;
    }
    Ok(())
}

/// Receives all slots for each command, which says whether into new memory.
fn receive(stream: &Stream, from: SocketAddr) -> Result<()> {
    let shape = Shape { slot_bytes: stream.slot_bytes, slots: stream.slots };
    let mut arena = None;
    for is_new in commands() {
        if is_new? {
            // The old memory is freed first.
            drop(arena.take());
        }
        let (kept, seconds) = time(|| {
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
        answer(seconds)?;
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
    sender: OwnProcess,
    receiver: OwnProcess,
}

impl StreamPair {
    /// Starts both ends; each run writes each slot `times` times.
    pub(super) fn start(slots: u32, slot_bytes: u32, times: u32) -> Result<Self> {
        let start = |from| {
            OwnProcess::start(None, &Role::Stream(Stream { slots, slot_bytes, times, from }))
        };
        let mut sender = start(None)?;
        let receiver = start(Some(sender.answer()?))?;
        Ok(Self { sender, receiver })
    }

    /// Sends all slots into new memory or into the memory of the last run. Returns the seconds, and
    /// the seconds of processor time of both ends.
    pub(super) fn run(&mut self, is_new: bool) -> Result<(f64, f64)> {
        let processes = [&self.sender, &self.receiver].map(|end| end.process.0.id());
        let before = processor_seconds(&processes)?;
        self.receiver.send(is_new)?;
        Ok((self.receiver.answer()?, processor_seconds(&processes)? - before))
    }
}
