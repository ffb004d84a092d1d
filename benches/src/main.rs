//! `dl-bench`: runs the workloads that are asked for and prints what came out.
//!
//! Must hold: a bar that is missed ends the program with 1 only where `--check` asks for it; a
//! program that is missing or fails always does.

#![forbid(unsafe_code)]

use std::io::{Write, stdout};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use dl_benches::{
    AgentReader, Machine, Options, PeersReader, Reader, Settings, Stream, Worker, Workload, print,
    print_json, read, read_cached, stream, trace, work,
};

/// Measure the system beside something known, on this machine
///
/// Needs tar, ls, memcached and Redis with its tools, and dlserver and dlcmd beside this program:
/// `make bench` sees to all of it.
#[derive(Debug, Parser)]
#[command(name = "dl-bench", version)]
struct Cli {
    #[command(flatten)]
    options: Options,

    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Every workload
    All,
    #[command(flatten)]
    One(Workload),
    /// One process of put-memory, started by it
    #[command(hide = true)]
    Worker(Worker),
    /// One process of snapshot, started by it
    #[command(hide = true)]
    Reader(Reader),
    /// One process of agent, started by it
    #[command(hide = true)]
    AgentReader(AgentReader),
    /// One end of a stream beside which peers is measured, started by it
    #[command(hide = true)]
    Stream(Stream),
    /// One process of peers, started by it
    #[command(hide = true)]
    PeersReader(PeersReader),
}

fn main() -> ExitCode {
    let Cli { options, command } = Cli::parse();
    let ended = match command {
        Command::Worker(worker) => work(&worker).map(|()| true),
        Command::Reader(reader) => read(&reader).map(|()| true),
        Command::AgentReader(reader) => read_cached(&reader).map(|()| true),
        Command::Stream(one) => stream(&one).map(|()| true),
        Command::PeersReader(reader) => trace(&reader).map(|()| true),
        Command::All => run(&options, Workload::ALL),
        Command::One(workload) => run(&options, &[workload]),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // Nobody to tell when stderr is gone.
            let _ = writeln!(std::io::stderr(), "dl-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether it is fine to exit with success.
fn run(options: &Options, workloads: &[Workload]) -> Result<bool> {
    let settings = Settings::new(options)?;
    let machine = Machine::look(settings.folder())?;
    let mut out = stdout();
    if !options.json {
        writeln!(out, "{machine}")?;
    }
    let mut is_met = true;
    for workload in workloads {
        for bench in workload.run(&settings)? {
            is_met &= bench.is_met();
            if options.json {
                print_json(&mut out, &machine, &bench)?;
            } else {
                print(&mut out, &bench)?;
            }
        }
    }
    Ok(is_met || !options.check)
}
