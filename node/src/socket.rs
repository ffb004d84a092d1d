//! The socket between a worker and the agent: packets with descriptors.
//!
//! Must hold: a packet is received whole, or the call fails. Every received descriptor is closed on
//! `exec`. A wait ends by its deadline.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::Duration;

use dl_runtime::since_boot;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    accept_with, bind, connect, listen, recv, recvmsg, sendmsg, socket_with, socketpair,
};
use wincode::{SchemaRead, SchemaWrite};

use super::message::{MESSAGE_BYTES_MAX, decode, encode};

/// Descriptors in a packet, at most; the kernel's limit is 253.
pub const DESCRIPTORS_MAX: usize = 64;

const BACKLOG: i32 = 1024;

/// An end of a connection.
#[derive(Debug)]
pub struct Socket(OwnedFd);

impl Socket {
    /// Connects to a listener at a path.
    ///
    /// # Errors
    /// Errors of the socket, also for a full accept queue.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = unbound(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Self(socket))
    }

    /// The two ends of a new connection.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn pair() -> io::Result<(Self, Self)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Self(one), Self(other)))
    }

    /// Sends a message with descriptors; waits while the buffer of the peer is full.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] after `patience`, and errors of the socket.
    pub fn send<M>(
        &self,
        message: &M,
        files: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> io::Result<()>
    where
        M: SchemaWrite<wincode::config::DefaultConfig, Src = M>,
    {
        let packet = encode(message)?;
        loop {
            match self.try_send(&packet, files) {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(PollFlags::OUT, patience)?;
                }
                done => return done,
            }
        }
    }

    fn try_send(&self, packet: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() && !beside.push(SendAncillaryMessage::ScmRights(files)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::io::retry_on_intr(|| {
            sendmsg(&self.0, &[IoSlice::new(packet)], &mut beside, flags)
        })?;
        Ok(())
    }

    /// Receives a message with its descriptors; none at the end of the connection.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] after `patience`, and errors of the socket.
    pub fn receive<M>(&self, patience: Duration) -> io::Result<Option<(M, Vec<OwnedFd>)>>
    where
        M: for<'a> SchemaRead<'a, wincode::config::DefaultConfig, Dst = M>,
    {
        loop {
            self.wait(PollFlags::IN, patience)?;
            match self.try_receive() {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
                received => return received,
            }
        }
    }

    /// The same without waiting.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] without a message, and errors of the socket.
    pub fn try_receive<M>(&self) -> io::Result<Option<(M, Vec<OwnedFd>)>>
    where
        M: for<'a> SchemaRead<'a, wincode::config::DefaultConfig, Dst = M>,
    {
        let Some(length) = self.next_length()? else { return Ok(None) };
        if length > MESSAGE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the packet is too long"));
        }
        let mut packet = vec![0; length];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        let received = rustix::io::retry_on_intr(|| {
            recvmsg(&self.0, &mut [IoSliceMut::new(&mut packet)], &mut beside, flags)
        });
        let received = match received {
            // The peer closed with unread messages.
            Err(Errno::CONNRESET) => return Ok(None),
            received => received?,
        };
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the packet is too long"));
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        let mut files = Vec::new();
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                files.extend(rights);
            }
        }
        Ok(Some((decode(packet.get(..received.bytes).unwrap_or_default())?, files)))
    }

    /// The length of the next packet; none at the end of the connection.
    fn next_length(&self) -> io::Result<Option<usize>> {
        let flags = RecvFlags::PEEK | RecvFlags::TRUNC | RecvFlags::DONTWAIT;
        let received = rustix::io::retry_on_intr(|| recv(&self.0, &mut [0_u8; 0], flags));
        match received {
            // The peer closed with unread messages.
            Err(Errno::CONNRESET) => Ok(None),
            received => Ok(Some(received?.1).filter(|length| *length > 0)),
        }
    }

    /// Whether the peer has closed the connection.
    pub fn is_closed(&self) -> bool {
        let mut waits = [PollFd::new(&self.0, PollFlags::RDHUP)];
        let _ = poll(&mut waits, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        waits[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
    }

    fn wait(&self, events: PollFlags, patience: Duration) -> io::Result<()> {
        let until = since_boot().saturating_add(patience);
        loop {
            let left = until.saturating_sub(since_boot());
            let left = Timespec::try_from(left).unwrap_or(Timespec { tv_sec: 3600, tv_nsec: 0 });
            let mut waits = [PollFd::new(&self.0, events)];
            match poll(&mut waits, Some(&left)) {
                // A signal must not restart the wait.
                Err(Errno::INTR) => {}
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                waited => return Ok(waited.map(|_| ())?),
            }
        }
    }
}

impl Socket {
    /// The user of the peer.
    ///
    /// # Errors
    /// Errors of the socket.
    pub fn peer_user(&self) -> io::Result<u32> {
        Ok(rustix::net::sockopt::socket_peercred(&self.0)?.uid.as_raw())
    }

    /// Ends the connection for all processes with its descriptor.
    pub fn end(&self) {
        let _ = rustix::net::shutdown(&self.0, rustix::net::Shutdown::Both);
    }
}

/// An end of a connection that another process made.
impl From<OwnedFd> for Socket {
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl From<Socket> for OwnedFd {
    fn from(socket: Socket) -> Self {
        socket.0
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A listener at a path, for [`accept`].
///
/// # Errors
/// Errors of the socket.
pub fn bind_at(path: &Path) -> io::Result<OwnedFd> {
    let socket = unbound(SocketFlags::CLOEXEC)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Accepts the next connection of a listener.
///
/// # Errors
/// Errors of the socket; [`io::ErrorKind::WouldBlock`] without a connection, for a non-blocking
/// listener.
pub fn accept(listener: impl AsFd) -> io::Result<Socket> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(Socket(rustix::io::retry_on_intr(|| accept_with(&listener, flags))?))
}

fn unbound(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}
