//! Fetching files into the agent's memory, and onto its local disks, ahead of reads.
//!
//! Must hold: a wait ends when no more chunks arrive, even if not all chunks fit.

use std::thread;
use std::time::Duration;

use clap::Args;
use dl_agent::{DatasetStatus, Status};
use libdiesel::{Client, ConnectOptions, Presence, Snapshot, TaskOptions};
use serde::Serialize;

use super::show;
use crate::address::Address;
use crate::commands::of_one_dataset;
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::counted;

/// Interval between two checks of the chunks in memory.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long fetches may make no progress before the wait ends.
const STILL_MAX: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub(super) struct Prefetch {
    /// The dataset, or folders and files of a dataset, in the order to fetch
    #[arg(value_name = "dl://DS[/PATH]", required = true)]
    addresses: Vec<Address>,

    /// Return when everything is in memory or on local disks, or no more fits
    #[arg(long)]
    wait: bool,
}

/// The line of `--json`.
#[derive(Debug, Serialize)]
struct Line {
    dataset: String,
    chunks: u64,
    chunks_present: u64,
    /// Whether memory and local disks hold all chunks, as far as known.
    held: bool,
    stuck: bool,
}

/// Sends the request to the agent, and waits with `--wait`.
pub(super) fn run(
    arguments: Prefetch,
    context: &Context,
    task: &TaskOptions,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let Prefetch { addresses, wait } = arguments;
    let first = of_one_dataset("agent prefetch", &addresses, "; prefetch")?;
    // An agent started only for this command would not live long.
    let failed = show::status(context, task)?.failed_fetches;
    let options = ConnectOptions { task: Some(task.clone()), ..context.options.clone() };
    let dataset = Client::connect(options)?.dataset(&first.dataset)?;
    let none = || Failure::failed(format!("agent prefetch {first}: its agent does not serve it"));
    let snapshot = dataset.snapshot().ok_or_else(none)?;
    for address in &addresses {
        dataset.prefetch(&select(snapshot, std::slice::from_ref(address))?)?;
    }
    let all = select(snapshot, &addresses)?;
    let (mut presence, mut is_stuck) = (dataset.presence(&all)?, false);
    let mut still = Duration::ZERO;
    while wait && presence.present < presence.chunks && !context.shutdown.is_requested() {
        thread::sleep(POLL_INTERVAL);
        let (before, status) = (presence, show::status(context, task)?);
        presence = dataset.presence(&all)?;
        is_stuck = status.prefetch_stuck;
        if status.prefetch_waiting > 0 && !is_stuck {
            continue;
        }
        still = if presence == before { still + POLL_INTERVAL } else { Duration::ZERO };
        if status.fetches + status.disk_writes == 0 || still >= STILL_MAX {
            presence = dataset.presence(&all)?;
            break;
        }
    }
    let Presence { chunks, present } = presence;
    let is_held = present == chunks
        || !is_stuck && holds(&show::status(context, task)?, first, chunks, failed);
    if out.is_json() {
        let dataset = first.dataset.to_string();
        let (chunks_present, held, stuck) = (present, is_held, is_stuck);
        let line = Line { dataset, chunks, chunks_present, held, stuck };
        out.json("prefetch", &line)?;
    } else {
        let left = match (wait, is_stuck) {
            _ if present == chunks => "",
            _ if is_held => ", the others on disk",
            (false, _) => ": the agent fetches the others as far as memory goes",
            (true, true) => ": no more fit",
            (true, false) => ": the others could not be fetched, or have left memory",
        };
        let chunks = counted(chunks, "chunk");
        out.line(format_args!("{present} of {chunks} in memory{left}"))?;
    }
    Ok(if wait && !is_held { Exit::Partly } else { Exit::Done })
}

/// Whether the agent has done all prefetches of a dataset, and holds at least `chunks` of its chunks.
/// `failed`: its failed fetches before.
fn holds(status: &Status, address: &Address, chunks: u64, failed: u64) -> bool {
    let of = |one: &&DatasetStatus| one.name == address.dataset.to_string();
    let held = status.datasets.iter().find(of).map_or(0, |dataset| dataset.chunks_held);
    let is_done = status.prefetch_waiting == 0 && status.failed_fetches == failed;
    !status.tiers.is_empty() && is_done && held >= chunks
}

fn select(snapshot: &Snapshot, addresses: &[Address]) -> Result<libdiesel::Selection, Failure> {
    let folders: Vec<_> = addresses.iter().map(Address::folder).collect();
    Ok(snapshot.select(&folders)?)
}
