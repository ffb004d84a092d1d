//! Ctrl-C: first a request to stop, then the end of the process.
//!
//! Must hold: acknowledged data stays, so nothing is undone. A command that checks the request
//! between two files leaves no temporary file. A hanging command ends after a grace period, or at
//! once with a second Ctrl-C, with the same exit code.

use std::io;
use std::process;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use dl_runtime::{Shutdown, SystemClock};
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Exit;

/// Time for a command to notice the request.
const GRACE: Duration = Duration::from_secs(2);
/// Time for running work to end by itself, a part of the grace period.
const PATIENCE: Duration = Duration::from_secs(1);
/// Interval between two checks of the request.
const LOOK: Duration = Duration::from_millis(50);

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
            while ended.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if shutdown.is_requested() {
                    waited += LOOK;
                }
                if waited >= PATIENCE {
                    return give_up();
                }
            }
        });
        let done = work();
        drop(working);
        done
    })
}

/// Installs the handler of Ctrl-C: calls `tell` once, requests a shutdown, and ends the process
/// after the grace period.
pub(crate) fn watch(announce: impl Fn() + Send + 'static) -> io::Result<Shutdown> {
    let shutdown = Shutdown::new().with_grace(GRACE);
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let mut interrupt = {
        let _inside = runtime.enter();
        signal(SignalKind::interrupt())?
    };
    let requested = shutdown.clone();
    thread::Builder::new().name("interrupt".to_owned()).spawn(move || {
        runtime.block_on(async {
            let clock = SystemClock::new();
            let ask = async {
                while interrupt.recv().await.is_some() {
                    if !requested.is_requested() {
                        announce();
                    }
                    requested.request();
                }
            };
            tokio::select! {
                () = requested.expired(&clock) => {}
                () = ask => {}
            }
        });
        process::exit(Exit::Interrupted as i32);
    })?;
    Ok(shutdown)
}
