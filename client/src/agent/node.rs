//! The agent of the node for tools: claim its place, ask for its status, stop it.
//!
//! Must hold: every wait ends.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dl_format::{DatasetName, TaskName};
use dl_node::{FromAgent, Servers, Socket, ToAgent};
use dl_runtime::since_boot;
use rustix::net::{SocketAddrUnix, getsockname};

use crate::error::{Error, Kind};
use crate::remote::ConnectOptions;
use crate::task::TaskOptions;
use crate::worker::Attacher;
use crate::worker::address::{AgentAddress, is_absence};

/// How long an agent may take to answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Time for an ending agent's process to exit.
const ENDING: Duration = Duration::from_secs(5);

/// The right to be the agent of a task on the node.
#[derive(Debug)]
pub struct Claim {
    /// The socket at which workers connect.
    pub listener: OwnedFd,
    /// The lock of the agent, kept for its whole life.
    pub lock: OwnedFd,
}

/// Becomes the agent of a task; none while another agent runs.
///
/// # Errors
/// [`Kind::Local`] if the folder of the task can't be used.
pub fn claim(options: &ConnectOptions, task: &TaskOptions) -> Result<Option<Claim>, Error> {
    let claimed = address(options, task).claim();
    let subject = format!("task {}", task.name);
    let failed = |why| Error::new(Kind::Local, "become the agent of", subject, why);
    Ok(claimed.map_err(failed)?.map(|(listener, lock)| Claim { listener, lock }))
}

/// The task, the user and the key of an agent.
#[derive(Debug)]
pub struct Owner {
    task: TaskName,
    /// The hash in the name of the socket: the agent itself gets no key.
    name: String,
}

impl Owner {
    /// The owner of an agent by its listener.
    ///
    /// # Errors
    /// For a listener without a path.
    pub fn of(listener: impl AsFd, task: TaskName) -> io::Result<Self> {
        let address = SocketAddrUnix::try_from(getsockname(listener)?)?;
        let path = address.path_bytes().map(|path| Path::new(OsStr::from_bytes(path)));
        let name = path.and_then(Path::file_stem).and_then(OsStr::to_str);
        let name = name.ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        Ok(Self { task, name })
    }

    /// A name that differs between tasks, users and keys.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether a worker belongs to the user, and has the same key.
    pub fn owns(&self, worker: &Servers) -> bool {
        AgentAddress::name_of(self.task.as_str(), worker) == self.name
    }
}

/// Starts the agent of a task unless the agent runs already, and lets the agent open a dataset.
/// Gives facts that the user should know.
///
/// # Errors
/// [`Kind::NotFound`] for an unknown dataset, [`Kind::Local`] if no agent can be started.
pub fn start(
    options: &ConnectOptions,
    task: &TaskOptions,
    dataset: &DatasetName,
) -> Result<Vec<String>, Error> {
    let dataset = dataset.as_str().to_owned();
    let (attached, _) =
        Attacher::new(task.clone(), Servers::from(options), dataset, None).attach()?;
    Ok(attached.notes)
}

/// Whether the agent of a task accepts connections on this machine.
pub fn is_running(options: &ConnectOptions, task: &TaskOptions) -> bool {
    address(options, task).connect().is_ok()
}

/// The status report of the agent of a task, as JSON.
///
/// # Errors
/// [`Kind::NotFound`] without an agent, [`Kind::Local`] without an answer.
pub fn status(options: &ConnectOptions, task: &TaskOptions) -> Result<String, Error> {
    match ask(options, task, &ToAgent::Status)?.0 {
        FromAgent::Status(status) => Ok(status),
        _ => Err(failed(task, "the answer of the agent makes no sense")),
    }
}

/// Ends the agent of a task, and waits for its end.
///
/// # Errors
/// As for [`status`].
pub fn stop(options: &ConnectOptions, task: &TaskOptions) -> Result<(), Error> {
    let (_, socket) = ask(options, task, &ToAgent::Stop)?;
    while socket.receive::<FromAgent>(TIMEOUT).map_err(|why| failed(task, why))?.is_some() {}
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
    Err(failed(task, "the agent is ending; try again"))
}

/// Asks an agent; nothing if the agent ends without an answer. An ending agent still accepts
/// connections until its last thread is gone.
fn ask_once(
    options: &ConnectOptions,
    task: &TaskOptions,
    question: &ToAgent,
) -> Result<Option<(FromAgent, Socket)>, Error> {
    let socket = address(options, task).connect().map_err(|why| match is_absence(&why) {
        true => {
            let subject = format!("task {}", task.name);
            Error::new(
                Kind::NotFound,
                "find the agent of",
                subject,
                "no agent runs on this machine",
            )
        }
        false => failed(task, why),
    })?;
    let answer = socket.send(question, &[], TIMEOUT).and_then(|()| socket.receive(TIMEOUT));
    match answer {
        Ok(answer) => Ok(answer.map(|(answer, _)| (answer, socket))),
        Err(why) => match why.kind() {
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => Ok(None),
            io::ErrorKind::TimedOut => Err(failed(task, silence(address(options, task).holder()))),
            _ => Err(failed(task, why)),
        },
    }
}

/// The cause of a missing answer.
fn silence(process: Option<u32>) -> String {
    let Some(process) = process else {
        return format!("the agent does not answer within {TIMEOUT:?}");
    };
    let status = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // The program name, in brackets, may hold anything; the state is the next word.
    let state = status.rsplit_once(')').and_then(|(_, words)| words.trim_start().chars().next());
    match state {
        Some('T' | 't') => format!(
            "process {process}, the agent, is stopped: reads of absent chunks go to the servers until \
             kill -CONT {process} lets it go on"
        ),
        _ => format!("process {process}, the agent, does not answer within {TIMEOUT:?}"),
    }
}

fn address(options: &ConnectOptions, task: &TaskOptions) -> AgentAddress {
    AgentAddress::of(task, &Servers::from(options))
}

fn failed(task: &TaskOptions, why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::new(Kind::Local, "ask the agent of", format!("task {}", task.name), why)
}

/// The folder for sockets of the user on this machine, made if missing: that of the agents.
///
/// # Errors
/// Without a folder of the user alone.
pub fn runtime_folder() -> io::Result<PathBuf> {
    let task = TaskOptions::named("mount").ok_or(io::ErrorKind::InvalidInput)?;
    address(&ConnectOptions::default(), &task).folder()
}

/// Closes all descriptors but the standard ones when the process starts a program.
pub fn close_on_exec() {
    #[expect(unsafe_code, reason = "there is no safe way to reach descriptors of unknown origin")]
    // SAFETY: the call closes nothing now; only `exec` closes the descriptors.
    let _ = unsafe {
        libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC)
    };
}
