//! `dl-bench`: runs the chosen workloads and prints their figures.
//!
//! Must hold: a missed bar ends the program with status 1 only with `--check`. A missing or failed
//! program always ends it with status 1.

#![forbid(unsafe_code)]

use std::io::{Write, stdout};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use dl_benches::{Machine, Options, Settings, Workload, play, print, print_json};

/// Measure the system beside a known reference on this machine
///
/// The program needs tar, ls, memcached, Redis with its tools, and dlserver and dlcmd in its own
/// folder: run `make bench` to provide them.
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
    /// A process of a workload
    #[command(hide = true)]
    Play {
        /// The role of the process
        role: String,
    },
}

fn main() -> ExitCode {
    let Cli { options, command } = Cli::parse();
    let ended = match command {
        Command::Play { role } => play(&role).map(|()| true),
        Command::All => run(&options, Workload::ALL),
        Command::One(workload) => run(&options, &[workload]),
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            // A closed stderr leaves no place for the message.
            let _ = writeln!(std::io::stderr(), "dl-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the workloads; false for a missed bar with `--check`.
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
