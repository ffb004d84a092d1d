//! A descriptor of /dev/fuse: requests, answers and notifications.
//!
//! Must hold: an answer goes to the channel of its request, whole or not at all. A reader that has
//! gone away is no error.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::io::{Errno, retry_on_intr};
use rustix::ioctl::{Setter, ioctl, opcode};
use zerocopy::IntoBytes;

use crate::abi::OutHeader;

/// The device of FUSE.
pub(crate) const DEVICE: &str = "/dev/fuse";

/// Bytes of a buffer for requests: the kernel asks for at least 8 KiB.
pub(crate) const REQUEST_BYTES: usize = 16 << 10;

/// The request to connect another descriptor: `FUSE_DEV_IOC_CLONE`.
const CLONE: rustix::ioctl::Opcode = opcode::read::<u32>(229, 0);

/// A descriptor of /dev/fuse.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

impl Channel {
    /// A descriptor without a mount.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self(open(OFlags::empty())?.into()))
    }

    /// Another descriptor of the same mount, of its own where this process may open the device.
    pub(crate) fn try_clone(&self) -> io::Result<Self> {
        self.clone_with(OFlags::empty()).or_else(|_| Ok(Self(self.0.try_clone()?)))
    }

    /// Whether a request is there within a time.
    pub(crate) fn is_ready(&self, patience: Duration) -> io::Result<bool> {
        let patience = Timespec::try_from(patience).map_err(io::Error::other)?;
        let mut waits = [PollFd::new(&self.0, PollFlags::IN)];
        Ok(retry_on_intr(|| poll(&mut waits, Some(&patience)))? > 0)
    }

    /// The same; reads of the new descriptor never wait.
    pub(crate) fn clone_non_blocking(&self) -> io::Result<Self> {
        self.clone_with(OFlags::NONBLOCK)
    }

    fn clone_with(&self, flags: OFlags) -> io::Result<Self> {
        let new = open(flags)?;
        let of = self.0.as_raw_fd() as u32;
        #[expect(unsafe_code, reason = "the device has no other way to clone a descriptor")]
        // SAFETY: the kernel reads four bytes, the number of an open descriptor.
        unsafe {
            ioctl(&new, Setter::<CLONE, u32>::new(of))?;
        }
        Ok(Self(new.into()))
    }

    /// Waits for the next request, and gives its length; none at the end of the mount.
    pub(crate) fn next(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(length) => return Ok(Some(length)),
                Err(Errno::NODEV) => return Ok(None),
                // The reader went away before its request was taken.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(why) => return Err(why.into()),
            }
        }
    }

    /// Answers a request with the bytes of all parts.
    pub(crate) fn answer(&self, unique: u64, parts: &[&[u8]]) -> io::Result<()> {
        self.write(0, unique, parts)
    }

    /// Answers a request with an error.
    pub(crate) fn refuse(&self, unique: u64, why: Errno) -> io::Result<()> {
        self.write(-why.raw_os_error(), unique, &[])
    }

    /// Tells the kernel something without a request.
    pub(crate) fn notify(&self, notice: i32, parts: &[&[u8]]) -> io::Result<()> {
        self.write(notice, 0, parts)
    }

    fn write(&self, error: i32, unique: u64, parts: &[&[u8]]) -> io::Result<()> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let len = (size_of::<OutHeader>() + length) as u32;
        let header = OutHeader { len, error, unique };
        let written = match parts {
            [] => rustix::io::write(&self.0, header.as_bytes()),
            [part] => {
                rustix::io::writev(&self.0, &[IoSlice::new(header.as_bytes()), IoSlice::new(part)])
            }
            parts => {
                let slices = parts.iter().map(|part| IoSlice::new(part));
                let slices: Vec<_> =
                    std::iter::once(IoSlice::new(header.as_bytes())).chain(slices).collect();
                rustix::io::writev(&self.0, &slices)
            }
        };
        match written {
            // The reader has gone, or the request was answered before.
            Ok(_) | Err(Errno::NOENT) => Ok(()),
            Err(why) => Err(why.into()),
        }
    }
}

fn open(flags: OFlags) -> io::Result<File> {
    let flags = (OFlags::CLOEXEC | flags).bits() as i32;
    OpenOptions::new().read(true).write(true).custom_flags(flags).open(DEVICE)
}

impl From<Channel> for OwnedFd {
    fn from(channel: Channel) -> Self {
        channel.0
    }
}

impl From<OwnedFd> for Channel {
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
