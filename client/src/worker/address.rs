//! The folders for finding the agent of a task, and the start of the agent by its first worker.
//!
//! Must hold: each task and user has a single agent. The socket file of an ended agent does not
//! block a new agent. An agent inherits nothing from its starter except the listener and the lock.
//! No folder of another user is used.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use dl_node::{Servers, Socket, bind_at};
use dl_runtime::since_boot;
use rustix::fs::Access;
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_128;

use super::agent_files::{AgentFiles, of};
use crate::task::TaskOptions;

/// Time for the program that starts the agent.
const SPAWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between two checks of the program.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// The socket and the lock of the agent of a task and user.
#[derive(Debug, Clone)]
pub(crate) struct AgentAddress {
    /// The preferred folder first.
    folders: Vec<PathBuf>,
    name: String,
}

impl AgentAddress {
    /// The address for a task. Workers with different keys have different agents.
    pub(crate) fn of(task: &TaskOptions, servers: &Servers) -> Self {
        let name = Self::name_of(&task.name, servers);
        Self { folders: task.folders(), name }
    }

    /// The name of the files for a task, and for a user with a key.
    pub(crate) fn name_of(task: &str, servers: &Servers) -> String {
        let key = servers.key.as_deref().unwrap_or_default();
        let words = [task, &servers.user, key].map(|word| word.len().to_string() + word);
        format!("{:032x}", xxh3_128(words.concat().as_bytes()))
    }

    fn files(&self, folder: &Path) -> AgentFiles {
        AgentFiles::new(folder, &self.name)
    }

    /// Connects to the agent, if one listens in any of the folders.
    pub(crate) fn connect(&self) -> io::Result<Socket> {
        let (mut absent, mut unusable) = (None, Vec::new());
        for (index, folder) in self.folders.iter().enumerate() {
            let checked = self.check(index, folder);
            let is_usable = checked.is_ok();
            match checked.and_then(|()| Socket::connect(&self.files(folder).socket())) {
                Err(why) if is_absence(&why) => absent = Some(why),
                Err(why) if !is_usable => unusable.push(why.to_string()),
                connected => return connected,
            }
        }
        Err(absent.unwrap_or_else(|| no_folder(&unusable)))
    }

    /// The process id of the agent, from the lock file.
    pub(crate) fn holder(&self) -> Option<u32> {
        self.folders.iter().enumerate().find_map(|(index, folder)| {
            // A file of another user could block the read for ever.
            self.check(index, folder).ok()?;
            fs::read_to_string(self.files(folder).lock()).ok()?.trim().parse().ok()
        })
    }

    /// The folders that can't be used, with the causes, and the folder in their place.
    pub(crate) fn passed_over(&self) -> Option<String> {
        let mut unusable = Vec::new();
        for (index, folder) in self.folders.iter().enumerate() {
            match self.make(index, folder) {
                Err(why) => unusable.push(why.to_string()),
                Ok(()) if unusable.is_empty() => return None,
                Ok(()) => {
                    let (folder, unusable) = (folder.display(), unusable.join("; "));
                    return Some(format!(
                        "the node's agent has its socket in {folder}: {unusable}"
                    ));
                }
            }
        }
        None
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
        let mut unusable = Vec::new();
        for (index, folder) in self.folders.iter().enumerate() {
            match self.make(index, folder).and_then(|()| self.claim_in(folder)) {
                Ok(claimed) => return Ok(claimed),
                Err(why) => unusable.push(why.to_string()),
            }
        }
        Err(no_folder(&unusable))
    }

    /// The first folder that can be used.
    pub(crate) fn folder(&self) -> io::Result<PathBuf> {
        let mut unusable = Vec::new();
        for (index, folder) in self.folders.iter().enumerate() {
            match self.make(index, folder) {
                Ok(()) => return Ok(folder.clone()),
                Err(why) => unusable.push(why.to_string()),
            }
        }
        Err(no_folder(&unusable))
    }

    fn claim_in(&self, folder: &Path) -> io::Result<Option<(OwnedFd, OwnedFd)>> {
        let files = self.files(folder);
        let Some(lock) = files.try_lock(true)? else { return Ok(None) };
        let path = files.socket();
        match fs::remove_file(&path) {
            Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(of(&path, &why)),
            _ => {}
        }
        let listener = bind_at(&path).map_err(|why| of(&path, &why))?;
        Ok(Some((listener, lock.into())))
    }

    /// Makes a folder of the user alone, unless there is one.
    fn make(&self, index: usize, folder: &Path) -> io::Result<()> {
        // Only the cache folder of the user may lack its parent.
        let is_cache = self.folders.len() > 1 && index + 1 == self.folders.len();
        let made = fs::DirBuilder::new().mode(0o700).recursive(is_cache).create(folder);
        match made {
            Err(why) if why.kind() != io::ErrorKind::AlreadyExists => {
                return Err(of(folder, &why));
            }
            _ => self.check(index, folder)?,
        }
        let written = rustix::fs::access(folder, Access::WRITE_OK).map_err(io::Error::from);
        written.map_err(|why| of(folder, &why))
    }

    /// Checks for a folder of the user alone, because processes trust the memory behind its sockets.
    /// A folder that nobody chose must also lie in a folder of the user.
    fn check(&self, index: usize, folder: &Path) -> io::Result<()> {
        let found = fs::symlink_metadata(folder).map_err(|why| of(folder, &why))?;
        let user = rustix::process::geteuid().as_raw();
        let why = if !found.is_dir() {
            "is no folder".to_owned()
        } else if found.uid() != user {
            format!("belongs to user {}, not to user {user}", found.uid())
        } else if found.mode() & 0o077 != 0 {
            format!("has mode {:o}: other users may enter", found.mode() & 0o777)
        } else if index > 0 && !is_of_user(folder, user)? {
            "lies in a folder that another user may change".to_owned()
        } else {
            return Ok(());
        };
        let why = format!("{} {why}", folder.display());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
    }
}

/// Whether only the user may change the parent of a folder.
fn is_of_user(folder: &Path, user: u32) -> io::Result<bool> {
    let parent = fs::metadata(folder.parent().unwrap_or(folder))?;
    Ok(parent.uid() == user && parent.mode() & 0o022 == 0)
}

/// Whether an error means that no agent listens.
pub(crate) fn is_absence(why: &io::Error) -> bool {
    matches!(why.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn no_folder(unusable: &[String]) -> io::Error {
    let why = format!(
        "no folder for the agent's socket can be used: {}; set DIESEL_RUNTIME_DIR to a folder of the \
         user alone, with mode 0700",
        unusable.join("; ")
    );
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Runs the program that starts the agent and then ends, so the agent has no parent.
fn spawn(task: &TaskOptions, listener: Stdio, lock: Stdio) -> io::Result<()> {
    let program = TaskOptions::program_of(Some(task));
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
    let until = since_boot().saturating_add(SPAWN_TIMEOUT);
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
            Ok(None) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn address(folders: &[PathBuf]) -> AgentAddress {
        AgentAddress { folders: folders.to_vec(), name: "agent".to_owned() }
    }

    #[test]
    fn the_first_private_folder_is_used_and_others_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let below = |name| folder.path().join(name);
        for (name, mode) in [("open", 0o755), ("parent", 0o777), ("own", 0o700)] {
            fs::create_dir(below(name)).unwrap();
            fs::set_permissions(below(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::write(below("file"), "").unwrap();
        std::os::unix::fs::symlink(below("own"), below("link")).unwrap();
        let unusable = ["open", "file", "file/below", "link", "missing/below", "parent/new"];
        let mut folders: Vec<_> = unusable.map(below).into();
        folders.extend([below("own/new"), below("own/last")]);
        let address = address(&folders);
        assert!(is_absence(&address.connect().unwrap_err()));
        let (listener, lock) = address.claim().unwrap().unwrap();
        assert!(below("own/new/agent.sock").exists() && !below("own/last").exists());
        assert!(address.claim().unwrap().is_none(), "the lock is held");
        assert!(address.connect().is_ok());
        let note = address.passed_over().unwrap();
        assert!(note.contains(&format!("socket in {}: ", below("own/new").display())), "{note}");
        for name in unusable {
            assert!(note.contains(&below(name).display().to_string()), "{name} in {note}");
        }
        drop((listener, lock));
        assert!(is_absence(&address.connect().unwrap_err()));
    }

    #[test]
    fn without_a_usable_folder_the_error_names_each_with_its_cause() {
        let folder = tempfile::tempdir().unwrap();
        let open = folder.path().join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o750)).unwrap();
        let address = address(&[open]);
        for error in [address.claim().unwrap_err(), address.connect().unwrap_err()] {
            let text = error.to_string();
            assert!(
                text.contains("open has mode 750") && text.contains("DIESEL_RUNTIME_DIR"),
                "{text}"
            );
        }
        assert_eq!(address.passed_over(), None);
    }
}
