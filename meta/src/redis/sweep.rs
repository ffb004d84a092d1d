//! Removes what is left of datasets that were dropped: a task beside the calls.
//!
//! Must hold: nothing is removed of a dataset whose home still names the epoch; word of a drop is
//! kept until a sweep that began long after it found everything gone, so that what was still on
//! its way then is removed too. Any server sweeps for any other.

use std::sync::{Arc, Weak};
use std::time::{Duration, UNIX_EPOCH};

use dl_format::DatasetId;
use dl_runtime::Clock;
use redis::Value;

use super::Shared;
use super::address::Node;
use super::command::{Ask, bytes, list, pairs, strings};
use super::failure::Failure;
use super::keys::{self, Epoch, Keys};
use super::scripts::ROOM;

/// How long after a drop something of the dataset may still be written.
const LATE: Duration = Duration::from_secs(120);
/// How often it is looked for what others left.
const PAUSE: Duration = Duration::from_secs(300);
/// Keys that are looked at in one step.
const STEP: usize = 1_000;

/// Sweeps at once, whenever it is told to, and now and then; until the store is gone.
pub(super) async fn run(shared: Weak<Shared>, clock: Arc<dyn Clock>) {
    while let Some(strong) = shared.upgrade() {
        if let Err(failure) = strong.sweep().await {
            tracing::debug!(why = %failure, "could not remove what dropped datasets left");
        }
        let wake = Arc::clone(&strong.sweep_now);
        drop(strong);
        tokio::select! {
            () = wake.notified() => {}
            () = clock.sleep(PAUSE) => {}
        }
    }
}

impl Shared {
    /// Leaves word that a dataset is about to end.
    pub(super) async fn to_sweep(&self, keys: Keys) -> Result<(), Failure> {
        let now = self.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let field = format!("{}:{}", keys.dataset, keys.epoch);
        let ask = Ask::script(&ROOM, &keys::dropped(), &[]).arg("HSET");
        self.router.ask_one(ask.arg(field).arg(now)).await?;
        Ok(())
    }

    async fn sweep(&self) -> Result<(), Failure> {
        let dropped = pairs(self.router.ask_one(Ask::to(&keys::dropped(), "HGETALL")).await?)?;
        for (field, since) in dropped {
            let Some(keys) = read(&field) else { continue };
            let epoch = Ask::to(&keys.home(), "HGET").arg("epoch");
            let epoch = bytes(self.router.ask_one(epoch).await?)?;
            if epoch.as_deref().and_then(Epoch::parse) == Some(keys.epoch) {
                continue;
            }
            let changes = self.router.changes();
            let now = self.clock.now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            for node in self.router.primaries() {
                self.sweep_node(&node, keys).await?;
            }
            let since = str::from_utf8(&since).ok().and_then(|since| since.parse::<u64>().ok());
            let is_late = since.is_none_or(|since| now.abs_diff(since) > LATE.as_secs());
            if is_late && self.router.changes() == changes {
                let done = Ask::to(&keys::dropped(), "HDEL").arg(&field);
                self.router.ask_one(done).await?;
            }
        }
        Ok(())
    }

    async fn sweep_node(&self, node: &Node, keys: Keys) -> Result<(), Failure> {
        let mut cursor = b"0".to_vec();
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(&cursor).arg("MATCH").arg(keys::all_of(keys.dataset, keys.epoch));
            scan.arg("COUNT").arg(STEP);
            let mut answer = list(self.router.ask_node(node, scan).await?, Ok)?.into_iter();
            let next = bytes(answer.next().unwrap_or(Value::Nil))?;
            for key in strings(answer.next().unwrap_or(Value::Nil))? {
                let mut unlink = redis::cmd("UNLINK");
                unlink.arg(key);
                self.router.ask_node(node, unlink).await?;
            }
            cursor = next.ok_or_else(Failure::unexpected)?;
            if cursor == b"0" {
                return Ok(());
            }
        }
    }
}

fn read(field: &[u8]) -> Option<Keys> {
    let (dataset, epoch) = str::from_utf8(field).ok()?.split_once(':')?;
    let dataset: DatasetId = dataset.parse().ok()?;
    Some(Keys { dataset, epoch: Epoch::parse(epoch.as_bytes())? })
}
