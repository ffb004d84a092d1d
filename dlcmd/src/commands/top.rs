//! `dlcmd top`: what servers and training jobs do now, again and again.
//!
//! Must hold: a server that can't be asked is no end while other servers answer. Names from servers
//! change nothing on the terminal.

use std::fmt::Write as _;
use std::io::{IsTerminal, stdout};
use std::thread;
use std::time::Duration;

use clap::Args;
use dl_runtime::units;
use indicatif::BinaryBytes;
use libdiesel::admin::{JobStatus, MemberStatus, ServerStatus, StatusReply, StatusRequest};

use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::{counted, escaped};

/// Interval between two looks for a stop.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Clears the terminal.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// Show what servers and training jobs do, every two seconds
///
/// A job that waits for its data stands out by its waits: the part of the time of its workers.
/// Counts are up to ten seconds old. With --task, the nodes of the job are shown, the one that waits
/// most first.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  dlcmd top
  dlcmd top --task resnet-7
  dlcmd top --json --count 1")]
pub(crate) struct Arguments {
    /// Stop after this number of tables
    #[arg(long, value_name = "NUMBER")]
    count: Option<u64>,

    /// Time between two tables, as 2s or 1m
    #[arg(long, value_name = "TIME", default_value = "2s")]
    every: String,
}

/// Shows the status until a stop is requested.
pub(crate) fn run(
    arguments: Arguments,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let every = units::duration(&arguments.every).filter(|every| !every.is_zero());
    let every = every.ok_or_else(|| {
        let text = escaped(arguments.every.as_bytes());
        Failure::usage(format!("top: --every {text} is no time such as 2s or 1m"))
    })?;
    let client = context.client()?;
    let task = context.task.as_ref().map(|task| task.name.to_string());
    let mut left = arguments.count;
    while left != Some(0) {
        let mut status = client.status(&StatusRequest::default())?;
        if let Some(task) = &task {
            status.jobs.retain(|job| job.task == *task);
            let ids: Vec<_> = status.jobs.iter().map(|job| job.id.clone()).collect();
            for job in ids {
                let of_job = client.status(&StatusRequest { job, ..StatusRequest::default() });
                // The job may have been forgotten meanwhile.
                status.members.extend(of_job.map(|of_job| of_job.members).unwrap_or_default());
            }
        }
        if out.is_json() {
            out.json("status", &status)?;
        } else {
            let clear = if stdout().is_terminal() { CLEAR } else { "" };
            out.line(format_args!("{clear}{}", table(&status)))?;
        }
        out.flush()?;
        left = left.map(|left| left - 1);
        let mut waited = Duration::ZERO;
        while left != Some(0) && waited < every {
            if context.shutdown.is_requested() {
                return Ok(Exit::Done);
            }
            thread::sleep(POLL_INTERVAL);
            waited += POLL_INTERVAL;
        }
    }
    Ok(Exit::Done)
}

fn table(status: &StatusReply) -> String {
    let mut rows =
        vec![row(["SERVER", "SINCE", "REQUESTS/S", "OUT/S", "IN/S", "MEMORY", "HEALTH"])];
    rows.extend(status.servers.iter().map(|server| server_row(status.now, server)));
    let mut text = aligned(&rows);
    let living = status.jobs.iter().filter(|job| job.is_living).count() as u64;
    let _ = writeln!(text, "\n{}", counted(living, "job"));
    if !status.jobs.is_empty() {
        let mut rows = vec![row([
            "JOB",
            "DATASET",
            "NODES",
            "WORKERS",
            "FILES/S",
            "WAITS",
            "IN TIME",
            "SERVERS/S",
            "EPOCH",
            "HEARD",
        ])];
        rows.extend(status.jobs.iter().map(|job| job_row(status.now, job)));
        text += &aligned(&rows);
    }
    if !status.members.is_empty() {
        text += "\n";
        let mut rows = vec![row([
            "NODE",
            "WORKERS",
            "FILES/S",
            "WAITS",
            "IN TIME",
            "PEERS/S",
            "SERVERS/S",
            "MEMORY",
            "HEARD",
        ])];
        rows.extend(status.members.iter().map(|member| member_row(status.now, member)));
        text += &aligned(&rows);
    }
    text
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).into()
}

fn name(text: &str) -> String {
    escaped(text.as_bytes()).to_string()
}

fn server_row(now: u64, server: &ServerStatus) -> Vec<String> {
    let of = server.counters.clone().unwrap_or_default();
    let health = if server.problem.is_empty() { "ok" } else { &server.problem };
    vec![
        name(&server.address),
        ago(now, server.started),
        format!("{:.1}", server.requests_per_second),
        bytes(server.sent_per_second),
        bytes(server.received_per_second),
        part(of.read_memory_used, of.read_memory),
        name(health),
    ]
}

fn job_row(now: u64, job: &JobStatus) -> Vec<String> {
    let (of, rates) = (job.counters.unwrap_or_default(), job.rates.unwrap_or_default());
    let epoch = of.epoch.map(|epoch| match of.epoch_files {
        0 => epoch.to_string(),
        files => format!("{epoch} ({})", part(of.epoch_position, files)),
    });
    let user = if job.user.is_empty() { String::new() } else { format!(" ({})", name(&job.user)) };
    vec![
        format!("{}{user}", name(&job.task)),
        name(&job.dataset),
        job.members.to_string(),
        job.workers.to_string(),
        format!("{:.0}", rates.files),
        percent(rates.waiting),
        in_time(of.hits, of.misses, of.fallbacks),
        bytes(rates.bytes_from_servers),
        epoch.unwrap_or_else(|| "-".to_owned()),
        heard(now, job.heard, job.is_living),
    ]
}

fn member_row(now: u64, member: &MemberStatus) -> Vec<String> {
    let (of, rates) = (member.counters.unwrap_or_default(), member.rates.unwrap_or_default());
    let address = if member.address.is_empty() { &member.id } else { &member.address };
    vec![
        name(address),
        of.workers.to_string(),
        format!("{:.0}", rates.files),
        percent(rates.waiting),
        in_time(of.hits, of.misses, of.fallbacks),
        bytes(rates.bytes_from_peers),
        bytes(rates.bytes_from_servers),
        part(of.memory_used, member.memory),
        heard(now, member.heard, member.is_living),
    ]
}

/// The part of the files that workers read from memory without a wait.
fn in_time(hits: u64, misses: u64, fallbacks: u64) -> String {
    part(hits.saturating_sub(misses), hits.saturating_add(fallbacks))
}

fn percent(value: f64) -> String {
    format!("{:.1} %", 100.0 * value)
}

fn part(of: u64, all: u64) -> String {
    if all == 0 { "-".to_owned() } else { percent(of as f64 / all as f64) }
}

fn bytes(value: f64) -> String {
    BinaryBytes(value as u64).to_string()
}

/// The time since a moment, both in microseconds.
fn ago(now: u64, then: u64) -> String {
    let seconds = now.saturating_sub(then) / 1_000_000;
    match seconds {
        0..100 => format!("{seconds} s"),
        100..6_000 => format!("{} min", seconds / 60),
        6_000..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

fn heard(now: u64, then: u64, is_living: bool) -> String {
    let ago = ago(now, then);
    if is_living { ago } else { format!("ended {ago} ago") }
}

/// Rows with columns below each other, the first and the last to the left.
fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<_> = (0..columns).map(|column| width(column).unwrap_or_default()).collect();
    let mut text = String::new();
    for row in rows {
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(text, "{cell:<width$}"),
                _ if column + 1 == columns => write!(text, "  {cell}"),
                _ => write!(text, "  {cell:>width$}"),
            };
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use libdiesel::admin::{RateStatus, TaskCounters};

    use super::*;

    #[test]
    fn a_table_names_servers_and_jobs_with_their_waits() {
        let counters = TaskCounters {
            hits: 90,
            misses: 40,
            fallbacks: 10,
            epoch: Some(3),
            epoch_files: 200,
            epoch_position: 50,
            ..TaskCounters::default()
        };
        let rates = RateStatus { files: 1234.4, waiting: 0.125, ..RateStatus::default() };
        let job = JobStatus {
            task: "resnet".to_owned(),
            dataset: "pets\x1b[2J".to_owned(),
            is_living: true,
            heard: 5_000_000,
            counters: Some(counters),
            rates: Some(rates),
            ..JobStatus::default()
        };
        let server = ServerStatus {
            address: "a:1".to_owned(),
            problem: "the chunk store is silent".to_owned(),
            started: 7_000_000,
            ..ServerStatus::default()
        };
        let status = StatusReply {
            now: 307_000_000,
            servers: vec![server],
            jobs: vec![job],
            ..StatusReply::default()
        };
        let text = table(&status);
        let lines: Vec<_> = text.lines().collect();
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(1), "a:1 5 min 0.0 0 B 0 B - the chunk store is silent");
        assert_eq!(words(3), "1 job");
        let job = "resnet pets\\x1B[2J 0 0 1234 12.5 % 50.0 % 0 B 3 (25.0 %) 5 min";
        assert_eq!(words(5), job, "{text}");
    }
}
