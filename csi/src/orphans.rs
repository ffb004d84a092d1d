//! Children that nobody waits for: the first process of a container inherits them.
//!
//! Must hold: a child that a thread waits for is left to it.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use dl_runtime::locked;
use rustix::process::{Pid, WaitOptions, waitpid};

/// Pause between two looks.
const PERIOD: Duration = Duration::from_secs(5);

/// The children that threads wait for.
static OWN: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

fn own() -> MutexGuard<'static, BTreeSet<u32>> {
    locked(&OWN)
}

/// Starts a child for which a thread will wait.
pub(crate) fn spawn(command: &mut Command) -> io::Result<Child> {
    // Held over the start: the child must be known before it can end.
    let mut own = own();
    let child = command.spawn()?;
    own.insert(child.id());
    Ok(child)
}

/// The wait for a child has ended.
pub(crate) fn ended(child: &Child) {
    own().remove(&child.id());
}

/// Takes the ends of all other children, in a thread.
pub(crate) fn reap_in_background() -> io::Result<()> {
    let reap = || {
        loop {
            thread::sleep(PERIOD);
            reap();
        }
    };
    thread::Builder::new().name("orphans".to_owned()).spawn(reap).map(drop)
}

fn reap() {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    for id in ids.filter(|id| is_zombie_of_this(*id)) {
        let own = own();
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
        if !own.contains(&id) && pid.is_some() {
            // A child that is gone meanwhile is no error.
            let _ = waitpid(pid, WaitOptions::NOHANG);
        }
    }
}

/// Whether a process is a child of this process that has ended (proc_pid_stat(5)).
fn is_zombie_of_this(id: u32) -> bool {
    let Ok(line) = fs::read_to_string(format!("/proc/{id}/stat")) else { return false };
    let mut words = line.rsplit(')').next().unwrap_or_default().split_whitespace();
    words.next() == Some("Z") && words.next() == Some(&std::process::id().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_unknown_children_are_taken_and_others_left() {
        let mut known = spawn(&mut Command::new("true")).unwrap();
        let mut unknown = Command::new("true").spawn().unwrap();
        let is_zombie = |child: &Child| is_zombie_of_this(child.id());
        while !is_zombie(&known) || !is_zombie(&unknown) {
            thread::yield_now();
        }
        reap();
        assert!(is_zombie(&known) && !is_zombie(&unknown));
        assert!(known.wait().unwrap().success());
        assert!(unknown.wait().is_err(), "there is nothing to wait for");
        ended(&known);
    }
}
