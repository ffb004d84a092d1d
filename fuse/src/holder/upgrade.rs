//! The next program of a holder: the same process runs it with the connection of the mount.
//!
//! Must hold: the mount stays when the next program can not be run. The descriptors of the connection are open for the next
//! program alone.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use dl_runtime::since_boot;
use serde::{Deserialize, Serialize};

use super::{Connected, Event, Holder, PATIENCE};
use crate::channel::Channel;
use crate::messages::{Features, Shown};
use crate::mounting::{inherited, mount_at};

/// What a holder leaves to the next program.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Legacy {
    /// The numbers of the descriptors.
    channels: Vec<i32>,
    features: Features,
    versions: Vec<Shown>,
    task: String,
    starts: u64,
    since: Duration,
}

impl Holder<'_> {
    /// Runs the next program in this process; returns only after a failure.
    pub(super) fn upgrade(&mut self) {
        let Some(connected) = &self.connected else { return };
        let why = match Self::passed_on(&connected.channels) {
            Err(why) => why,
            Ok(passed) => {
                let legacy = Legacy {
                    channels: passed.iter().map(AsRawFd::as_raw_fd).collect(),
                    features: connected.features,
                    versions: self.versions.clone(),
                    task: self.task.clone(),
                    starts: self.starts,
                    since: connected.since,
                };
                let text = serde_json::to_string(&legacy).unwrap_or_default();
                self.end_server();
                (self.mount.upgrade)(&text)
            }
        };
        tracing::warn!(%why, "run the next program: the mount goes on with this program");
        if self.server.is_none() {
            self.next_start = Some(since_boot());
        }
    }

    /// Copies of the channels that stay open in the next program.
    fn passed_on(channels: &[Channel]) -> io::Result<Vec<OwnedFd>> {
        channels.iter().map(|channel| Ok(rustix::io::dup(channel)?)).collect()
    }

    /// Ends the server, and waits until nothing of it is left.
    fn end_server(&mut self) {
        let Some(server) = self.server.take() else { return };
        server.kill();
        self.served = None;
        let until = since_boot().saturating_add(PATIENCE);
        loop {
            match self.events.recv_timeout(until.saturating_sub(since_boot())) {
                Ok(Event::Ended { server: number, .. }) if number == server.number => return,
                Ok(event) => self.later.push_back(event),
                Err(_) => return,
            }
        }
    }

    /// Takes the mount over from the program before.
    pub(super) fn take_over(&mut self, legacy: &str) -> io::Result<()> {
        let Legacy { channels, features, versions, task, starts, since } =
            serde_json::from_str(legacy)?;
        let channels = channels.into_iter().map(inherited).collect::<io::Result<Vec<Channel>>>()?;
        let mounted = match self.mount.place.descriptor() {
            Some(_) => None,
            None => mount_at(&self.mount.place.dir)?,
        };
        let _listener = self.listen(mounted.as_ref());
        self.connected = Some(Connected { channels, features, mounted, _listener, since });
        (self.versions, self.task, self.starts) = (versions, task, starts);
        Ok(())
    }
}
