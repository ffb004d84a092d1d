//! The end of a bench by a signal.
//!
//! Must hold: no process and no folder of the bench stays, also no agent without a parent.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::exit;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use dl_runtime::Shutdown;
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime;

/// Exit code after SIGTERM.
const TERMINATED: i32 = 143;

/// Rounds of kills: a process may start another process meanwhile.
const ROUNDS: usize = 3;

/// Ends all processes of this bench and removes its folders at SIGTERM or SIGINT.
pub(super) fn end_with_all(folders: Vec<PathBuf>) -> Result<()> {
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let thread = thread::Builder::new().name("signals".to_owned());
    thread.spawn(move || {
        runtime.block_on(async {
            match Shutdown::new().on_signals() {
                Ok(shutdown) => shutdown.requested().await,
                Err(_) => std::future::pending().await,
            }
        });
        for _ in 0..ROUNDS {
            for process in processes_of(&folders) {
                // The process may have ended.
                let _ = kill_process(process, Signal::KILL);
            }
            thread::sleep(Duration::from_millis(50));
        }
        folders.iter().for_each(|folder| _ = fs::remove_dir_all(folder));
        exit(TERMINATED);
    })?;
    Ok(())
}

/// Other processes with a folder in their arguments or variables, and children of this process.
fn processes_of(folders: &[PathBuf]) -> Vec<Pid> {
    let own = rustix::process::getpid();
    let is_of = |process: &Path| {
        let has = |file: &str| {
            let bytes = fs::read(process.join(file)).unwrap_or_default();
            folders.iter().any(|folder| {
                let folder = folder.as_os_str().as_bytes();
                bytes.windows(folder.len()).any(|window| window == folder)
            })
        };
        let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
        let parent = stat.rsplit_once(')').and_then(|(_, words)| words.split_whitespace().nth(1));
        parent.is_some_and(|parent| parent == own.to_string()) || has("cmdline") || has("environ")
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| {
        let process = Pid::from_raw(entry.file_name().to_str()?.parse().ok()?)?;
        (process != own && is_of(&entry.path())).then_some(process)
    });
    processes.collect()
}
