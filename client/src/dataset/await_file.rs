//! Reads of files that another program is still to put (DYAD, 3).
//!
//! Must hold: a file is read whole or not at all, for it appears with its chunk's commit. The wait
//! ends at its deadline.

use std::thread;
use std::time::Duration;

use bytes::Bytes;
use dl_format::FilePath;
use dl_runtime::since_boot;

use super::Dataset;
use crate::error::{Error, Kind};
use crate::path::AsPath;
use crate::remote::ReadItem;

/// The first and the longest interval between two attempts.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
const POLL_INTERVAL_MAX: Duration = Duration::from_millis(200);

impl Dataset {
    /// Reads a file, and waits up to `patience` for a file that is not there yet. A file missing from
    /// the snapshot of the handle is read from the servers, at the newest version. Blocks.
    ///
    /// # Errors
    /// [`Kind::NotFound`] if there is no such file until then, and all errors of
    /// [`get`](Self::get), without a wait.
    pub fn get_within(
        &self,
        path: impl AsPath<FilePath>,
        patience: Duration,
    ) -> Result<Bytes, Error> {
        let path = path.as_path("read")?;
        let until = since_boot().saturating_add(patience);
        let mut pause = POLL_INTERVAL;
        let mut read = self.get(&*path);
        loop {
            let is_missing = matches!(&read, Err(why) if why.kind() == Kind::NotFound);
            let left = until.saturating_sub(since_boot());
            if !is_missing {
                return read;
            }
            // The snapshot of the handle knows no new file.
            read = self.0.remote.get(&ReadItem::from(&*path));
            if read.is_ok() || left.is_zero() {
                return read;
            }
            thread::sleep(pause.min(left));
            pause = pause.saturating_mul(2).min(POLL_INTERVAL_MAX);
        }
    }
}
