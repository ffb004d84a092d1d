//! The processes of a mount.
//!
//! Must hold: a started holder keeps no terminal and no pipe of its starter. A holder that can't
//! report its success to the starter leaves no mount.

use std::env;
use std::ffi::OsString;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dl_format::DirPath;
use dl_fuse::{
    FromServer, Mount, Owner, Place, Refused, Report, Source, Stopper, hold, serve as serve_mount,
};
use dl_runtime::since_boot;
use libdiesel::agent::{Socket, close_on_exec};
use libdiesel::{Client, ConnectOptions, OnNote, TaskOptions};

use super::Arguments;
use super::options::{MountOptions, arguments_of_helper};
use super::place::{dir_of, source_of};
use crate::context::Context;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::text::shown;

/// Threads of a server, at most without a choice of the user.
const THREADS_MAX: usize = 4;

/// The program of this process, also after its file was replaced.
const PROGRAM: &str = "/proc/self/exe";

/// Time between two reports of the holder: a snapshot of any size may have to come first.
const FOR_EVER: Duration = Duration::from_secs(24 * 3_600);

/// Time for a report.
const PATIENCE: Duration = Duration::from_secs(5);

/// The arguments of this process without its name, and without those of its part of the mount.
fn own_arguments() -> Vec<OsString> {
    let given: Vec<OsString> = env::args_os().collect();
    let given = arguments_of_helper(&given).unwrap_or(given);
    let mut words = given.into_iter().skip(1);
    let mut own = Vec::new();
    while let Some(word) = words.next() {
        if PART_FLAGS.iter().any(|flag| word == *flag) {
            words.next();
        } else {
            own.push(word);
        }
    }
    own
}

/// The flags of a part of the mount, each with a value.
const PART_FLAGS: [&str; 2] = ["--role", "--instance"];

/// The command of another part of the mount.
fn part(flags: &[&str]) -> Command {
    let arguments = own_arguments();
    // Behind this word are no flags.
    let end = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
    let (before, behind) = arguments.split_at(end);
    let mut command = Command::new(PROGRAM);
    command.args(before).args(flags).args(behind).stdout(Stdio::null());
    command
}

/// Starts a holder, and returns when files can be read.
pub(super) fn start(
    arguments: &Arguments,
    options: &MountOptions,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let failed = |why| Failure::local("start the mount", why);
    let (own, other) = Socket::pair().map_err(failed)?;
    let mut command = part(&["--role", "hold"]);
    command.stdin(Stdio::from(OwnedFd::from(other))).stderr(Stdio::null());
    close_on_exec();
    place_of(arguments, options)?.pass_on().map_err(failed)?;
    let child = command.spawn();
    drop(command);
    let mut child = child.map_err(failed)?;
    // Of a mount that fails, only the error is of use.
    let mut notes = Vec::new();
    loop {
        match own.receive::<Report>(FOR_EVER).map_err(failed)? {
            Some((Report::Note(note), _)) => notes.push(note),
            Some((Report::Ready, _)) => {
                notes.iter().for_each(|note| context.notes.note(note));
                out.flush()?;
                return Ok(Exit::Done);
            }
            Some((Report::Failed { exit, why }, _)) => {
                let _ = child.wait();
                return Err(refused(Refused { exit, why }));
            }
            None => {
                let ended = child.wait().map_err(failed)?;
                return Err(Failure::failed(format!(
                    "the process of the mount ended early: {ended}"
                )));
            }
        }
    }
}

fn refused(Refused { exit, why }: Refused) -> Failure {
    let exits = [Exit::Failed, Exit::Usage, Exit::NotFound, Exit::Partly, Exit::Unreachable];
    let exit = exits.into_iter().find(|one| *one as u8 == exit).unwrap_or(Exit::Failed);
    Failure::Because { exit, error: anyhow::Error::msg(why) }
}

/// Holds a mount for a command that waits.
pub(super) fn in_background(
    arguments: &Arguments,
    options: &MountOptions,
    context: &Context,
) -> Result<Exit, Failure> {
    let failed = |why| Failure::local("hold the mount", why);
    // The call fails for a process that leads a session already.
    let _ = rustix::process::setsid();
    let starter = Socket::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?);
    begin_log(arguments, context);
    let mount = mount_of(arguments, options)?;
    leave_folder();
    let report = |report: Report| {
        // After the report of the success the starter is gone.
        starter.send(&report, &[], PATIENCE).is_ok()
    };
    let held = hold(mount, |stopper| stop_on_signals(context, stopper), &report);
    if let Err(Refused { exit, why }) = held {
        report(Report::Failed { exit, why });
        return Ok(Exit::Failed);
    }
    Ok(Exit::Done)
}

/// Holds a mount in this process until its end.
pub(super) fn in_foreground(
    arguments: &Arguments,
    options: &MountOptions,
    context: &Context,
) -> Result<Exit, Failure> {
    begin_log(arguments, context);
    let (source, dir) = (source_of(arguments), dir_of(arguments)?);
    let report = |report: Report| {
        match report {
            Report::Ready => {
                context.notes.note(format_args!("{source} is mounted at {}", shown(&dir)));
            }
            Report::Note(note) => context.notes.note(note),
            Report::Failed { why, .. } => context.notes.note(why),
        }
        true
    };
    let mount = mount_of(arguments, options)?;
    hold(mount, |stopper| stop_on_signals(context, stopper), &report).map_err(refused)?;
    Ok(Exit::Done)
}

/// Leaves the folder of the starter, whose file system must not stay busy.
fn leave_folder() {
    if let Err(why) = env::set_current_dir("/") {
        tracing::debug!(%why, "leave the folder of the starter");
    }
}

fn stop_on_signals(context: &Context, stopper: Stopper) {
    let shutdown = context.shutdown.clone();
    let wait = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        match runtime {
            Ok(runtime) => runtime.block_on(shutdown.requested()),
            Err(why) => tracing::warn!(%why, "wait for signals"),
        }
        stopper.stop();
    };
    if let Err(why) = thread::Builder::new().name("stop".to_owned()).spawn(wait) {
        tracing::warn!(%why, "wait for signals");
    }
}

fn begin_log(arguments: &Arguments, context: &Context) {
    if let Some(file) = &arguments.log
        && let Err(why) = crate::commands::agent::begin_log(file.clone())
    {
        context.notes.note(format_args!("the log {} can't be written: {why}", shown(file)));
    }
}

fn threads(arguments: &Arguments) -> NonZeroUsize {
    let cores = || thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS_MAX);
    arguments.threads.or_else(|| NonZeroUsize::new(cores())).unwrap_or(NonZeroUsize::MIN)
}

fn place_of(arguments: &Arguments, options: &MountOptions) -> Result<Place, Failure> {
    Ok(Place {
        dir: dir_of(arguments)?,
        source: source_of(arguments),
        allow_other: options.allow_other,
    })
}

fn mount_of(arguments: &Arguments, options: &MountOptions) -> Result<Mount, Failure> {
    let place = place_of(arguments, options)?;
    // Relative names of files are those of the starter; the holder itself may leave the folder.
    let folder = env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let instance = format!("{}-{}", std::process::id(), since_boot().as_micros());
    let server = move || {
        let mut command = part(&["--role", "serve", "--instance", &instance]);
        command.stderr(Stdio::inherit());
        command.current_dir(if folder.is_dir() { &*folder } else { Path::new("/") });
        command
    };
    Ok(Mount { place, threads: threads(arguments), server: Box::new(move || Ok(server())) })
}

/// Serves a mount, whose holder is at stdin.
pub(super) fn serve(
    arguments: &Arguments,
    options: &MountOptions,
    context: &Context,
) -> Result<Exit, Failure> {
    let failed = |why| Failure::local("serve the mount", why);
    // Ctrl-C in a terminal is for the holder.
    let _ = rustix::process::setsid();
    let holder = Arc::new(Socket::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?));
    begin_log(arguments, context);
    let (timeout, task) = (options.timeout(), task_of(arguments, options, context)?);
    let told = Arc::clone(&holder);
    let on_note: OnNote = Arc::new(move |note: &str| {
        // A missing holder needs no notes.
        let _ = told.send(&FromServer::Note(note.to_owned()), &[], PATIENCE);
    });
    let task = TaskOptions { patience: task.patience.min(timeout / 2), ..task };
    let request_timeout = timeout.saturating_sub(task.patience).max(Duration::from_secs(1));
    let name = task.name.clone();
    let connect = ConnectOptions {
        task: Some(task),
        on_note: Some(on_note),
        on_retry: None,
        request_timeout,
        connect_timeout: context.options.connect_timeout.min(request_timeout),
        ..context.options.clone()
    };
    let client = match Client::connect(connect) {
        Ok(client) => client,
        Err(error) => {
            let Refused { exit, why } = describe(error);
            holder.send(&FromServer::Failed { exit, why }, &[], PATIENCE).map_err(failed)?;
            return Ok(Exit::Failed);
        }
    };
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    let source = Source {
        client,
        name: arguments.address.dataset.clone(),
        task: name,
        folder: folder_of(arguments).as_bytes().to_vec(),
        cache: context.cache.clone(),
        owner: Owner {
            uid: options.uid.unwrap_or(user),
            gid: options.gid.unwrap_or(group),
            umask: options.umask,
        },
        patience: timeout,
        threads: threads(arguments),
        describe,
        exit_of_missing: Exit::NotFound as u8,
    };
    leave_folder();
    serve_mount(source, &holder).map_err(failed)?;
    Ok(Exit::Done)
}

fn folder_of(arguments: &Arguments) -> DirPath {
    arguments.address.folder()
}

fn describe(error: libdiesel::Error) -> Refused {
    let exit = Exit::of(error.kind()) as u8;
    Refused { exit, why: Failure::from(error).to_string() }
}

/// The job of the mount: the given job, else a job of this mount alone.
fn task_of(
    arguments: &Arguments,
    options: &MountOptions,
    context: &Context,
) -> Result<TaskOptions, Failure> {
    let own = || {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        // A later mount at the same place has a job of its own, and so the newest version.
        let instance = arguments.instance.as_deref().unwrap_or_default();
        let place = format!("{}\n{instance}\n{}", boot.trim(), shown(&dir_of(arguments)?));
        let name = format!("mount:{:016x}", xxhash_rust::xxh3::xxh3_64(place.as_bytes()));
        TaskOptions::named(&name).ok_or_else(|| Failure::failed("a mount has no name"))
    };
    let task = context.task.clone().map_or_else(own, Ok)?;
    let memory = arguments.memory.as_ref().or(options.memory.as_ref());
    let arguments = match memory {
        Some(memory) => vec!["--memory".to_owned(), memory.clone()],
        None => task.arguments.clone(),
    };
    Ok(TaskOptions { arguments, ..task })
}
