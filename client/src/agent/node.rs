//! The agent of this node as tools see it: to become it, to ask it, to stop it.
//!
//! Must hold: every wait ends.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use dl_format::DatasetName;
use dl_runtime::since_boot;

use crate::error::{Error, Kind};
use crate::remote::ConnectOptions;
use crate::snapshot::{Snapshot, SnapshotCache};
use crate::task::TaskOptions;
use crate::worker::Attacher;
use crate::worker::memory::{Access, SharedMemory};
use crate::worker::message::{FromAgent, Servers, ToAgent};
use crate::worker::runtime::Place;
use crate::worker::socket::Socket;

/// How long an agent may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the process of an agent that ends may last.
const ENDING: Duration = Duration::from_secs(5);

/// The right to be the agent of a task on this node.
#[derive(Debug)]
pub struct Claim {
    /// The socket at which workers connect.
    pub listener: OwnedFd,
    /// Held for as long as the agent lives.
    pub lock: OwnedFd,
}

/// Becomes the agent of a task; none while there is another one.
///
/// # Errors
/// [`Kind::Local`] when the folder for it can't be used.
pub fn claim(options: &ConnectOptions, task: &TaskOptions) -> Result<Option<Claim>, Error> {
    let claimed = place(options, task).claim();
    let failed = |why| Error::new(Kind::Local, "use", task.folder.display(), why);
    Ok(claimed.map_err(failed)?.map(|(listener, lock)| Claim { listener, lock }))
}

/// Starts the agent of a task unless it runs, and has it open a dataset.
///
/// # Errors
/// [`Kind::NotFound`] for a dataset that is not there, [`Kind::Local`] when no agent can be started.
pub fn start(
    options: &ConnectOptions,
    task: &TaskOptions,
    dataset: &DatasetName,
) -> Result<(), Error> {
    let dataset = dataset.as_str().to_owned();
    Attacher::new(task.clone(), Servers::of(options), dataset).attach()?;
    Ok(())
}

/// What the agent of a task says of itself, as JSON.
///
/// # Errors
/// [`Kind::NotFound`] when there is no agent, [`Kind::Local`] when it does not answer.
pub fn status(options: &ConnectOptions, task: &TaskOptions) -> Result<String, Error> {
    match ask(options, task, &ToAgent::Status)?.0 {
        FromAgent::Status(status) => Ok(status),
        _ => Err(failed(task, "its answer makes no sense")),
    }
}

/// Ends the agent of a task, and waits until it has.
///
/// # Errors
/// As [`status`].
pub fn stop(options: &ConnectOptions, task: &TaskOptions) -> Result<(), Error> {
    let (_, socket) = ask(options, task, &ToAgent::Stop)?;
    while socket.receive::<FromAgent>(PATIENCE).map_err(|why| failed(task, why))?.is_some() {}
    Ok(())
}

fn ask(
    options: &ConnectOptions,
    task: &TaskOptions,
    question: &ToAgent,
) -> Result<(FromAgent, Socket), Error> {
    let started = since_boot();
    while since_boot().saturating_sub(started) < ENDING {
        if let Some(answered) = ask_once(options, task, question)? {
            return Ok(answered);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Err(failed(task, "it ends, and does not answer any more"))
}

/// Asks an agent; nothing when it ends without an answer, as one does that takes connections until its
/// last thread is gone.
fn ask_once(
    options: &ConnectOptions,
    task: &TaskOptions,
    question: &ToAgent,
) -> Result<Option<(FromAgent, Socket)>, Error> {
    let socket = place(options, task).connect().map_err(|why| match why.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            let subject = format!("task {}", task.name);
            Error::new(Kind::NotFound, "find the agent of", subject, "none runs on this machine")
        }
        _ => failed(task, why),
    })?;
    let answer = socket.send(question, &[], PATIENCE).and_then(|()| socket.receive(PATIENCE));
    match answer {
        Ok(answer) => Ok(answer.map(|(answer, _)| (answer, socket))),
        Err(why) => match why.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Ok(None),
            io::ErrorKind::TimedOut => Err(failed(task, silence(place(options, task).holder()))),
            _ => Err(failed(task, why)),
        },
    }
}

/// Why an agent may not answer.
fn silence(process: Option<u32>) -> String {
    let Some(process) = process else {
        return format!("it does not answer within {PATIENCE:?}");
    };
    let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The name of the program, in brackets, may hold anything; the state is the first word behind it.
    let state = status.rsplit_once(')').and_then(|(_, words)| words.trim_start().chars().next());
    match state {
        Some('T' | 't') => format!(
            "process {process}, the agent, is stopped: reads of absent chunks go to the servers until \
             kill -CONT {process} lets it go on"
        ),
        _ => format!("process {process}, the agent, does not answer within {PATIENCE:?}"),
    }
}

fn place(options: &ConnectOptions, task: &TaskOptions) -> Place {
    Place::of(task, &Servers::of(options))
}

fn failed(task: &TaskOptions, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(Kind::Local, "ask the agent of", format!("task {}", task.name), why)
}

/// A descriptor by which another process can map a snapshot: of its file in the cache, else of a copy
/// in memory.
///
/// # Errors
/// When neither can be had.
pub fn snapshot_file(snapshot: &Snapshot, cache: Option<&SnapshotCache>) -> io::Result<OwnedFd> {
    if let Some(file) = cache.and_then(|cache| cache.file_of(snapshot)) {
        return Ok(File::into(file));
    }
    let bytes = snapshot.bytes();
    let (memory, file) = SharedMemory::create("diesel-snapshot", bytes.len(), Access::Maker)?;
    memory.write(0, bytes);
    Ok(file)
}

/// Has every descriptor but the standard ones closed when this process starts a program.
pub fn close_on_exec() {
    #[expect(
        unsafe_code,
        reason = "there is no safe way to reach descriptors that nobody here opened"
    )]
    // SAFETY: nothing is closed now; only whoever calls `exec` sees a difference.
    let _ = unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
}
