//! Settings that all servers share and that change while they run (paper, Figure 2): the table
//! `[live]` of the configuration.
//!
//! Must hold: each server follows them by itself; one that lost sight of them goes on with the last.
//! While the servers are read-only, nothing removes or moves what the chunk store holds.

use std::fmt::Display;
use std::sync::Arc;

use dl_proto::{Kind, Pattern};
use tokio::sync::watch;

use crate::error::Error;
use crate::source::Followed;

/// What may change while a server runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Live {
    /// Whether requests that would change datasets are refused.
    pub read_only: bool,
    /// Datasets whose chunks stay in the fast store.
    pub keep: Vec<Pattern>,
    /// Bytes of chunks that are being received, instead of those of the start.
    pub write_bytes: Option<u32>,
    /// Bytes of files that are being read, instead of those of the start.
    pub read_bytes: Option<u32>,
}

/// The settings of a server; without any they never change.
#[derive(Debug, Clone)]
pub struct Settings {
    changes: watch::Receiver<Arc<Live>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self::of(None)
    }
}

impl Settings {
    /// Those that are followed.
    pub fn of(followed: Option<&Followed<Live>>) -> Self {
        let changes = match followed {
            Some(followed) => followed.changes(),
            None => watch::channel(Arc::default()).1,
        };
        Self { changes }
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.changes.borrow().read_only
    }

    /// Stops what would remove or move objects while the servers are read-only.
    pub(crate) fn refuse_read_only(
        &self,
        action: &'static str,
        what: impl Display,
    ) -> Result<(), Error> {
        if !self.is_read_only() {
            return Ok(());
        }
        let why = "the servers are read-only: their admin set live.read_only; run it again when \
                   that is over";
        Err(Error::new(Kind::Denied, action, what, why))
    }

    /// What is in force, until the next change is waited for.
    pub(crate) fn next(&mut self) -> Arc<Live> {
        Arc::clone(&self.changes.borrow_and_update())
    }

    /// Waits for a change; for ever, when there is nothing that could change.
    pub(crate) async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
