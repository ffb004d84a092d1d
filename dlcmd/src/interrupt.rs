//! Ctrl-C, SIGTERM and SIGHUP: first a request to stop, then the end of the process.
//!
//! Must hold: acknowledged data stays, so nothing is undone. A command that checks the request
//! between two files leaves no temporary file. A hanging command ends after a grace period, or at
//! once with a second Ctrl-C, with the same exit code. An agent takes leave.

use std::fs;
use std::io;
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use dl_runtime::{Shutdown, SystemClock};
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Exit;

/// Time for a command to notice the request.
const GRACE: Duration = Duration::from_secs(2);
/// Time for running work to end by itself, a part of the grace period.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Interval between two checks of the request.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Runs `work`. If a stop is requested and the work does not end soon, calls `give_up` to end the
/// work early.
pub(crate) fn or_given_up<T>(
    shutdown: &Shutdown,
    work: impl FnOnce() -> T,
    give_up: impl FnOnce() + Send,
) -> T {
    let (working, ended) = mpsc::channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut waited = Duration::ZERO;
            while ended.recv_timeout(POLL_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if shutdown.is_requested() {
                    waited += POLL_INTERVAL;
                }
                if waited >= TIMEOUT {
                    return give_up();
                }
            }
        });
        let done = work();
        drop(working);
        done
    })
}

/// The request to stop the command.
#[derive(Debug)]
pub(crate) struct Interrupt {
    pub(crate) shutdown: Shutdown,
    exit: Arc<OnceLock<Exit>>,
}

impl Interrupt {
    /// The exit code for the first signal.
    pub(crate) fn exit(&self) -> Exit {
        self.exit.get().copied().unwrap_or(Exit::Interrupted)
    }
}

/// Installs the signal handlers: the first signal calls `announce` with its name and requests a
/// shutdown. The process ends after the grace period. Without `hangup_stops`, SIGHUP has another
/// meaning for the command.
pub(crate) fn watch(
    announce: impl Fn(&str) + Send + 'static,
    hangup_stops: bool,
) -> io::Result<Interrupt> {
    let shutdown = Shutdown::new().with_grace(GRACE);
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    // Before the handler hides the setting of `nohup`.
    let is_hangup_ignored = !hangup_stops || is_ignored(HANGUP);
    let (mut interrupt, mut terminate, mut hangup) = {
        let _inside = runtime.enter();
        let terminate = signal(SignalKind::terminate())?;
        (signal(SignalKind::interrupt())?, terminate, signal(SignalKind::hangup())?)
    };
    let (requested, exit) = (shutdown.clone(), Arc::new(OnceLock::new()));
    let first = Arc::clone(&exit);
    thread::Builder::new().name("interrupt".to_owned()).spawn(move || {
        runtime.block_on(async {
            let clock = SystemClock::new();
            let ask = async {
                loop {
                    let (exit, name) = tokio::select! {
                        _ = interrupt.recv() => (Exit::Interrupted, "Ctrl-C"),
                        _ = terminate.recv() => (Exit::Terminated, "SIGTERM"),
                        _ = hangup.recv(), if !is_hangup_ignored => (Exit::HungUp, "SIGHUP"),
                    };
                    if first.set(exit).is_ok() {
                        announce(name);
                        requested.request();
                    } else if exit == Exit::Interrupted {
                        // Service managers repeat the other signals without a person in a hurry.
                        requested.request();
                    }
                }
            };
            tokio::select! {
                () = requested.expired(&clock) => {}
                () = ask => {}
            }
        });
        process::exit(first.get().copied().unwrap_or(Exit::Interrupted) as i32);
    })?;
    Ok(Interrupt { shutdown, exit })
}

/// The number of SIGHUP.
const HANGUP: u32 = 1;

/// Whether the process was started with a signal ignored.
fn is_ignored(signal: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    (ignored.unwrap_or(0) >> (signal - 1)) & 1 == 1
}
