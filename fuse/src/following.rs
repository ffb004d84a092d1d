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

use libdiesel::agent::{self, Socket};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use crate::abi::{InvalEntryOut, InvalInodeOut, notice};
use crate::channel::Channel;
use crate::messages::{Features, FromServer, ids_of};
use crate::server::{Served, Version, Versions};
use crate::source::{Refused, Source};
use crate::tree::TOP;

/// The interval between two looks for a newer version by a mount that stays at its version.
const LOOK_INTERVAL: Duration = Duration::from_secs(300);

/// Time for a message to the holder.
const PATIENCE: Duration = Duration::from_secs(5);

/// Looks for newer versions, and shows them.
pub(crate) struct Follower {
    pub(crate) source: Source,
    pub(crate) served: Arc<Served>,
    pub(crate) holder: Arc<Socket>,
    /// For notifications of the kernel.
    pub(crate) notices: Channel,
    pub(crate) features: Features,
}

impl Follower {
    /// Starts the thread; a message begins a refresh at once.
    pub(crate) fn start(self) -> io::Result<Sender<()>> {
        let (sender, refreshes) = channel();
        let run = move || self.run(&refreshes);
        thread::Builder::new().name("follow".to_owned()).spawn(run)?;
        Ok(sender)
    }

    fn run(&self, refreshes: &Receiver<()>) {
        self.finish_switch();
        loop {
            match refreshes.recv_timeout(self.source.follow.unwrap_or(LOOK_INTERVAL)) {
                Ok(()) => {
                    let refreshed = self.refresh();
                    let why = refreshed.err().map(|refused| refused.why);
                    if let Err(why) = self.holder.send(&FromServer::Refreshed(why), &[], PATIENCE) {
                        tracing::debug!(%why, "report a refresh");
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    if let Err(Refused { why, .. }) = self.look() {
                        tracing::warn!(why, "look for a newer version");
                    }
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Notifies the kernel of a switch by an earlier server, which may have ended before.
    fn finish_switch(&self) {
        let versions = self.served.versions();
        if versions.before.is_some() {
            self.forget_names(&versions);
        }
    }

    /// Shows a newer version, if there is one and the mount follows; else notes it for the status.
    fn look(&self) -> Result<(), Refused> {
        match self.source.follow {
            Some(_) => self.refresh(),
            None => {
                let is_newest = self.is_newest(&self.served.versions().current)?;
                self.served.counts.set_stale(!is_newest);
                Ok(())
            }
        }
    }

    fn is_newest(&self, current: &Version) -> Result<bool, Refused> {
        let Source { client, name, describe, .. } = &self.source;
        let newest = agent::at_servers(client, name).and_then(|dataset| dataset.refresh());
        let newest = newest.map_err(describe)?;
        Ok(ids_of((newest.id, newest.version)) == current.shown().ids)
    }

    /// Shows the newest version.
    fn refresh(&self) -> Result<(), Refused> {
        let versions = self.served.versions();
        if self.is_newest(&versions.current)? {
            return Ok(());
        }
        let shown = versions.current.shown();
        let newest = self.source.open_newest(shown.generation.wrapping_add(1))?;
        if newest.shown().ids == shown.ids {
            return Ok(());
        }
        let failed = |why: io::Error| Refused { exit: 1, why: why.to_string() };
        let switched = FromServer::Switched(newest.shown());
        self.holder.send(&switched, &[], PATIENCE).map_err(failed)?;
        let before = Some(Arc::new(versions.current.without_agent()));
        let versions = Versions { current: Arc::new(newest), before };
        self.served.show(versions);
        self.served.counts.set_stale(false);
        let versions = self.served.versions();
        self.forget_names(&versions);
        let version = versions.current.tree.snapshot().version();
        tracing::info!(%version, "the mount shows a newer version");
        Ok(())
    }

    /// Lets the kernel forget all names, so that programs see the current version.
    fn forget_names(&self, versions: &Versions) {
        let no_pages = InvalInodeOut { node: TOP, offset: -1, length: 0 };
        // The kernel may not know the folder, or may have forgotten it.
        let _ = self.notices.notify(notice::INVAL_INODE, &[no_pages.as_bytes()]);
        let forgotten = match self.features.has_epochs {
            true => self.notices.notify(notice::INC_EPOCH, &[]),
            false => Err(Errno::NOSYS.into()),
        };
        if forgotten.is_ok() {
            return;
        }
        for version in versions.all() {
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
