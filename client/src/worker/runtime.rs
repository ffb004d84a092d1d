//! The folder in which workers find the agent of their task, and how the first of them starts it.
//!
//! Must hold: one agent for each task and user, whoever comes first; a socket that an agent left
//! behind is no obstacle. An agent inherits nothing of its starter but the listener and the lock.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use dl_runtime::since_boot;
use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_128;

use super::message::Servers;
use super::socket::{Socket, bind_at};
use crate::task::TaskOptions;

/// How long the program that starts the agent may take.
const SPAWN_PATIENCE: Duration = Duration::from_secs(5);

/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(1);

/// Where the agent of one task and user listens.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    folder: PathBuf,
    name: String,
}

impl Place {
    /// Of a task; who shows another key to the servers has another agent.
    pub(crate) fn of(task: &TaskOptions, servers: &Servers) -> Self {
        let key = servers.key.as_deref().unwrap_or_default();
        let words =
            [task.name.as_str(), &servers.user, key].map(|word| word.len().to_string() + word);
        let name = format!("{:032x}", xxh3_128(words.concat().as_bytes()));
        Self { folder: task.folder.clone(), name }
    }

    fn path(&self, ending: &str) -> PathBuf {
        self.folder.join(format!("{}.{ending}", self.name))
    }

    /// Connects to the agent, if one listens.
    pub(crate) fn connect(&self) -> io::Result<Socket> {
        check(&self.folder)?;
        Socket::connect(&self.path("sock"))
    }

    /// The process that is the agent, as it wrote into its lock.
    pub(crate) fn holder(&self) -> Option<u32> {
        fs::read_to_string(self.path("lock")).ok()?.trim().parse().ok()
    }

    /// Starts an agent; false when somebody else is about to, or has.
    pub(crate) fn start(&self, task: &TaskOptions) -> io::Result<bool> {
        let Some((listener, lock)) = self.claim()? else { return Ok(false) };
        spawn(task, listener.into(), lock.into())?;
        Ok(true)
    }

    /// The right to be the agent: the listener, and the lock that says so for as long as it is open.
    /// None while another agent has it.
    pub(crate) fn claim(&self) -> io::Result<Option<(OwnedFd, OwnedFd)>> {
        let made = fs::DirBuilder::new().mode(0o700).create(&self.folder);
        if let Err(why) = made
            && why.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(why);
        }
        check(&self.folder)?;
        let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC).bits() as i32;
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(flags)
            .open(self.path("lock"))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => return Ok(None),
            locked => locked?,
        }
        let path = self.path("sock");
        match fs::remove_file(&path) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
            _ => {}
        }
        Ok(Some((bind_at(&path)?, lock.into())))
    }
}

/// A folder of this user alone: its sockets lead to memory that processes trust.
fn check(folder: &Path) -> io::Result<()> {
    let found = fs::symlink_metadata(folder)?;
    let user = rustix::process::geteuid().as_raw();
    if found.is_dir() && found.uid() == user && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    let why = format!("{} is no folder of this user alone", folder.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Runs the program that starts the agent and ends at once, so that the agent is nobody's child.
fn spawn(task: &TaskOptions, listener: Stdio, lock: Stdio) -> io::Result<()> {
    let mut command = Command::new(program(task));
    command.args(["agent", "spawn", "--task", &task.name]);
    command.args(&task.arguments);
    let variables = ["LD_PRELOAD", "DIESEL_KEY", "DIESEL_TASK"];
    variables.iter().for_each(|variable| _ = command.env_remove(variable));
    command.stdin(listener).stdout(lock).stderr(Stdio::null()).current_dir("/");
    let mut child = command.spawn()?;
    let until = since_boot().saturating_add(SPAWN_PATIENCE);
    loop {
        match child.try_wait() {
            Ok(Some(ended)) if ended.success() => return Ok(()),
            Ok(Some(ended)) => {
                return Err(io::Error::other(format!("the agent did not start: {ended}")));
            }
            // This program does not keep the ends of its children.
            Err(why) if why.raw_os_error() == Some(Errno::CHILD.raw_os_error()) => return Ok(()),
            Err(why) => return Err(why),
            Ok(None) if since_boot() >= until => {
                let _ = child.kill();
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the agent did not start"));
            }
            Ok(None) => std::thread::sleep(LOOK),
        }
    }
}

/// The program of the agent: the given one, else `dlcmd` beside this program, else in PATH.
fn program(task: &TaskOptions) -> PathBuf {
    let beside = || {
        let beside = std::env::current_exe().ok()?.with_file_name("dlcmd");
        File::open(&beside).is_ok().then_some(beside)
    };
    task.program.clone().or_else(beside).unwrap_or_else(|| PathBuf::from("dlcmd"))
}
