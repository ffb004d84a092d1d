//! The files of agents in the runtime folder: socket, lock and log, named by the hash of the task.
//!
//! Must hold: socket and lock are removed only under the lock, so no file of a starting agent is
//! removed. A lock counts only while its file has its name. Files of the user stay.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::OFlags;

/// Number of stored logs of ended agents; older logs are removed.
const LOGS_MAX: usize = 16;

const LOCK: &str = "lock";
const SOCKET: &str = "sock";
const LOG: &str = "log";

/// The files of an agent.
#[derive(Debug, Clone)]
pub struct AgentFiles {
    lock: PathBuf,
}

impl AgentFiles {
    pub(super) fn new(folder: &Path, name: &str) -> Self {
        Self { lock: folder.join(format!("{name}.{LOCK}")) }
    }

    /// The files of the agent that holds a lock.
    ///
    /// # Errors
    /// When the descriptor is no lock of an agent, or `/proc` is missing.
    pub fn of_lock(lock: impl AsFd) -> io::Result<Self> {
        let descriptor = lock.as_fd().as_raw_fd();
        let lock = fs::read_link(format!("/proc/self/fd/{descriptor}"))?;
        match lock.extension() {
            Some(ending) if ending == LOCK => Ok(Self { lock }),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        }
    }

    pub(super) fn lock(&self) -> &Path {
        &self.lock
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.lock.with_extension(SOCKET)
    }

    /// The log of the agent. A full log gets the ending `.1`, in place of the log before.
    pub fn log(&self) -> PathBuf {
        self.lock.with_extension(LOG)
    }

    /// Takes the lock; none while an agent holds the lock. `creates` a missing file.
    pub(super) fn try_lock(&self, creates: bool) -> io::Result<Option<File>> {
        let flags = (OFlags::NOFOLLOW | OFlags::CLOEXEC).bits() as i32;
        loop {
            let lock = OpenOptions::new()
                .write(true)
                .create(creates)
                .truncate(false)
                .mode(0o600)
                .custom_flags(flags)
                .open(&self.lock)
                .map_err(|why| of(&self.lock, &why))?;
            match lock.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(why)) => return Err(why),
            }
            // An ending agent may have removed the file in between.
            if self.is_named(&lock) {
                return Ok(Some(lock));
            }
            if !creates {
                return Ok(None);
            }
        }
    }

    fn is_named(&self, lock: &File) -> bool {
        let inode = |found: fs::Metadata| (found.dev(), found.ino());
        let named = fs::symlink_metadata(&self.lock).map(inode).ok();
        named.is_some() && named == lock.metadata().map(inode).ok()
    }

    /// Removes socket and lock at the end of the agent that holds `lock`.
    pub fn remove(&self, lock: &File) {
        if self.is_named(lock) {
            // The next agent replaces files that stay.
            let _ = fs::remove_file(self.socket());
            let _ = fs::remove_file(&self.lock);
        }
    }

    /// Removes the files of ended agents from the folder, except for the newest logs. The folder may
    /// hold files of the user: only names of agents count.
    pub fn clean(&self) {
        let Some(folder) = self.lock.parent() else { return };
        let Ok(entries) = fs::read_dir(folder) else { return };
        let paths = entries.flatten().map(|entry| entry.path());
        let paths: Vec<PathBuf> = paths.filter(|path| is_of_agent(path)).collect();
        let of = |ending: &'static str| {
            let paths =
                paths.iter().filter(move |path| path.extension().is_some_and(|e| e == ending));
            paths.map(|path| Self { lock: path.with_extension(LOCK) })
        };
        for files in of(LOCK).filter(|files| files.lock != self.lock) {
            if let Ok(Some(lock)) = files.try_lock(false) {
                files.remove(&lock);
            }
        }
        let mut logs: Vec<(SystemTime, PathBuf)> = of(LOG)
            .filter(|files| !files.lock.exists())
            .filter_map(|files| Some((files.log().metadata().ok()?.modified().ok()?, files.log())))
            .collect();
        logs.sort_unstable();
        for (_, log) in logs.iter().rev().skip(LOGS_MAX) {
            let _ = fs::remove_file(log);
            let _ = fs::remove_file(older(log));
        }
    }
}

/// Whether a file has the name of an agent: 32 hexadecimal digits.
fn is_of_agent(path: &Path) -> bool {
    let digits = path.file_stem().map(|stem| stem.as_encoded_bytes());
    digits.is_some_and(|digits| digits.len() == 32 && digits.iter().all(u8::is_ascii_hexdigit))
}

/// An error with the path of its file.
pub(super) fn of(path: &Path, why: &io::Error) -> io::Error {
    io::Error::new(why.kind(), format!("{}: {why}", path.display()))
}

/// The log before a log.
pub fn older(log: &Path) -> PathBuf {
    let mut older = log.as_os_str().to_owned();
    older.push(".1");
    older.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn create(path: PathBuf) {
        File::create(path).unwrap();
    }

    /// The files of the agent with a number.
    fn agent(folder: &Path, number: usize) -> AgentFiles {
        AgentFiles::new(folder, &format!("{number:032x}"))
    }

    #[test]
    fn an_agent_leaves_its_log_and_the_next_cleans_up() {
        let folder = tempfile::tempdir().unwrap();
        let files = [1, 2, 3, 4].map(|number| agent(folder.path(), number));
        let [ended, killed, alive, own] = &files;
        let mut locks = files.each_ref().map(|files| {
            create(files.socket());
            create(files.log());
            files.try_lock(true).unwrap()
        });
        assert!(alive.try_lock(true).unwrap().is_none(), "two agents of a name");
        let [lock, killed_lock, ..] = &mut locks;
        ended.remove(lock.as_ref().unwrap());
        assert!(!ended.lock().exists() && !ended.socket().exists());
        *killed_lock = None;
        own.clean();
        assert!(!killed.lock().exists() && !killed.socket().exists());
        let left = names(folder.path()).join(" ").replace(&"0".repeat(31), "");
        assert_eq!(left, "1.log 2.log 3.lock 3.log 3.sock 4.lock 4.log 4.sock");
        let named = AgentFiles::of_lock(locks[3].as_ref().unwrap()).unwrap();
        assert_eq!(named.log(), own.log());
    }

    #[test]
    fn a_lock_without_its_name_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let files = AgentFiles::new(folder.path(), "task");
        let old = files.try_lock(true).unwrap().unwrap();
        files.remove(&old);
        let new = files.try_lock(true).unwrap().unwrap();
        // The old agent ends after the new agent has begun.
        files.remove(&old);
        assert!(files.lock().exists());
        assert!(files.try_lock(true).unwrap().is_none());
        drop(new);
        assert!(files.try_lock(true).unwrap().is_some());
    }

    #[test]
    fn only_the_newest_logs_of_ended_agents_stay() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..LOGS_MAX + 4 {
            let log = agent(folder.path(), number).log();
            create(older(&log));
            create(log.clone());
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(number as u64 + 1);
            File::options().write(true).open(log).unwrap().set_modified(time).unwrap();
        }
        agent(folder.path(), LOGS_MAX + 4).clean();
        let left = names(folder.path());
        assert_eq!(
            (left.len(), left[0].as_str()),
            (2 * LOGS_MAX, format!("{:032x}.log", 4).as_str())
        );
    }

    #[test]
    fn files_of_the_user_stay() {
        let folder = tempfile::tempdir().unwrap();
        let logs = (0..2 * LOGS_MAX).map(|number| format!("run{number}.log"));
        let mut users: Vec<String> =
            logs.chain(["Cargo.lock".into(), "Cargo.sock".into()]).collect();
        users.iter().for_each(|name| create(folder.path().join(name)));
        agent(folder.path(), 1).clean();
        users.sort();
        assert_eq!(names(folder.path()), users);
    }
}
