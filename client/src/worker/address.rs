//! The folder for finding the agent of a task, and the start of the agent by its first worker.
//!
//! Must hold: each task and user has a single agent. The socket file of an ended agent does not
//! block a new agent. An agent inherits nothing from its starter except the listener and the lock.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use dl_runtime::since_boot;
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_128;

use super::agent_files::{AgentFiles, of};
use super::message::Servers;
use super::socket::{Socket, bind_at};
use crate::task::TaskOptions;

/// Time for the program that starts the agent.
const SPAWN_PATIENCE: Duration = Duration::from_secs(5);

/// Time between two checks of the program.
const LOOK: Duration = Duration::from_millis(1);

/// The socket and the lock of the agent of a task and user.
#[derive(Debug, Clone)]
pub(crate) struct AgentAddress {
    folder: PathBuf,
    name: String,
}

impl AgentAddress {
    /// The address for a task. Workers with different keys have different agents.
    pub(crate) fn of(task: &TaskOptions, servers: &Servers) -> Self {
        let name = Self::name_of(&task.name, servers);
        Self { folder: task.folder.clone(), name }
    }

    /// The name of the files for a task, and for a user with a key.
    pub(crate) fn name_of(task: &str, servers: &Servers) -> String {
        let key = servers.key.as_deref().unwrap_or_default();
        let words = [task, &servers.user, key].map(|word| word.len().to_string() + word);
        format!("{:032x}", xxh3_128(words.concat().as_bytes()))
    }

    fn files(&self) -> AgentFiles {
        AgentFiles::new(&self.folder, &self.name)
    }

    /// Connects to the agent, if one listens.
    pub(crate) fn connect(&self) -> io::Result<Socket> {
        check(&self.folder)?;
        Socket::connect(&self.files().socket())
    }

    /// The process id of the agent, from the lock file.
    pub(crate) fn holder(&self) -> Option<u32> {
        fs::read_to_string(self.files().lock()).ok()?.trim().parse().ok()
    }

    /// Starts an agent; false if another process starts or runs the agent.
    pub(crate) fn start(&self, task: &TaskOptions) -> io::Result<bool> {
        let Some((listener, lock)) = self.claim()? else { return Ok(false) };
        spawn(task, listener.into(), lock.into())?;
        Ok(true)
    }

    /// The right to be the agent: the listener, and the lock that holds the right while open. None
    /// while another agent has the right.
    pub(crate) fn claim(&self) -> io::Result<Option<(OwnedFd, OwnedFd)>> {
        let made = fs::DirBuilder::new().mode(0o700).create(&self.folder);
        if let Err(why) = made
            && why.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(of(&self.folder, &why));
        }
        check(&self.folder)?;
        let files = self.files();
        let Some(lock) = files.try_lock(true)? else { return Ok(None) };
        let path = files.socket();
        match fs::remove_file(&path) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(of(&path, &why)),
            _ => {}
        }
        let listener = bind_at(&path).map_err(|why| of(&path, &why))?;
        Ok(Some((listener, lock.into())))
    }
}

/// Checks for a folder of the user alone, because processes trust the memory behind its sockets.
fn check(folder: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(folder)?;
    let user = rustix::process::geteuid().as_raw();
    if found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    let why = format!("{} is not a folder of the user alone", folder.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Runs the program that starts the agent and then ends, so the agent has no parent.
fn spawn(task: &TaskOptions, listener: Stdio, lock: Stdio) -> io::Result<()> {
    let program = program(task);
    let mut command = Command::new(&program);
    command.args(["agent", "spawn", "--task", &task.name]);
    command.args(&task.arguments);
    let variables = ["LD_PRELOAD", "DIESEL_KEY", "DIESEL_TASK"];
    variables.iter().for_each(|variable| _ = command.env_remove(variable));
    command.stdin(listener).stdout(lock).stderr(Stdio::null()).current_dir("/");
    let mut child = command.spawn().map_err(|why| {
        let program = program.display();
        let why = format!("{program}: {why}; name the program dlcmd in DIESEL_AGENT or PATH");
        io::Error::other(why)
    })?;
    let until = since_boot().saturating_add(SPAWN_PATIENCE);
    loop {
        match child.try_wait() {
            Ok(Some(ended)) if ended.success() => return Ok(()),
            Ok(Some(ended)) => {
                // The program has no terminal for its error, and most errors are of the arguments.
                let (program, task, arguments) =
                    (program.display(), &task.name, task.arguments.join(" "));
                return Err(io::Error::other(format!(
                    "the agent did not start: {ended}; `{program} agent run --task {task} {arguments}` \
                     shows the cause (DIESEL_AGENT_MEMORY sets --memory)"
                )));
            }
            // The program ignores SIGCHLD, so the kernel discards exit statuses.
            Err(why) if why.raw_os_error() == Some(Errno::CHILD.raw_os_error()) => return Ok(()),
            Err(why) => return Err(why),
            Ok(None) if since_boot() >= until => {
                let _ = child.kill();
                let why = "the agent did not start in time; see `dlcmd agent run`";
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
            Ok(None) => std::thread::sleep(LOOK),
        }
    }
}

/// The program of the agent: from the task, else `dlcmd` beside the running program, else from
/// PATH.
fn program(task: &TaskOptions) -> PathBuf {
    let beside = || {
        let beside = std::env::current_exe().ok()?.with_file_name("dlcmd");
        File::open(&beside).is_ok().then_some(beside)
    };
    task.program.clone().or_else(beside).unwrap_or_else(|| PathBuf::from("dlcmd"))
}
