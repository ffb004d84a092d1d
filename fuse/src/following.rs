//! The switch of a mount to a newer version of its dataset.
//!
//! Must hold: the holder knows a version before the kernel does, so the next server serves it too. A
//! version that can't be opened changes nothing.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use dl_node::Socket;
use libdiesel::agent;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::{InvalEntryOut, InvalInodeOut, notice};
use crate::channel::Channel;
use crate::messages::{Features, FromServer, Shown, ids_of};
use crate::server::{Served, Version, Versions};
use crate::source::{Refused, Source};
use crate::tree::{GENERATIONS, TOP};

/// The interval between two looks for a newer version by a mount that stays at its version.
const POLL_INTERVAL: Duration = Duration::from_secs(300);

/// Time until the names are forgotten once more after a switch.
const REPEAT_DELAY: Duration = Duration::from_secs(1);

/// Time for a message to the holder, and for its answer.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Looks for newer versions, and shows them.
pub(crate) struct Follower {
    pub(crate) source: Source,
    pub(crate) served: Arc<Served>,
    pub(crate) holder: Arc<Socket>,
    /// For notifications of the kernel.
    pub(crate) notices: Channel,
    pub(crate) features: Features,
    /// The holder knows the version that was sent last.
    pub(crate) recorded: Receiver<()>,
}

impl Follower {
    /// Starts the thread; each message begins a refresh at once.
    pub(crate) fn start(self) -> io::Result<Sender<()>> {
        let (sender, refreshes) = channel();
        let run = move || self.run(&refreshes);
        thread::Builder::new().name("follow".to_owned()).spawn(run)?;
        Ok(sender)
    }

    fn run(&self, refreshes: &Receiver<()>) {
        let versions = self.served.versions();
        // An earlier server may have ended between the switch and the notification.
        let mut is_notified = versions.current.shown().generation == 0;
        drop(versions);
        loop {
            let usual = self.source.follow.unwrap_or(POLL_INTERVAL);
            let pause = if is_notified { usual } else { usual.min(REPEAT_DELAY) };
            let (is_due, done) = match refreshes.recv_timeout(pause) {
                Ok(()) => (true, self.refresh()),
                Err(RecvTimeoutError::Timeout) if !is_notified => {
                    self.forget_names();
                    is_notified = true;
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => (false, self.look()),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if let Err(Refused { why, .. }) = &done {
                tracing::warn!(why, "show a newer version");
            }
            // A listing that was under way at the switch may have brought old names back.
            is_notified &= !matches!(done, Ok(true));
            if is_due {
                let why = done.err().map(|refused| refused.why);
                if let Err(why) = self.holder.send(&FromServer::Refreshed(why), &[], TIMEOUT) {
                    tracing::debug!(%why, "report a refresh");
                }
            }
        }
    }

    /// Shows a newer version, if there is one and the mount follows; else notes it for the status. Gives
    /// whether another version is shown.
    fn look(&self) -> Result<bool, Refused> {
        if self.source.follow.is_some() {
            return self.refresh();
        }
        let is_newest = self.is_newest(&self.served.versions().current)?;
        self.served.counts.set_stale(!is_newest);
        Ok(false)
    }

    fn is_newest(&self, current: &Version) -> Result<bool, Refused> {
        let Source { client, name, describe, .. } = &self.source;
        let newest = agent::at_servers(client, name).and_then(|dataset| dataset.refresh());
        let newest = newest.map_err(describe)?;
        Ok(ids_of((newest.id, newest.version)) == current.shown().ids)
    }

    /// Shows the newest version; gives whether it is another.
    fn refresh(&self) -> Result<bool, Refused> {
        let versions = self.served.versions();
        if self.is_newest(&versions.current)? {
            return Ok(false);
        }
        let shown = versions.current.shown();
        let newest = self.source.open_newest((shown.generation + 1) % GENERATIONS)?;
        if newest.shown().ids == shown.ids {
            return Ok(false);
        }
        self.record(newest.shown()).map_err(|why| Refused { exit: 1, why: why.to_string() })?;
        let before = Some(Arc::new(versions.current.without_agent()));
        let version = newest.tree.snapshot().version();
        self.served.show(Versions { current: Arc::new(newest), before });
        self.served.counts.set_stale(false);
        self.forget_names();
        tracing::info!(%version, "the mount shows a newer version");
        Ok(true)
    }

    /// Waits until the holder knows a version, which the next server then serves.
    fn record(&self, shown: Shown) -> io::Result<()> {
        // The answer to a message that was given up.
        while self.recorded.try_recv().is_ok() {}
        self.holder.send(&FromServer::Switched(shown), &[], TIMEOUT)?;
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "the holder gives no answer");
        self.recorded.recv_timeout(TIMEOUT).map_err(late)
    }

    /// Lets the kernel forget all names, so that programs see the current version.
    fn forget_names(&self) {
        // With the listing that the kernel keeps. It may not know the folder, or may have forgotten it.
        let all_pages = InvalInodeOut { node: TOP, offset: 0, length: 0 };
        let _ = self.notices.notify(notice::INVAL_INODE, &[all_pages.as_bytes()]);
        let forgotten = match self.features.has_epochs {
            true => self.notices.notify(notice::INC_EPOCH, &[]),
            false => Err(Errno::NOSYS.into()),
        };
        if forgotten.is_ok() {
            return;
        }
        for version in self.served.versions().all() {
            if let Err(error) = self.forget_entries(version) {
                tracing::warn!(%error, "list the names that the kernel should forget");
            }
        }
    }

    /// Lets the kernel forget the names in the top folder, with all below.
    fn forget_entries(&self, version: &Version) -> Result<(), libdiesel::Error> {
        let mut names = BTreeSet::new();
        version.tree.list(version.tree.numbers().top, 0, &mut |entry| {
            names.insert(entry.name.to_vec());
            true
        })?;
        for name in names.iter().filter(|name| !matches!(name.as_slice(), b"." | b"..")) {
            let of = InvalEntryOut { parent: TOP, name_len: name.len() as u32, flags: 0 };
            // A name that the kernel does not know needs nothing.
            let _ = self.notices.notify(notice::INVAL_ENTRY, &[of.as_bytes(), name, &[0]]);
        }
        Ok(())
    }
}
