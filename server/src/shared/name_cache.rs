//! All names of datasets, and a cache of the last reading for concurrent requests.
//!
//! Must hold: a caller with a shared reading knows when the reading began; at most one reading runs, without
//! a lock.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dl_format::{DatasetName, NameRecord, NameState};
use dl_proto::Kind;
use dl_runtime::locked;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::task::AbortHandle;

use crate::error::Error;

/// The newest generation of a name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named {
    pub(crate) generation: u32,
    pub(crate) record: NameRecord,
}

/// All names. An unreadable name costs its dataset alone.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// In order.
    pub(crate) read: Vec<(DatasetName, Named)>,
    /// Names whose newest generation is damaged, refuses to be read, or stands for the dataset of another.
    pub(crate) unread: Vec<(DatasetName, Error)>,
}

impl Names {
    /// The names of living datasets.
    pub(crate) fn live(&self) -> impl Iterator<Item = &(DatasetName, Named)> {
        self.read.iter().filter(|(_, named)| named.record.state == NameState::Live)
    }

    /// The generation of a name, if it could be read.
    pub(crate) fn of(&self, name: &DatasetName) -> Option<&Named> {
        let place = self.read.binary_search_by(|(other, _)| other.cmp(name)).ok()?;
        self.read.get(place).map(|(_, named)| named)
    }

    /// Leaves out the names hidden from a caller.
    pub(crate) fn retain(&mut self, is_seen: impl Fn(&DatasetName) -> bool) {
        self.read.retain(|(name, _)| is_seen(name));
        self.unread.retain(|(name, _)| is_seen(name));
    }

    /// Whether no dataset was ever created.
    pub(crate) fn is_empty(&self) -> bool {
        self.read.is_empty() && self.unread.is_empty()
    }
}

/// The time at which a reading began, and its result.
type Read = (Duration, Arc<Names>);

/// A reading in progress, for all waiting callers.
pub(crate) type Reading = Shared<BoxFuture<'static, Result<(), Arc<Error>>>>;

/// The last reading of the dataset names, shared by concurrent requests.
#[derive(Debug, Clone, Default)]
pub struct NameCache {
    readings: Arc<Mutex<Readings>>,
}

#[derive(Debug, Default)]
struct Readings {
    last: Option<Read>,
    /// The latest reading, and its task.
    latest: Option<(AbortHandle, Reading)>,
}

impl NameCache {
    fn readings(&self) -> MutexGuard<'_, Readings> {
        locked(&self.readings)
    }

    /// The result of the last reading, however old.
    pub(crate) fn last(&self) -> Option<Arc<Names>> {
        self.readings().last.as_ref().map(|(_, names)| Arc::clone(names))
    }

    /// The result of the last reading, if the reading began at this time or later.
    pub(crate) fn since(&self, began: Duration) -> Option<Arc<Names>> {
        let readings = self.readings();
        readings.last.as_ref().filter(|(at, _)| *at >= began).map(|(_, names)| Arc::clone(names))
    }

    /// The reading in progress, or a new one by `read`. A reading goes on without waiting callers.
    pub(crate) fn reading<R>(&self, now: Duration, read: impl FnOnce() -> R) -> Reading
    where
        R: Future<Output = Result<Names, Error>> + Send + 'static,
    {
        let mut readings = self.readings();
        if let Some((task, reading)) = &readings.latest
            && !task.is_finished()
        {
            return reading.clone();
        }
        let (cache, read) = (self.clone(), read());
        let read = dl_runtime::spawn(async move {
            let names = read.await?;
            cache.readings().last = Some((now, Arc::new(names)));
            Ok(())
        });
        let task = read.abort_handle();
        let reading = async move {
            let fault = |why| Error::new(Kind::Internal, "read the names of", "datasets", why);
            read.await.unwrap_or_else(|why| Err(fault(why))).map_err(Arc::new)
        };
        let reading = reading.boxed().shared();
        readings.latest = Some((task, reading.clone()));
        reading
    }
}
