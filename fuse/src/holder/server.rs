//! A server process, and the events of its life.
//!
//! Must hold: the end of a server is an event, after all of its messages.

use std::io;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use dl_node::Socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::Event;
use crate::messages::FromServer;

/// A server may serve for months without a message.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3_600);

/// A running server.
#[derive(Debug)]
pub(super) struct ServerProcess {
    pub(super) number: u64,
    pub(super) socket: Arc<Socket>,
    pid: u32,
    process: OwnedFd,
}

impl ServerProcess {
    /// Starts a server; its socket is its stdin.
    pub(super) fn start(
        mut command: Command,
        number: u64,
        events: Sender<Event>,
    ) -> io::Result<Self> {
        let (own, other) = Socket::pair()?;
        command.stdin(Stdio::from(OwnedFd::from(other)));
        let child = command.spawn()?;
        drop(command);
        let pid = child.id();
        let raw =
            i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
        let process = pidfd_open(raw, PidfdFlags::empty())?;
        let socket = Arc::new(own);
        let heard = Arc::clone(&socket);
        thread::Builder::new()
            .name(format!("server {number}"))
            .spawn(move || watch(child, number, &heard, &events))?;
        Ok(Self { number, socket, pid, process })
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// Waits for the end of the process, for a bounded time.
    pub(super) fn wait(&self, patience: Duration) {
        let mut waits = [PollFd::new(&self.process, PollFlags::IN)];
        let patience = Timespec::try_from(patience).ok();
        let _ = poll(&mut waits, patience.as_ref());
    }

    pub(super) fn kill(&self) {
        // An ended process needs no signal.
        let _ = pidfd_send_signal(&self.process, Signal::KILL);
    }
}

/// Passes on the messages of a server and its end.
fn watch(mut child: Child, server: u64, socket: &Socket, events: &Sender<Event>) {
    loop {
        match socket.receive::<FromServer>(FOR_EVER) {
            Ok(Some((message, _))) => {
                if events.send(Event::Said { server, message }).is_err() {
                    break;
                }
            }
            Err(why) if why.kind() == io::ErrorKind::TimedOut => {}
            Ok(None) | Err(_) => break,
        }
    }
    // The end of the socket is the end of the process.
    let is_unmounted = child.wait().is_ok_and(|status| status.success());
    let _ = events.send(Event::Ended { server, is_unmounted });
}
