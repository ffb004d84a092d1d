//! Settings that all servers share and follow (paper, Figure 2): the table `[live]` of the configuration.
//!
//! Must hold: each server follows the settings by itself, and keeps the last known settings after errors. While
//! the servers are read-only, no task removes or moves objects of the chunk store.

use std::fmt::Display;
use std::sync::Arc;

use dl_proto::{Kind, Pattern};
use tokio::sync::watch;

use crate::error::Error;
use crate::source::Followed;

/// Settings that may change while a server runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Live {
    /// Whether requests that would change datasets are refused.
    pub read_only: bool,
    /// Datasets whose chunks stay in the fast store.
    pub keep: Vec<Pattern>,
    /// Bytes of chunks being received; none keeps the bound of the start.
    pub write_bytes: Option<u32>,
    /// Bytes of files being read; none keeps the bound of the start.
    pub read_bytes: Option<u32>,
}

/// The settings of a server, which may be constant.
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
    /// The followed settings, or the defaults for ever.
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

    /// Refuses to remove or move objects while the servers are read-only.
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

    /// The current settings; marks them as seen for [`Settings::changed`].
    pub(crate) fn next(&mut self) -> Arc<Live> {
        Arc::clone(&self.changes.borrow_and_update())
    }

    /// Waits for a change; for ever, if the settings are constant.
    pub(crate) async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
