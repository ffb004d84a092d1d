//! dlcmd: the command line of DIESEL.
//!
//! Must hold: stdout carries only the result. Every kind of end has its exit code. Arguments,
//! environment and terminal are read once, here, and passed down as values.

#![forbid(unsafe_code)]

mod address;
mod args;
mod causes;
mod commands;
mod context;
mod exit;
mod interrupt;
mod json;
mod local;
mod output;
mod progress;
#[cfg(test)]
mod testing;
mod text;
mod time;
mod waiting;

use std::env;
use std::ffi::OsString;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::num::{IntErrorKind, NonZeroUsize, ParseIntError};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::thread;

use clap::{CommandFactory, Parser};
use dl_runtime::{Clock, SystemClock};
use libdiesel::{ConnectOptions, OnNote, SnapshotCache};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::args::{Cli, Command};
use crate::context::{Context, Environment};
use crate::exit::{Exit, Failure};
use crate::output::{Notes, Output};

/// Buffer size for results.
const STDOUT_BUFFER: usize = 256 << 10;

/// Runs the program on the arguments, environment and streams of this process.
pub fn main() -> ExitCode {
    // Another library of the process may have installed a provider already, which is fine.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let cli = match Cli::try_parse_from(arguments()) {
        Ok(cli) => cli,
        Err(said) if said.use_stderr() => {
            // Printing fails only if stderr is closed.
            let _ = safe(said).print();
            return Exit::Usage.into();
        }
        Err(help) => return print_help(&help).into(),
    };
    raise_open_files();
    let mut stdout = BufWriter::with_capacity(STDOUT_BUFFER, io::stdout().lock());
    let mut out = Output::new(&mut stdout, cli.global.json);
    let is_shown = io::stderr().is_terminal() && !cli.global.quiet && !cli.global.json;
    let takes_long = matches!(
        cli.command,
        Command::Put(_)
            | Command::Get(_)
            | Command::Purge(_)
            | Command::Recover(_)
            | Command::Verify(_)
    );
    let bar = progress::bar(is_shown && takes_long);
    let notes = Arc::new(Notes::new(Box::new(io::stderr()), cli.global.quiet, bar));
    let ended = run(cli, Arc::clone(&notes), &mut out);
    // Text printed before a failure is still a result.
    let flushed = out.flush();
    notes.bar().finish_and_clear();
    let exit = match (ended, flushed) {
        // A reader that stopped reading stdout still gets the exit code.
        (Ok(exit), Ok(()) | Err(Failure::StdoutClosed)) => exit,
        (Err(Failure::StdoutClosed), _) => Exit::Done,
        (Err(failure @ Failure::Because { exit, .. }), _)
        | (Ok(_), Err(failure @ Failure::Because { exit, .. })) => {
            notes.error(&failure);
            exit
        }
    };
    exit.into()
}

/// The arguments of this process, also where mount(8) runs it.
fn arguments() -> Vec<OsString> {
    let given: Vec<OsString> = env::args_os().collect();
    commands::mount::arguments_of_helper(&given).unwrap_or(given)
}

/// The parser's error, with all names escaped for a terminal.
fn safe(error: clap::Error) -> clap::Error {
    let is_safe = |text: &str| !text.contains(char::is_control);
    let arguments = arguments().into_iter().map(|argument| {
        match argument.to_str().filter(|text| is_safe(text)) {
            Some(text) => text.to_owned(),
            None => text::escaped(argument.as_bytes()).to_string(),
        }
    });
    Cli::try_parse_from(arguments).err().filter(clap::Error::use_stderr).unwrap_or(error)
}

/// Prints help or version, which are results too.
fn print_help(help: &clap::Error) -> Exit {
    match help.print().and_then(|()| io::stdout().flush()).map_err(output::closed) {
        Ok(()) | Err(Failure::StdoutClosed) => Exit::Done,
        Err(failure @ Failure::Because { exit, .. }) => {
            Notes::new(Box::new(io::stderr()), false, progress::bar(false)).error(&failure);
            exit
        }
    }
}

fn run(mut cli: Cli, notes: Arc<Notes>, out: &mut Output<'_>) -> Result<Exit, Failure> {
    let goes_on =
        matches!(cli.command, Command::Put(_) | Command::Get(_)).then(|| Arc::clone(&notes));
    let announce = move |signal: &str| {
        if let Some(notes) = &goes_on {
            notes.note(format_args!("stopped by {signal}; the same command goes on from here"));
        }
    };
    let is_upgradable = matches!(&cli.command, Command::Mount(mount) if mount.is_upgradable());
    let interrupt = interrupt::watch(announce, !is_upgradable)
        .map_err(|why| Failure::local("prepare to be stopped by a signal", why))?;
    let shutdown = interrupt.shutdown.clone();
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    if let Command::Mount(arguments) = &cli.command {
        arguments.complete(&mut cli.global)?;
    }
    let task = cli.global.task()?;
    let task_notes = Arc::clone(&notes);
    let on_note: OnNote = Arc::new(move |note| task_notes.note(note));
    let options = ConnectOptions {
        on_note: Some(on_note),
        on_retry: Some(waiting::notes_to(&notes, &clock)),
        task: task.clone().filter(|_| cli.command.reads_of_task()),
        ..cli.global.connect_options(Environment::of_process()?)?
    };
    let snapshot = cli.global.snapshot;
    if snapshot.is_some() && !cli.command.takes_snapshot() {
        let why = "--snapshot is for get, cat, ls, stat, du and shuffle: others need the servers";
        return Err(Failure::usage(why));
    }
    let cache = SnapshotCache::of_user();
    let context = Context { options, task, notes, clock, shutdown, snapshot, cache };
    let ended = execute(cli.command, &context, out);
    // A stopped command may fail in many ways; the user knows the reason.
    match ended {
        Err(Failure::StdoutClosed) => Err(Failure::StdoutClosed),
        _ if context.shutdown.is_requested() => Ok(interrupt.exit()),
        ended => ended,
    }
}

fn execute(command: Command, context: &Context, out: &mut Output<'_>) -> Result<Exit, Failure> {
    match command {
        Command::Put(arguments) => {
            commands::put::run(arguments, context, &mut io::stdin().lock(), out)
        }
        Command::Get(arguments) => commands::get::run(arguments, context, out),
        Command::Cat(arguments) => commands::cat::run(arguments, context, out),
        Command::Ls(arguments) => commands::ls::run(arguments, context, out),
        Command::Stat(arguments) => commands::stat::run(arguments, context, out),
        Command::Du(arguments) => commands::du::run(arguments, context, out),
        Command::Snapshot(arguments) => commands::snapshot::run(arguments, context, out),
        Command::Shuffle(arguments) => commands::shuffle::run(arguments, context, out),
        Command::Mount(arguments) => commands::mount::run(&arguments, context, out),
        Command::Umount(arguments) => commands::mount::unmount(&arguments, context),
        Command::Mounts(arguments) => commands::mount::list(&arguments, context, out),
        Command::Agent(arguments) => commands::agent::run(arguments, context, out),
        Command::Why(arguments) => commands::why::run(arguments, context, out),
        Command::Csi(arguments) => commands::csi::run(arguments, context),
        Command::Top(arguments) => commands::top::run(arguments, context, out),
        Command::Lease(arguments) => commands::lease::run(arguments, context, out),
        Command::Rm(arguments) => commands::rm::run(arguments, context, out),
        Command::Datasets(arguments) => commands::datasets::run(arguments, context, out),
        Command::DeleteDataset(arguments) => commands::delete_dataset::run(arguments, context, out),
        Command::Purge(arguments) => commands::purge::run(arguments, context, out),
        Command::Recover(arguments) => commands::recover::run(arguments, context, out),
        Command::User(arguments) => commands::user::run(arguments, context, out),
        Command::Verify(arguments) => commands::verify::run(arguments, context, out),
        Command::Completions(arguments) => {
            commands::completions::run(&arguments, Cli::command(), out)
        }
        Command::Man(_) => commands::man::run(Cli::command(), out),
    }
}

/// Parses a number of at least one.
fn from_one<Number>(text: &str) -> Result<Number, &'static str>
where
    Number: FromStr<Err = ParseIntError>,
{
    text.parse().map_err(|error: ParseIntError| match error.kind() {
        IntErrorKind::PosOverflow => "that is too large a number",
        _ => "give a whole number, from 1 on",
    })
}

/// More threads are useless, and a system may refuse them.
const THREADS_MAX: usize = 1_024;

/// The default limit: each thread may hold 24 MiB of a large file.
const THREADS_USUAL: usize = 8;

/// The number of threads for local files: the given number, or the number of cores, at least two so
/// that reading and sending overlap.
fn threads(given: Option<NonZeroUsize>) -> Result<usize, Failure> {
    let cores = || thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let cores = || cores().clamp(2, THREADS_USUAL);
    match given.map_or_else(cores, NonZeroUsize::get) {
        threads @ ..=THREADS_MAX => Ok(threads),
        more => Err(Failure::usage(format!(
            "--threads can't be {more}: give a number from 1 to {THREADS_MAX}"
        ))),
    }
}

/// Raises the limit of open files to the maximum: a command line may name more folders than the
/// default allows.
fn raise_open_files() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // The default suffices for most command lines.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}
