//! Errors for the requests of a mount that has no server for a while.
//!
//! Must hold: a reader gets an error instead of a wait without end. The denial ends before the next
//! server takes requests.

use std::io;
use std::time::Duration;

use rustix::io::Errno;

use crate::abi::{Operation, Request, notice};
use crate::channel::{Channel, REQUEST_BYTES};
use crate::messages::Features;

/// The channel on which requests are refused.
#[derive(Debug)]
pub(super) struct Denial(Channel);

impl Denial {
    /// Begins, also with the requests that the last server took along.
    pub(super) fn begin(channels: &[Channel], features: Features) -> io::Result<Self> {
        let first = channels.first().ok_or(io::ErrorKind::NotConnected)?;
        if features.resends {
            first.notify(notice::RESEND, &[])?;
        }
        // A process without the device shares the descriptor; a reader that goes away between the two
        // calls below then delays the holder.
        Ok(Self(first.clone_non_blocking().or_else(|_| first.try_clone())?))
    }

    /// Refuses all requests that wait; false at the end of the mount.
    pub(super) fn deny_all(&self) -> io::Result<bool> {
        let mut buffer = vec![0; REQUEST_BYTES];
        while self.0.is_ready(Duration::ZERO)? {
            let length = match self.0.next(&mut buffer) {
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                next => next?,
            };
            let Some(length) = length else { return Ok(false) };
            let request = Request::of(buffer.get(..length).unwrap_or_default());
            if let Some(Request { header, operation }) = request
                && !matches!(operation, Operation::Notice)
            {
                self.0.refuse(header.unique, Errno::IO)?;
            }
        }
        Ok(true)
    }
}
