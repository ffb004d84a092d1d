//! The place of a mount: what is there already.
//!
//! Must hold: a dead mount is removed, a living one stays. A mount that gives no answer blocks the
//! command for a bounded time only.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use dl_fuse::{Mounted, absolute, mount_at, status_of, unmount_at};
use dl_runtime::since_boot;

use super::Settings;
use super::options::MountOptions;
use crate::context::Context;
use crate::exit::Failure;
use crate::text::shown;

/// Time for other commands that mount at the same place, and time between two looks.
const LOCK_TIMEOUT: Duration = Duration::from_secs(300);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Time for an answer of a mount.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The absolute path of the mount point.
pub(super) fn dir_of(settings: &Settings) -> Result<PathBuf, Failure> {
    let failed = |why| Failure::local(format!("mount at {}", shown(&settings.dir)), why);
    if settings.dir.starts_with("/dev/fd") {
        return Ok(settings.dir.clone());
    }
    absolute(&settings.dir).map_err(failed)
}

/// The name of the device.
pub(super) fn source_of(settings: &Settings) -> String {
    settings.address.to_string()
}

/// Makes the place ready; none if the dataset is mounted there already. The file holds the place until
/// files can be read.
pub(super) fn prepare(
    settings: &Settings,
    options: &MountOptions,
    context: &Context,
) -> Result<Option<Option<File>>, Failure> {
    let dir = dir_of(settings)?;
    if dir.starts_with("/dev/fd") {
        return Ok(Some(None));
    }
    let failed = |why| Failure::local(format!("mount at {}", shown(&dir)), why);
    let until = since_boot().saturating_add(LOCK_TIMEOUT);
    loop {
        if let Some(mounted) = mount_at(&dir).map_err(failed)? {
            if !make_room(&mounted, settings, context)? {
                return Ok(None);
            }
            continue;
        }
        // The lock of the folder below the mount: one command at a time mounts there.
        let folder = File::open(&dir).map_err(failed)?;
        let is_locked = folder.try_lock().is_ok();
        if is_locked && mount_at(&dir).map_err(failed)?.is_none() {
            check_folder(&dir, options.nonempty)?;
            return Ok(Some(Some(folder)));
        }
        if since_boot() >= until {
            let dir = shown(&dir);
            return Err(Failure::failed(format!("mount at {dir}: another command mounts there")));
        }
        thread::sleep(POLL_INTERVAL);
    }
}

/// Removes a dead mount; false for a living mount of the same dataset.
fn make_room(mounted: &Mounted, settings: &Settings, context: &Context) -> Result<bool, Failure> {
    let dir = &mounted.dir;
    let is_same = mounted.source == source_of(settings);
    match state_of(mounted) {
        State::Dead => {
            context.notes.note(format_args!("removing the dead mount at {}", shown(dir)));
        }
        State::Held if is_same => {
            let source = &mounted.source;
            context.notes.note(format_args!("{source} is mounted at {} already", shown(dir)));
            return Ok(false);
        }
        State::Alone if is_same => context.notes.note(format_args!(
            "the mount at {} has lost its holder: a new mount takes its place",
            shown(dir)
        )),
        State::Held | State::Alone => {
            let (source, dir) = (&mounted.source, shown(dir));
            return Err(Failure::failed(format!(
                "mount at {dir}: {source} is mounted there; dlcmd umount {dir} ends the mount"
            )));
        }
        State::Silent => {
            let dir = shown(dir);
            return Err(Failure::failed(format!(
                "mount at {dir}: a mount there gives no answer; dlcmd umount --lazy {dir} ends it"
            )));
        }
    }
    let failed = |why| Failure::local(format!("mount at {}", shown(dir)), why);
    unmount_at(dir, true).map_err(failed)?;
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
    let answered = started.ok().and_then(|_| receiver.recv_timeout(TIMEOUT).ok());
    match answered {
        None => State::Silent,
        Some(Err(rustix::io::Errno::NOTCONN)) => State::Dead,
        Some(Err(rustix::io::Errno::ACCESS)) => State::Held,
        Some(_) if mounted.user != Some(rustix::process::geteuid().as_raw()) => State::Held,
        Some(_) => match status_of(mounted) {
            Ok(None) if !has_holder(mounted) => State::Alone,
            Ok(_) | Err(_) => State::Held,
        },
    }
}

/// Whether a process looks like the holder of a mount, whose socket may lie in another folder.
fn has_holder(mounted: &Mounted) -> bool {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    processes.filter_map(|process| fs::read(process.path().join("cmdline")).ok()).any(|line| {
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let has = |word: &[u8]| words.contains(&word);
        let source = words.iter().position(|word| *word == mounted.source.as_bytes());
        // A relative path may mean any folder.
        let dir = source.and_then(|at| words.get(at + 1)).copied().unwrap_or_default();
        let may_be_it = dir == mounted.dir.as_os_str().as_bytes() || !dir.starts_with(b"/");
        source.is_some() && may_be_it && has(b"mount") && (has(b"hold") || has(b"--foreground"))
    })
}
