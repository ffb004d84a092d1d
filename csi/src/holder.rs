//! The holder: keeps the connections of mounts with the kernel, each in a process of its own.
//!
//! Must hold: the end of the driver ends no mount.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use dl_fuse::Report;
use dl_node::Socket;
use dl_runtime::locked;
use rustix::io::{FdFlags, fcntl_setfd};

use crate::launcher::LAUNCHER;
use crate::messages::{FromHolder, Order, ToHolder};
use crate::orphans;
use crate::sockets::serve;

/// Time for a message of the driver, and for the mount of a dataset.
const TIMEOUT: Duration = Duration::from_secs(5);
pub(crate) const MOUNT_TIMEOUT: Duration = Duration::from_secs(60);

/// The settings of a holder.
#[derive(Debug)]
pub struct Holder {
    /// Its socket.
    pub socket: PathBuf,
    /// The socket of the launcher of servers.
    pub launcher: PathBuf,
    /// The program `dlcmd`.
    pub program: PathBuf,
}

impl Holder {
    /// Serves the driver for ever.
    ///
    /// # Errors
    /// Errors of the socket, after the folder of the socket is there and may be written.
    pub fn serve(self) -> io::Result<()> {
        // One at a time: a descriptor must not leak into the process of another mount.
        let spawning = Mutex::new(());
        let path = self.socket.clone();
        serve(&path, Arc::new(move |socket: &Socket| self.answer(socket, &spawning)))
    }

    fn answer(&self, socket: &Socket, spawning: &Mutex<()>) -> io::Result<()> {
        let Some((message, files)) = socket.receive::<ToHolder>(TIMEOUT)? else { return Ok(()) };
        let answer = match message {
            ToHolder::Greet => FromHolder::Ready,
            ToHolder::Hold(order) => match self.hold(order, files, spawning) {
                Ok(answer) => answer,
                Err(why) => FromHolder::Failed { exit: 1, why: why.to_string() },
            },
        };
        socket.send(&answer, &[], TIMEOUT)
    }

    /// Starts the process of a mount, and waits until files can be read.
    fn hold(
        &self,
        mut order: Order,
        files: Vec<OwnedFd>,
        spawning: &Mutex<()>,
    ) -> io::Result<FromHolder> {
        let descriptor = files.into_iter().next().ok_or(io::ErrorKind::InvalidInput)?;
        order.place_ca()?;
        let (own, other) = Socket::pair()?;
        // The place of the connection in the new process.
        if let Some(place) = order.arguments.last_mut() {
            *place = format!("/dev/fd/{}", descriptor.as_raw_fd()).into_bytes();
        }
        let mut command = Command::new(&self.program);
        command.args(order.arguments.iter().map(|word| OsStr::from_bytes(word)));
        command.envs(&order.environment).env(LAUNCHER, &self.launcher);
        command.stdin(Stdio::from(OwnedFd::from(other))).stdout(Stdio::null());
        let child = {
            let _alone = locked(spawning);
            fcntl_setfd(&descriptor, FdFlags::empty())?;
            let child = orphans::spawn(&mut command);
            fcntl_setfd(&descriptor, FdFlags::CLOEXEC)?;
            child?
        };
        // Only the process holds the mount: its end must be the end of the mount.
        drop((descriptor, command));
        let answer = await_ready(&own);
        watch(child, !matches!(answer, FromHolder::Ready));
        Ok(answer)
    }
}

fn await_ready(own: &Socket) -> FromHolder {
    loop {
        match own.receive::<Report>(MOUNT_TIMEOUT) {
            Ok(Some((Report::Note(note), _))) => tracing::info!(note, "a mount"),
            Ok(Some((Report::Ready, _))) => return FromHolder::Ready,
            Ok(Some((Report::Failed { exit, why }, _))) => return FromHolder::Failed { exit, why },
            Ok(None) => {
                let why = "the process of the mount ended early; its messages are in the log";
                return FromHolder::Failed { exit: 1, why: why.to_owned() };
            }
            Err(why) => {
                return FromHolder::Failed { exit: 5, why: format!("no file can be read: {why}") };
            }
        }
    }
}

/// Takes the end of a process.
fn watch(mut child: Child, is_failed: bool) {
    let waiting = thread::Builder::new().spawn(move || {
        if is_failed {
            // It ends its server; one that has ended needs no signal.
            let pid = rustix::process::Pid::from_child(&child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        match child.wait() {
            Ok(status) => tracing::info!(%status, "the process of a mount ended"),
            Err(why) => tracing::warn!(%why, "wait for the process of a mount"),
        }
        orphans::ended(&child);
    });
    if let Err(why) = waiting {
        tracing::warn!(%why, "wait for the process of a mount");
    }
}

/// Asks a holder whether it lives.
///
/// # Errors
/// For a holder that does not answer.
pub fn greet_holder(path: &Path) -> io::Result<()> {
    let socket = Socket::connect(path)?;
    socket.send(&ToHolder::Greet, &[], TIMEOUT)?;
    socket.receive::<FromHolder>(TIMEOUT)?.map(drop).ok_or(io::ErrorKind::UnexpectedEof.into())
}
