//! Mounting and unmounting: by root, or by a user with `fusermount3`, or with a descriptor from
//! outside.
//!
//! Must hold: nothing here asks the file system of a mount, so a dead mount blocks nothing.

use std::ffi::{CString, OsString};
use std::fs;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use crate::channel::{Channel, DEVICE};

/// The type of the file system in /proc/mounts.
pub const TYPE: &str = "fuse.diesel";

/// The program that mounts for users.
const HELPER: &str = "fusermount3";

/// Time for the program.
const HELPER_TIMEOUT: Duration = Duration::from_secs(30);

/// The place and the rights of a mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The mount point, an absolute path; or `/dev/fd/N` for an open connection of a mount.
    pub dir: PathBuf,
    /// The name of the device: `dl://DATASET`.
    pub source: String,
    /// Whether other users may enter.
    pub allow_other: bool,
    /// Whether no program of the dataset may run.
    pub no_exec: bool,
}

/// A mount on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mounted {
    /// The mount point.
    pub dir: PathBuf,
    /// The name of the device: `dl://DATASET`.
    pub source: String,
    /// The number of the device, `MAJOR:MINOR`.
    pub device: String,
    /// The user who mounted.
    pub user: Option<u32>,
}

impl Place {
    /// The descriptor in place of a mount point.
    pub(crate) fn descriptor(&self) -> Option<i32> {
        self.dir.to_str()?.strip_prefix("/dev/fd/")?.parse().ok()
    }

    /// Leaves a descriptor in place of a mount point open in the next program of this process.
    ///
    /// # Errors
    /// For a descriptor that is not open.
    pub fn pass_on(&self) -> io::Result<()> {
        let Some(number) = self.descriptor() else { return Ok(()) };
        fs::read_link(format!("/proc/self/fd/{number}"))
            .map_err(|why| named(&format!("/dev/fd/{number}"), &why))?;
        #[expect(unsafe_code, reason = "a descriptor by its number")]
        // SAFETY: the descriptor is open, and nothing closes it during the call.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        Ok(fcntl_setfd(descriptor, FdFlags::empty())?)
    }

    /// Mounts, and gives the connection with the kernel.
    pub(crate) fn mount(&self) -> io::Result<Channel> {
        if let Some(number) = self.descriptor() {
            return inherited(number);
        }
        if rustix::process::geteuid().is_root() {
            return self.mount_as_root();
        }
        self.mount_by_helper()
    }

    /// Mounts as root, and gives the connection with the kernel, for a holder in another process.
    ///
    /// # Errors
    /// Errors of the device and of the kernel.
    pub fn connect(&self) -> io::Result<OwnedFd> {
        Ok(self.mount_as_root()?.into())
    }

    fn mount_as_root(&self) -> io::Result<Channel> {
        let channel = Channel::open().map_err(|why| named(DEVICE, &why))?;
        let number = channel.as_fd().as_raw_fd();
        let (user, group) =
            (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let mut options = format!("fd={number},rootmode=40000,user_id={user},group_id={group}");
        if self.allow_other {
            options.push_str(",default_permissions,allow_other");
        }
        let options = CString::new(options)?;
        let mut flags = MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV;
        flags.set(MountFlags::NOEXEC, self.no_exec);
        let mounted = mount(self.source.as_str(), &self.dir, TYPE, flags, options.as_c_str());
        mounted.map_err(|why| named(&self.dir.display().to_string(), &why.into()))?;
        Ok(channel)
    }

    /// Mounts by `fusermount3`, which sends the connection over a socket.
    fn mount_by_helper(&self) -> io::Result<Channel> {
        let source: String = self.source.chars().flat_map(escaped).collect();
        let mut options = format!("ro,nosuid,nodev,fsname={source},subtype=diesel");
        if self.allow_other {
            options.push_str(",default_permissions,allow_other");
        }
        if self.no_exec {
            options.push_str(",noexec");
        }
        let (own, other) = UnixStream::pair()?;
        let mut command = Command::new(HELPER);
        command.args(["-o", &options, "--"]).arg(&self.dir).env("_FUSE_COMMFD", "0");
        command
            .stdin(Stdio::from(OwnedFd::from(other)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|why| {
            let why =
                format!("{HELPER}: {why}; only root mounts without this program (package fuse3)");
            io::Error::new(io::ErrorKind::NotFound, why)
        })?;
        drop(command);
        own.set_read_timeout(Some(HELPER_TIMEOUT))?;
        let received = receive(&own);
        if received.is_err() {
            // A program without an answer in time. One that has ended needs no kill.
            let _ = child.kill();
        }
        let ended = child.wait_with_output()?;
        match received? {
            Some(descriptor) if ended.status.success() => Ok(Channel::from(descriptor)),
            _ => {
                let said = String::from_utf8_lossy(&ended.stderr).trim().replace('\n', "; ");
                Err(io::Error::other(format!("{HELPER}: {said}")))
            }
        }
    }
}

/// Receives a descriptor; none at the end of the stream.
fn receive(stream: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::io::retry_on_intr(|| {
        recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut beside, flags)
    })?;
    let rights = beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut rights) => rights.next(),
        _ => None,
    });
    Ok(rights)
}

/// A descriptor inherited from the starter of the program, or from the program before in this process.
pub(crate) fn inherited(number: i32) -> io::Result<Channel> {
    let link = fs::read_link(format!("/proc/self/fd/{number}"))
        .map_err(|why| named(&format!("/dev/fd/{number}"), &why))?;
    if link != Path::new(DEVICE) {
        let why = format!("/dev/fd/{number} is {}, not {DEVICE}", link.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    #[expect(unsafe_code, reason = "the starter of the program gave the descriptor by its number")]
    // SAFETY: the descriptor is open, as its link shows, and was opened by the starter: nothing else in
    // this process owns it.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl_setfd(&descriptor, FdFlags::CLOEXEC)?;
    Ok(Channel::from(descriptor))
}

/// The characters of a device's name in an option of `fusermount3`.
fn escaped(letter: char) -> impl Iterator<Item = char> {
    matches!(letter, ',' | '\\').then_some('\\').into_iter().chain([letter])
}

/// Ends a mount. With `is_lazy` the mount leaves its place at once, and ends with its last user.
///
/// # Errors
/// [`io::ErrorKind::ResourceBusy`] for a mount in use.
pub fn unmount_at(dir: &Path, is_lazy: bool) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        let flags = UnmountFlags::NOFOLLOW;
        let flags = if is_lazy { flags | UnmountFlags::DETACH } else { flags };
        return Ok(unmount(dir, flags)?);
    }
    let mut command = Command::new(HELPER);
    command.arg("-u").args(is_lazy.then_some("-z")).arg("--").arg(dir).stdin(Stdio::null());
    let ended = command.output().map_err(|why| named(HELPER, &why))?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr).trim().replace('\n', "; ");
    let is_busy = said.contains("busy");
    let kind = if is_busy { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, format!("{HELPER}: {said}")))
}

/// All mounts of datasets that this process sees; the latest on a place is the last.
///
/// # Errors
/// Errors of /proc.
pub fn mounts() -> io::Result<Vec<Mounted>> {
    mounts_of("self")
}

/// The processes in whose mount namespace a mount is.
pub(crate) fn keepers_of(mounted: &Mounted) -> Vec<u32> {
    let keeps = |process: &u32| {
        let mounts = mounts_of(&process.to_string()).unwrap_or_default();
        mounts.iter().any(|other| other.device == mounted.device)
    };
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = processes.filter_map(|process| process.file_name().to_str()?.parse().ok());
    numbers.filter(keeps).collect()
}

/// The mounts of this kind that a process sees.
fn mounts_of(process: &str) -> io::Result<Vec<Mounted>> {
    let lines = fs::read(format!("/proc/{process}/mountinfo"))?;
    Ok(lines.split(|byte| *byte == b'\n').filter_map(mount_of).collect())
}

/// A line of /proc/PID/mountinfo (proc_pid_mountinfo(5)).
fn mount_of(line: &[u8]) -> Option<Mounted> {
    let mut words = line.split(|byte| *byte == b' ');
    let device = words.by_ref().nth(2)?;
    let dir = words.by_ref().nth(1)?;
    let mut words = words.skip_while(|word| *word != b"-").skip(1);
    let (kind, source) = (words.next()?, words.next()?);
    let user = words.next().and_then(|options| {
        let options = std::str::from_utf8(options).ok()?;
        options.split(',').find_map(|option| option.strip_prefix("user_id=")?.parse().ok())
    });
    (kind == TYPE.as_bytes()).then(|| Mounted {
        dir: OsString::from_vec(unescaped(dir)).into(),
        source: String::from_utf8_lossy(&unescaped(source)).into_owned(),
        device: String::from_utf8_lossy(device).into_owned(),
        user,
    })
}

/// A word with its escapes, `\` and three octal digits, replaced.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, behind)) = rest.split_first() {
        let octal = behind.get(..3).filter(|_| *first == b'\\');
        let octal = octal.and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = behind.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = behind;
            }
        }
    }
    bytes
}

/// Has the kernel read far ahead in large files; only root may.
pub(crate) fn read_ahead(device: &str) {
    let file = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(why) = fs::write(file, "1024") {
        tracing::debug!(%why, "set the readahead of the mount");
    }
}

/// The mount at a place, by its path; the upmost of several.
///
/// # Errors
/// As for [`mounts`].
pub fn mount_at(dir: &Path) -> io::Result<Option<Mounted>> {
    Ok(mounts()?.into_iter().rfind(|mounted| mounted.dir == dir))
}

/// The absolute path of a mount point, without asking its file system: a dead mount gives no answer.
///
/// # Errors
/// For a folder above that does not exist.
pub fn absolute(dir: &Path) -> io::Result<PathBuf> {
    let dir = std::path::absolute(dir)?;
    if fs::read_link(&dir).is_ok() {
        return fs::canonicalize(dir);
    }
    match (dir.parent(), dir.file_name()) {
        (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
        _ => Ok(dir),
    }
}

fn named(what: &str, why: &io::Error) -> io::Error {
    io::Error::new(why.kind(), format!("{what}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo_are_understood() {
        let line = b"91 29 0:57 / /mnt/a\\040b ro,nosuid,nodev,relatime shared:7 - fuse.diesel dl://ds/x ro,user_id=7,group_id=8";
        let mounted = mount_of(line).unwrap();
        assert_eq!(mounted.dir, Path::new("/mnt/a b"));
        assert_eq!((&*mounted.source, &*mounted.device), ("dl://ds/x", "0:57"));
        assert_eq!(mounted.user, Some(7));
        for other in [&b""[..], b"1 2 3", b"91 29 0:57 / /mnt ro - ext4 /dev/vda ro"] {
            assert_eq!(mount_of(other), None);
        }
        assert_eq!(unescaped(b"a\\134\\12"), b"a\\\\12");
    }
}
