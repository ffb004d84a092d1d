//! The place of a mount: what is there already.
//!
//! Must hold: a dead mount is removed, a living one stays. A mount that gives no answer blocks the
//! command for a bounded time only.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dl_fuse::{Mounted, absolute, mount_at, status_of, unmount_at};

use super::Arguments;
use super::options::MountOptions;
use crate::context::Context;
use crate::exit::Failure;
use crate::text::shown;

/// Time for an answer of a mount.
const PATIENCE: Duration = Duration::from_secs(5);

/// The absolute path of the mount point.
pub(super) fn dir_of(arguments: &Arguments) -> Result<PathBuf, Failure> {
    let failed = |why| Failure::local(format!("mount at {}", shown(&arguments.dir)), why);
    if arguments.dir.starts_with("/dev/fd") {
        return Ok(arguments.dir.clone());
    }
    absolute(&arguments.dir).map_err(failed)
}

/// The name of the device.
pub(super) fn source_of(arguments: &Arguments) -> String {
    arguments.address.to_string()
}

/// Makes the place ready; false if the dataset is mounted there already.
pub(super) fn prepare(
    arguments: &Arguments,
    options: &MountOptions,
    context: &Context,
) -> Result<bool, Failure> {
    let dir = dir_of(arguments)?;
    if dir.starts_with("/dev/fd") {
        return Ok(true);
    }
    let failed = |why| Failure::local(format!("mount at {}", shown(&dir)), why);
    while let Some(mounted) = mount_at(&dir).map_err(failed)? {
        let is_same = mounted.source == source_of(arguments);
        match state_of(&mounted) {
            State::Dead => {
                context.notes.note(format_args!("removing the dead mount at {}", shown(&dir)));
            }
            State::Held if is_same => {
                let source = &mounted.source;
                context.notes.note(format_args!("{source} is mounted at {} already", shown(&dir)));
                return Ok(false);
            }
            State::Alone if is_same => context.notes.note(format_args!(
                "the mount at {} has lost its holder: a new mount takes its place",
                shown(&dir)
            )),
            State::Held | State::Alone => {
                let (source, dir) = (&mounted.source, shown(&dir));
                return Err(Failure::failed(format!(
                    "mount at {dir}: {source} is mounted there; dlcmd umount {dir} ends the mount"
                )));
            }
            State::Silent => {
                let dir = shown(&dir);
                return Err(Failure::failed(format!(
                    "mount at {dir}: a mount there gives no answer; dlcmd umount --lazy {dir} ends it"
                )));
            }
        }
        unmount_at(&dir, true).map_err(failed)?;
    }
    check_folder(&dir, options.nonempty)?;
    Ok(true)
}

fn check_folder(dir: &Path, may_have_files: bool) -> Result<(), Failure> {
    let failed = |why: io::Error| Failure::local(format!("mount at {}", shown(dir)), why);
    let mut entries = fs::read_dir(dir).map_err(failed)?;
    if !may_have_files && entries.next().is_some() {
        let dir = shown(dir);
        return Err(Failure::partly(format!(
            "mount at {dir}: the folder is not empty; -o nonempty hides its files during the mount"
        )));
    }
    Ok(())
}

/// The state of a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Answers, and has a holder; also a mount of another user.
    Held,
    /// Answers, but no holder will start the next server.
    Alone,
    /// The kernel has lost the connection.
    Dead,
    /// Gives no answer.
    Silent,
}

/// Asks a mount by statfs, the only question that the kernel never answers by itself.
pub(super) fn state_of(mounted: &Mounted) -> State {
    let (sender, receiver) = mpsc::channel();
    let dir = mounted.dir.clone();
    // A thread that waits for a silent mount ends with the process.
    let started = thread::Builder::new().spawn(move || _ = sender.send(rustix::fs::statfs(&dir)));
    let answered = started.ok().and_then(|_| receiver.recv_timeout(PATIENCE).ok());
    match answered {
        None => State::Silent,
        Some(Err(rustix::io::Errno::NOTCONN)) => State::Dead,
        Some(Err(rustix::io::Errno::ACCESS)) => State::Held,
        Some(_) => match status_of(mounted) {
            Ok(None) => State::Alone,
            Ok(Some(_)) | Err(_) => State::Held,
        },
    }
}
