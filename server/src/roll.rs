//! What all names of datasets point to, and the last reading of them, which many share.
//!
//! Must hold: whoever shares a reading knows when it began; at most one goes on, and no lock is
//! held meanwhile.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dl_format::{DatasetName, NameRecord, NameState};
use dl_proto::Kind;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use tokio::task::AbortHandle;

use crate::error::Error;

/// A name's newest generation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Named {
    pub(crate) generation: u32,
    pub(crate) record: NameRecord,
}

/// What every name points to. One that can't be read costs its dataset and no others.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// In order.
    pub(crate) read: Vec<(DatasetName, Named)>,
    /// Names whose newest generation is damaged, refuses to be read, or stands for the dataset of another.
    pub(crate) unread: Vec<(DatasetName, Error)>,
}

impl Names {
    /// The names that point to datasets which live.
    pub(crate) fn live(&self) -> impl Iterator<Item = &(DatasetName, Named)> {
        self.read.iter().filter(|(_, named)| named.record.state == NameState::Live)
    }

    /// What a name points to, if it could be read.
    pub(crate) fn of(&self, name: &DatasetName) -> Option<&Named> {
        let place = self.read.binary_search_by(|(other, _)| other.cmp(name)).ok()?;
        self.read.get(place).map(|(_, named)| named)
    }

    /// Leaves out the names that somebody may not know of.
    pub(crate) fn retain(&mut self, is_seen: impl Fn(&DatasetName) -> bool) {
        self.read.retain(|(name, _)| is_seen(name));
        self.unread.retain(|(name, _)| is_seen(name));
    }

    /// Whether nothing was ever created here.
    pub(crate) fn is_empty(&self) -> bool {
        self.read.is_empty() && self.unread.is_empty()
    }
}

/// When a reading began, and what it gave.
type Read = (Duration, Arc<Names>);

/// What a reading that goes on will give to all who wait for it.
pub(crate) type Reading = Shared<BoxFuture<'static, Result<(), Arc<Error>>>>;

/// What dataset names were last read as, for all who ask at the same time.
#[derive(Debug, Clone, Default)]
pub struct Roll {
    readings: Arc<Mutex<Readings>>,
}

#[derive(Debug, Default)]
struct Readings {
    last: Option<Read>,
    /// The latest one, and whether it goes on.
    latest: Option<(AbortHandle, Reading)>,
}

impl Roll {
    fn readings(&self) -> MutexGuard<'_, Readings> {
        self.readings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was read last, whenever that was.
    pub(crate) fn last(&self) -> Option<Arc<Names>> {
        self.readings().last.as_ref().map(|(_, names)| Arc::clone(names))
    }

    /// What was read, if that began then or later.
    pub(crate) fn since(&self, began: Duration) -> Option<Arc<Names>> {
        let readings = self.readings();
        readings.last.as_ref().filter(|(at, _)| *at >= began).map(|(_, names)| Arc::clone(names))
    }

    /// The reading that goes on; one that `read` begins when none does. It goes on when nobody waits
    /// for it any more.
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
        let (roll, read) = (self.clone(), read());
        let read = dl_runtime::spawn(async move {
            let names = read.await?;
            roll.readings().last = Some((now, Arc::new(names)));
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
