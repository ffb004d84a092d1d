//! `dlcmd why`: the waiting reads of a training job, and the agent's work for each.
//!
//! Must hold: one line for each wait; an unresponsive agent is an error with its process id.

use std::fmt;

use clap::Args;
use dl_agent::{Doing, PeerStatus, PeerWait, Status, Wait};
use serde::Serialize;

use super::agent;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::{counted, sized};

/// Show the waiting reads of a training job on this machine, for how long, and why
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dlcmd why --task resnet-7
  dlcmd why --task resnet-7 --json")]
pub(crate) struct Arguments {}

/// The line of `--json`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    wait: &'a Wait,
    /// Processes that pin slots, for a wait for a slot.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pinned_by: Vec<Pins>,
}

/// Number of slots pinned by a process.
#[derive(Debug, Serialize)]
struct Pins {
    pid: u32,
    slots: u32,
}

/// Prints the waits.
pub(crate) fn run(_: Arguments, context: &Context, out: &mut Output<'_>) -> Result<Exit, Failure> {
    let status = agent::status(context)?;
    for wait in &status.waits {
        let pinned_by = pins(&status, &wait.doing);
        if out.is_json() {
            out.json("wait", &Line { wait, pinned_by })?;
        } else {
            let Wait { pid, dataset, chunk, seconds, doing } = wait;
            let doing = WaitText { doing, pinned_by: &pinned_by, links: &status.peers };
            out.line(format_args!(
                "Process {pid} has waited {seconds:.1} s for chunk {chunk} of dl://{dataset}: {doing}"
            ))?;
        }
    }
    for wait in &status.peer_waits {
        if out.is_json() {
            out.json("peer-wait", wait)?;
        } else {
            let PeerWait { peer, dataset, chunk, seconds, doing } = wait;
            let doing = WaitText { doing, pinned_by: &[], links: &status.peers };
            out.line(format_args!(
                "The agent at {peer} has waited {seconds:.1} s for chunk {chunk} of dl://{dataset}: {doing}"
            ))?;
        }
    }
    if status.waits.is_empty() && status.peer_waits.is_empty() && !out.is_json() {
        out.line(format_args!("No read waits."))?;
    }
    Ok(Exit::Done)
}

fn pins(status: &Status, doing: &Doing) -> Vec<Pins> {
    let workers = status.workers.iter().filter(|_| *doing == Doing::NoSlot);
    let pins = workers.map(|worker| Pins { pid: worker.pid, slots: worker.pins });
    pins.filter(|pins| pins.slots > 0).collect()
}

/// The state of a wait, in words.
struct WaitText<'a> {
    doing: &'a Doing,
    pinned_by: &'a [Pins],
    links: &'a [PeerStatus],
}

impl fmt::Display for WaitText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.doing {
            Doing::Fetching { source, bytes, length, fetch_seconds } => {
                let (bytes, length) = (sized(*bytes), sized(*length));
                write!(f, "the agent has fetched {bytes} of {length} from ")?;
                match source {
                    None => write!(f, "the servers")?,
                    Some(folder) if folder.starts_with('/') => write!(f, "the disk {folder}")?,
                    Some(peer) => {
                        write!(f, "the agent at {peer}")?;
                        let link = self.links.iter().find(|link| link.address == *peer);
                        if let Some(PeerStatus { state, seconds, milliseconds, .. }) = link {
                            write!(f, " (link {state} for {seconds:.0} s")?;
                            if let Some(usual) = milliseconds {
                                write!(f, ", a chunk usually takes {usual:.1} ms")?;
                            }
                            write!(f, ")")?;
                        }
                    }
                }
                write!(f, " in {fetch_seconds:.1} s.")
            }
            Doing::NoSlot => {
                write!(f, "the agent has no free slot for it.")?;
                for Pins { pid, slots } in self.pinned_by {
                    write!(f, " Process {pid} pins {}.", counted((*slots).into(), "slot"))?;
                }
                write!(f, " The other slots are being filled or needed soon.")
            }
            Doing::Answered => write!(f, "the chunk is in memory, and the answer on its way."),
            Doing::Nothing => write!(f, "the agent has no fetch of it."),
            Doing::FromServers => write!(
                f,
                "the process itself reads from the servers, as the agent could not give it in time."
            ),
        }
    }
}
