//! The state of an agent, as text and as JSON.
//!
//! Must hold: `--json` has every field.

use dl_agent::{
    DatasetStatus, EpochStatus, OrderStatus, Pages, PeerStatus, Status, TierStatus, WorkerStatus,
};
use libdiesel::{TaskOptions, agent};

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::{counted, escaped, sized};

/// Requests the agent's state.
pub(super) fn status(context: &Context, task: &TaskOptions) -> Result<Status, Failure> {
    let text = agent::status(&context.options, task)?;
    serde_json::from_str(&text)
        .map_err(|why| Failure::local("understand the agent: is it of another version?", why))
}

/// Prints the agent's state.
pub(super) fn run(
    context: &Context,
    task: &TaskOptions,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let status = status(context, task)?;
    if out.is_json() {
        out.json("agent", &status)?;
        return Ok(Exit::Done);
    }
    status.notes.iter().try_for_each(|note| out.line(format_args!("note: {note}")))?;
    print_memory(&status, out)?;
    status.tiers.iter().try_for_each(|tier| out.line(format_args!("{}", line_of_tier(tier))))?;
    print_reads(&status, out)?;
    print_members(&status, out)?;
    Ok(Exit::Done)
}

fn print_memory(status: &Status, out: &mut Output<'_>) -> Result<(), Failure> {
    for dataset in &status.datasets {
        let DatasetStatus { name, version, chunks, chunks_present, chunks_owned, .. } = dataset;
        let chunks = counted(*chunks, "chunk");
        out.line(format_args!(
            "dl://{name} at version {version}: {chunks_present} of {chunks} in memory, \
             {chunks_owned} belong to this agent"
        ))?;
        dataset.notes.iter().try_for_each(|note| out.line(format_args!("note: {note}")))?;
    }
    let evicted = match status.eviction.as_str() {
        "keep" => String::new(),
        name => format!(", eviction {name}: {} so far", counted(status.chunks_evicted, "chunk")),
    };
    out.line(format_args!("policy {}{evicted}, process {}", status.policy, status.pid))?;
    if let Some(log) = &status.log {
        out.line(format_args!("log {}", escaped(log.as_bytes())))?;
    }
    out.line(format_args!(
        "memory {} of {}: {} of {}, {} kept for later epochs",
        sized(status.memory_used),
        sized(status.memory_bytes),
        status.chunks_present,
        counted(status.chunks, "chunk"),
        status.chunks_kept
    ))?;
    let Pages { mapped_bytes, huge_bytes, setting } = &status.pages;
    let setting = if setting.is_empty() { "unknown" } else { setting };
    out.line(format_args!(
        "pages of it {}, {} of them huge (shmem_enabled is {setting})",
        sized(*mapped_bytes),
        sized(*huge_bytes)
    ))
}

fn print_reads(status: &Status, out: &mut Output<'_>) -> Result<(), Failure> {
    out.line(format_args!(
        "read from memory: {} ({}), {} of them waited for",
        counted(status.hits, "file"),
        sized(status.hit_bytes),
        status.misses.saturating_sub(status.fallbacks)
    ))?;
    out.line(format_args!(
        "read from the servers instead: {} ({})",
        counted(status.fallbacks, "file"),
        sized(status.fallback_bytes)
    ))?;
    out.line(format_args!(
        "fetched from the servers: {} ({}), {} failed, {} under way",
        counted(status.chunks_from_servers, "chunk"),
        sized(status.bytes_from_servers),
        status.failed_fetches,
        status.fetches
    ))?;
    if !status.tiers.is_empty() {
        out.line(format_args!(
            "read from local disks: {} ({}) and {} alone",
            counted(status.chunks_from_disk, "chunk"),
            sized(status.bytes_from_disk),
            counted(status.files_from_disk, "file")
        ))?;
    }
    out.line(format_args!(
        "fetched from other agents: {} ({}) and {} alone; given to them: {} and {} alone",
        counted(status.chunks_from_peers, "chunk"),
        sized(status.bytes_from_peers),
        counted(status.files_from_peers, "file"),
        counted(status.chunks_to_peers, "chunk"),
        counted(status.files_to_peers, "file")
    ))
}

/// The other agents, the orders and the workers.
fn print_members(status: &Status, out: &mut Output<'_>) -> Result<(), Failure> {
    if !status.peer_address.is_empty() {
        out.line(format_args!("other agents reach this one at {}", status.peer_address))?;
    }
    status.peers.iter().try_for_each(|peer| out.line(format_args!("{}", line_of_peer(peer))))?;
    if status.peers_left_out > 0 {
        out.line(format_args!("and {}", counted(status.peers_left_out, "other agent")))?;
    }
    if status.prefetch_waiting > 0 {
        let room = if status.prefetch_stuck { ": no more fit now" } else { "" };
        let chunks = counted(status.prefetch_waiting, "chunk");
        out.line(format_args!("prefetch: {chunks} to look at{room}"))?;
    }
    status.epochs.iter().try_for_each(|one| out.line(format_args!("{}", line_of_epoch(one))))?;
    status.orders.iter().try_for_each(|order| out.line(format_args!("{}", line_of(order))))?;
    status.workers.iter().try_for_each(|worker| out.line(format_args!("{}", line(worker))))?;
    if status.workers_left_out > 0 {
        out.line(format_args!("and {}", counted(status.workers_left_out, "other worker")))?;
    }
    Ok(())
}

fn line_of(order: &OrderStatus) -> String {
    let OrderStatus { dataset, rank, readers, chunks, chunks_present, .. } = order;
    let OrderStatus { group_chunks, group_chunks_max, .. } = order;
    let readers = counted(*readers, "worker");
    let window = if group_chunks > group_chunks_max {
        format!(
            "a group of {group_chunks} chunks does not fit into memory, one of {group_chunks_max} \
             would: nothing is fetched ahead"
        )
    } else {
        format!("{chunks_present} of {} needed soon in memory", counted(*chunks, "chunk"))
    };
    format!("rank {rank} of dl://{dataset}, {readers}: {window}")
}

fn line_of_epoch(epoch: &EpochStatus) -> String {
    let EpochStatus { epoch, chunks, from_disk, from_peers, from_servers } = epoch;
    let fetched = from_disk + from_peers + from_servers;
    // Chunks count as read with the whole of their group, and as fetched long before.
    let here = match chunks.checked_sub(fetched) {
        Some(here) => format!(", {here} were in memory here"),
        None => String::new(),
    };
    format!(
        "epoch {epoch}: {} read to their end{here}; fetched for it: {from_disk} from local disks, \
         {from_peers} from other agents, {from_servers} from the servers",
        counted(*chunks, "chunk")
    )
}

fn line_of_tier(tier: &TierStatus) -> String {
    let TierStatus { path, quota_bytes, used_bytes, state, reason, .. } = tier;
    let used = used_bytes.map_or("unknown".to_owned(), |used| sized(used).to_string());
    let reason = reason.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    let usual =
        tier.read_micros.map(|micros| format!(", usually in {:.1} ms", micros as f64 / 1e3));
    let mut line = format!(
        "disk {}, {state}{reason}: {used} of {}; read {} ({}){}, wrote {} ({})",
        escaped(path.as_bytes()),
        sized(*quota_bytes),
        counted(tier.chunks_read, "chunk"),
        sized(tier.bytes_read),
        usual.unwrap_or_default(),
        counted(tier.chunks_written, "chunk"),
        sized(tier.bytes_written)
    );
    for (count, what) in [(tier.damaged, "damaged"), (tier.failed, "calls failed")] {
        if count > 0 {
            line.push_str(&format!(", {count} {what}"));
        }
    }
    if tier.is_buffered {
        line.push_str(", through the page cache");
    }
    if let Some(kind) = &tier.network {
        line.push_str(&format!(", on {kind}, which is no local disk"));
    }
    line
}

fn line_of_peer(peer: &PeerStatus) -> String {
    let PeerStatus { address, dataset, state, seconds, reason, milliseconds, .. } = peer;
    let reason = reason.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    let usual = milliseconds.map(|usual| format!(", usually in {usual:.1} ms"));
    let (chunks, bytes) = (counted(peer.chunks, "chunk"), sized(peer.bytes));
    let mut line = format!(
        "agent at {address}, {state} for {seconds:.0} s{reason}: owns {} of dl://{dataset}, gave \
         {chunks} ({bytes}){}",
        counted(peer.chunks_owned, "chunk"),
        usual.unwrap_or_default()
    );
    for (count, what) in [(peer.slow, "too slow"), (peer.damaged, "damaged")] {
        if count > 0 {
            line.push_str(&format!(", {count} {what}"));
        }
    }
    line
}

fn line(worker: &WorkerStatus) -> String {
    let WorkerStatus { pid, pins, epoch, position, awaits, awaits_seconds } = worker;
    let at = match (epoch, position) {
        (Some(epoch), Some(position)) => format!(", file {position} of epoch {epoch}"),
        _ => String::new(),
    };
    let awaits = awaits.zip(*awaits_seconds);
    let awaits =
        awaits.map(|(chunk, seconds)| format!(", has waited {seconds:.1} s for chunk {chunk}"));
    let awaits = awaits.unwrap_or_default();
    format!("worker {pid}: {pins} pinned{at}{awaits}")
}
