//! The processes of a mount.
//!
//! Must hold: a started holder keeps no terminal and no pipe of its starter. A holder that can't
//! report its success to the starter leaves no mount.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use clap::ValueEnum;
use dl_csi::LAUNCHER;
use dl_format::DirPath;
use dl_fuse::{
    FromServer, Mount, Owner, Place, Refused, Report, Source, Stopper, hold, serve as serve_mount,
};
use dl_node::Socket;
use dl_runtime::{Shutdown, since_boot};
use libdiesel::agent::close_on_exec;
use libdiesel::{Client, ConnectOptions, OnNote, TaskOptions};
use tokio::signal::unix::{SignalKind, signal};

use super::Settings;
use super::options::{MountOptions, arguments_of_helper};
use super::place::{dir_of, source_of};
use crate::commands::agent::PolicyName;
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
const TIMEOUT: Duration = Duration::from_secs(5);

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
const PART_FLAGS: [&str; 3] = ["--role", "--instance", "--legacy"];

/// The command of another part of the mount.
fn part(flags: &[&str]) -> Command {
    let mut command = part_of(Path::new(PROGRAM), flags);
    command.stdout(Stdio::null());
    command
}

/// A program with the arguments of this process, and with the flags of a part of the mount.
fn part_of(program: &Path, flags: &[&str]) -> Command {
    let arguments = own_arguments();
    // Behind this word are no flags.
    let end = arguments.iter().position(|word| word == "--").unwrap_or(arguments.len());
    let (before, behind) = arguments.split_at(end);
    let mut command = Command::new(program);
    command.args(before).args(flags).args(behind);
    command
}

/// A command that has the launcher of servers run another part of the mount.
fn launched(flags: &[&str]) -> Command {
    let part = part(flags);
    let mut command = Command::new(PROGRAM);
    command.args(["csi", "launch", "--"]).args(part.get_args()).stdout(Stdio::null());
    command
}

/// Starts a holder, and returns when files can be read.
pub(super) fn start(
    settings: &Settings,
    options: &MountOptions,
    context: &Context,
    out: &mut Output<'_>,
) -> Result<Exit, Failure> {
    let failed = |why| Failure::local("start the mount", why);
    let (own, other) = Socket::pair().map_err(failed)?;
    let mut command = part(&["--role", "hold"]);
    if let Some(path) = invoked() {
        // For its upgrade.
        command.arg0(path);
    }
    command.stdin(Stdio::from(OwnedFd::from(other))).stderr(Stdio::null());
    close_on_exec();
    place_of(settings, options)?.pass_on().map_err(failed)?;
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
    settings: &Settings,
    options: &MountOptions,
    context: &Context,
) -> Result<Exit, Failure> {
    let failed = |why| Failure::local("hold the mount", why);
    // The call fails for a process that leads a session already.
    let _ = rustix::process::setsid();
    let starter = match settings.legacy {
        None => Some(Socket::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?)),
        Some(_) => None,
    };
    begin_log(settings, context);
    let mount = mount_of(settings, options)?;
    leave_folder();
    let report = |report: Report| {
        // After the report of the success the starter is gone.
        starter.as_ref().is_none_or(|starter| starter.send(&report, &[], TIMEOUT).is_ok())
    };
    let held =
        hold(mount, |stopper| watch_signals(context, settings.is_upgradable(), stopper), &report);
    if let Err(Refused { exit, why }) = held {
        report(Report::Failed { exit, why });
        return Ok(Exit::Failed);
    }
    Ok(Exit::Done)
}

/// Holds a mount in this process until its end.
pub(super) fn in_foreground(
    settings: &Settings,
    options: &MountOptions,
    context: &Context,
) -> Result<Exit, Failure> {
    begin_log(settings, context);
    let (source, dir) = (source_of(settings), dir_of(settings)?);
    let report = |report: Report| {
        match report {
            Report::Ready => {
                context.notes.note(format_args!("{source} is mounted at {}", shown(&dir)));
                if let Err(why) = tell_service_manager() {
                    context.notes.note(format_args!("NOTIFY_SOCKET: {why}"));
                }
            }
            Report::Note(note) => context.notes.note(note),
            Report::Failed { why, .. } => context.notes.note(why),
        }
        true
    };
    let mount = mount_of(settings, options)?;
    hold(mount, |stopper| watch_signals(context, settings.is_upgradable(), stopper), &report)
        .map_err(refused)?;
    Ok(Exit::Done)
}

/// Tells systemd that files can be read (sd_notify(3)); without a service manager nothing happens.
fn tell_service_manager() -> io::Result<()> {
    let Some(name) = env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    UnixDatagram::unbound()?.send_to_addr(b"READY=1", &address)?;
    Ok(())
}

/// Leaves the folder of the starter, whose file system must not stay busy.
fn leave_folder() {
    if let Err(why) = env::set_current_dir("/") {
        tracing::debug!(%why, "leave the folder of the starter");
    }
}

/// Ends the mount on a request to stop, and starts the next program on SIGHUP.
fn watch_signals(context: &Context, is_upgradable: bool, stopper: Stopper) {
    let shutdown = context.shutdown.clone();
    let wait = move || {
        let watched = watch_in_thread(&shutdown, is_upgradable, &stopper);
        if let Err(why) = watched {
            tracing::warn!(%why, "wait for signals");
        }
        stopper.stop();
    };
    if let Err(why) = thread::Builder::new().name("signals".to_owned()).spawn(wait) {
        tracing::warn!(%why, "wait for signals");
    }
}

fn watch_in_thread(shutdown: &Shutdown, is_upgradable: bool, stopper: &Stopper) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    runtime.block_on(async {
        let mut hangup = signal(SignalKind::hangup())?;
        loop {
            tokio::select! {
                () = shutdown.requested() => return Ok(()),
                _ = hangup.recv(), if is_upgradable => stopper.upgrade(),
            }
        }
    })
}

fn begin_log(settings: &Settings, context: &Context) {
    if env::var_os(LAUNCHER).is_some() {
        crate::commands::csi::begin_log();
        return;
    }
    if let Some(file) = &settings.log
        && let Err(why) = crate::commands::agent::begin_log(file.clone())
    {
        context.notes.note(format_args!("the log {} can't be written: {why}", shown(file)));
    }
}

fn threads(settings: &Settings) -> NonZeroUsize {
    let cores = || thread::available_parallelism().map_or(1, NonZeroUsize::get).min(THREADS_MAX);
    settings.threads.or_else(|| NonZeroUsize::new(cores())).unwrap_or(NonZeroUsize::MIN)
}

fn place_of(settings: &Settings, options: &MountOptions) -> Result<Place, Failure> {
    Ok(Place {
        dir: dir_of(settings)?,
        source: source_of(settings),
        allow_other: options.allow_other,
        no_exec: options.no_exec,
    })
}

/// The path of an open folder in this process.
fn path_of(folder: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()))
}

/// The path by which this program was found, which may be a link to a version of it; none under the
/// name of the helper of mount(8), which takes other arguments.
fn invoked() -> Option<PathBuf> {
    let name = PathBuf::from(env::args_os().next()?);
    if name.ends_with("mount.diesel") || name.starts_with("/proc") {
        return None;
    }
    if name.components().count() > 1 {
        return std::path::absolute(name).ok();
    }
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders).map(|folder| folder.join(&name)).find(|path| path.is_file())
}

fn mount_of(settings: &Settings, options: &MountOptions) -> Result<Mount, Failure> {
    let place = place_of(settings, options)?;
    // Relative names of files are those of the starter; the holder itself may leave the folder. By its
    // descriptor: the name may lead into the mount, which answers only while a server runs.
    let mode =
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let folder = rustix::fs::open(".", mode, rustix::fs::Mode::empty());
    let folder = Arc::new(folder.map_err(|why| Failure::local("mount", io::Error::from(why)))?);
    let new = || format!("{}-{}", std::process::id(), since_boot().as_micros());
    let instance = settings.instance.clone().unwrap_or_else(new);
    let program = invoked().or_else(|| env::current_exe().ok());
    let program = program.unwrap_or_else(|| PathBuf::from(PROGRAM));
    let (same, is_background) = (instance.clone(), settings.role.is_some());
    let beginning = Arc::clone(&folder);
    let upgrade = move |legacy: &str| {
        let mut flags = vec!["--instance", &same, "--legacy", legacy];
        flags.extend(is_background.then_some(["--role", "hold"]).into_iter().flatten());
        part_of(&program, &flags).current_dir(path_of(&beginning)).exec()
    };
    // In Kubernetes servers run in a container of their own.
    let is_elsewhere = env::var_os(LAUNCHER).is_some();
    let server = move || {
        let flags = ["--role", "serve", "--instance", &instance];
        let mut command = if is_elsewhere { launched(&flags) } else { part(&flags) };
        command.stderr(Stdio::inherit());
        command.current_dir(path_of(&folder));
        command
    };
    Ok(Mount {
        place,
        threads: threads(settings),
        server: Box::new(server),
        upgrade: Box::new(upgrade),
        legacy: settings.legacy.clone(),
        is_elsewhere,
    })
}

/// Serves a mount, whose holder is at stdin.
pub(super) fn serve(
    settings: &Settings,
    options: &MountOptions,
    context: &Context,
) -> Result<Exit, Failure> {
    let failed = |why| Failure::local("serve the mount", why);
    // Ctrl-C in a terminal is for the holder.
    let _ = rustix::process::setsid();
    let holder = Arc::new(Socket::from(io::stdin().as_fd().try_clone_to_owned().map_err(failed)?));
    begin_log(settings, context);
    let (timeout, task) = (options.timeout(), task_of(settings, options, context)?);
    let told = Arc::clone(&holder);
    let on_note: OnNote = Arc::new(move |note: &str| {
        // A missing holder needs no notes.
        let _ = told.send(&FromServer::Note(note.to_owned()), &[], TIMEOUT);
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
            holder.send(&FromServer::Failed { exit, why }, &[], TIMEOUT).map_err(failed)?;
            return Ok(Exit::Failed);
        }
    };
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    let source = Source {
        client,
        name: settings.address.dataset.clone(),
        task: name,
        folder: folder_of(settings).as_bytes().to_vec(),
        cache: context.cache.clone(),
        has_job: context.task.is_some(),
        at: settings.at,
        follow: settings.follow.or(options.follow),
        owner: Owner {
            uid: options.uid.unwrap_or(user),
            gid: options.gid.unwrap_or(group),
            umask: options.umask,
        },
        patience: timeout,
        threads: threads(settings),
        describe,
        exit_of_missing: Exit::NotFound as u8,
    };
    leave_folder();
    serve_mount(source, &holder).map_err(failed)?;
    Ok(Exit::Done)
}

fn folder_of(settings: &Settings) -> DirPath {
    settings.address.folder()
}

fn describe(error: libdiesel::Error) -> Refused {
    let exit = Exit::of(error.kind()) as u8;
    Refused { exit, why: Failure::from(error).to_string() }
}

/// The job of the mount: the given job, else a job of this mount alone.
fn task_of(
    settings: &Settings,
    options: &MountOptions,
    context: &Context,
) -> Result<TaskOptions, Failure> {
    let own = || {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        // A later mount at the same place has a job of its own, and so the newest version.
        let instance = settings.instance.as_deref().unwrap_or_default();
        let place = format!("{}\n{instance}\n{}", boot.trim(), shown(&dir_of(settings)?));
        let name = format!("mount:{:016x}", xxhash_rust::xxh3::xxh3_64(place.as_bytes()));
        TaskOptions::named(&name).ok_or_else(|| Failure::failed("a mount has no name"))
    };
    let task = context.task.clone().map_or_else(own, Ok)?;
    let memory = settings.memory.as_ref().or(options.memory.as_ref());
    let policy = settings.policy.as_ref().and_then(PolicyName::to_possible_value);
    let mut arguments = match memory {
        Some(memory) => vec!["--memory".to_owned(), memory.clone()],
        None => task.arguments.clone(),
    };
    arguments.extend(
        policy.iter().flat_map(|policy| ["--policy", policy.get_name()]).map(str::to_owned),
    );
    Ok(TaskOptions { arguments, ..task })
}
