//! Mounts of the driver: the connection with the kernel, and the places in pods.
//!
//! Must hold: a mount that gives no answer blocks for a bounded time only.

use std::io;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dl_fuse::{mount_at, unmount_at};
use rustix::fs::StatFs;
use rustix::io::Errno;

/// Time for an answer of a mount.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What a mount answers.
#[derive(Debug)]
pub(crate) enum Answer {
    Sizes(StatFs),
    /// The kernel has lost the connection.
    Dead,
    /// Nothing in time, or a refusal while no server answers.
    Silent,
}

/// Asks the file system at a path.
pub(crate) fn ask(dir: &Path) -> Answer {
    let (sender, receiver) = mpsc::channel();
    let dir = dir.to_owned();
    // A thread that waits for a silent mount ends with the mount.
    let started = thread::Builder::new().spawn(move || _ = sender.send(rustix::fs::statfs(&dir)));
    match started.ok().and_then(|_| receiver.recv_timeout(TIMEOUT).ok()) {
        Some(Ok(sizes)) => Answer::Sizes(sizes),
        Some(Err(Errno::NOTCONN | Errno::CONNABORTED)) => Answer::Dead,
        Some(Err(_)) | None => Answer::Silent,
    }
}

/// Shows a mount at another place.
pub(crate) fn bind(from: &Path, to: &Path) -> io::Result<()> {
    Ok(rustix::mount::mount_bind(from, to)?)
}

/// Ends all mounts of datasets at a place, used or not.
pub(crate) fn clear(dir: &Path) -> io::Result<()> {
    while mount_at(dir)?.is_some() {
        unmount_at(dir, true)?;
    }
    Ok(())
}
