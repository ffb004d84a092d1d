//! Memory of a request whose answer is streamed: taken before it is worked on, given back when
//! nothing of the answer is left in this process.
//!
//! Must hold: who has memory never waits for more of it, so that no two wait for each other; when
//! little is left, a request takes little and is slower for it.

use std::sync::{Arc, Mutex, PoisonError};

use dl_proto::Kind;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::error::Error;
use crate::parts::{Budget, Parts};

/// What an item of a read takes beside the bytes of its path, from the message that names it to
/// its last piece.
const ITEM_BYTES: u64 = 256;

/// Requests of more items are not waited for: while they wait they take that memory all the same.
const ITEMS_PATIENT: usize = 4_096;

/// Requests that wait for memory of their items at once. What they wait for is held by clients that
/// are slow to take their answers, and while they do, each has one of the places of the guard: most
/// of these have to stay for others. To give the place up meanwhile would let in more than fits.
const WAITING_MAX: usize = 16;

/// Memory for what requests name, and the line before it.
#[derive(Debug, Clone)]
pub(crate) struct Items {
    pub(crate) budget: Budget,
    line: Arc<Semaphore>,
}

impl Items {
    pub(crate) fn new(budget: Budget) -> Self {
        Self { budget, line: Arc::new(Semaphore::new(WAITING_MAX)) }
    }

    async fn take(
        &self,
        parts: &Parts,
        items: usize,
        bytes: u64,
    ) -> Result<OwnedSemaphorePermit, Error> {
        if let Some(taken) = self.budget.try_take(bytes, 0) {
            return Ok(taken);
        }
        let place = self.line.try_acquire().ok().filter(|_| items <= ITEMS_PATIENT);
        let Some(_place) = place else {
            let why = "other requests have its memory; try again, or ask for less at once";
            return Err(Error::new(Kind::Unavailable, "read", format!("{items} files"), why));
        };
        self.budget.take(bytes, parts).await
    }
}

/// Held by the work on a request, by its answer, and by each piece of it that was handed to the
/// connection and not written to it.
#[derive(Debug, Default)]
pub(crate) struct Lease {
    _items: Option<OwnedSemaphorePermit>,
    room: Mutex<Vec<OwnedSemaphorePermit>>,
}

impl Lease {
    /// Room for so many items of a request, with so many bytes of paths.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when there is none.
    pub(crate) async fn of_items(
        parts: &Parts,
        room: &Items,
        items: usize,
        path_bytes: usize,
    ) -> Result<Arc<Self>, Error> {
        let bytes = (items as u64).saturating_mul(ITEM_BYTES).saturating_add(path_bytes as u64);
        Ok(Self::of(room.take(parts, items, bytes).await?))
    }

    /// What was taken for all of a request.
    pub(crate) fn of(taken: OwnedSemaphorePermit) -> Arc<Self> {
        Arc::new(Self { _items: Some(taken), room: Mutex::default() })
    }

    /// Takes the first of these sizes that leaves the others their part, or waits for the last;
    /// gives which one. Once for a request.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when there is none for too long.
    pub(crate) async fn reserve(
        &self,
        parts: &Parts,
        budget: &Budget,
        sizes: &[u64],
    ) -> Result<usize, Error> {
        let Some((least, more)) = sizes.split_last() else { return Ok(0) };
        // Half of it stays for others when one takes most, a quarter when it takes less.
        let mut part = 2;
        for (number, bytes) in more.iter().enumerate() {
            if let Some(room) = budget.try_take(*bytes, part) {
                self.keep(room);
                return Ok(number);
            }
            part *= 2;
        }
        self.keep(budget.take(*least, parts).await?);
        Ok(more.len())
    }

    /// Takes so much more, if it can be had at once.
    pub(crate) fn grow(&self, budget: &Budget, bytes: u64) -> bool {
        budget.try_take(bytes, 0).map(|room| self.keep(room)).is_some()
    }

    fn keep(&self, room: OwnedSemaphorePermit) {
        self.room.lock().unwrap_or_else(PoisonError::into_inner).push(room);
    }
}

#[cfg(test)]
mod tests {
    use dl_meta::Memory;
    use dl_runtime::{OsRandom, SystemClock};

    use super::*;
    use crate::{Limits, Roll, Room, Settings};

    const MIB: u64 = 1 << 20;

    fn parts() -> Parts {
        Parts {
            store: dl_store::memory(),
            meta: Arc::new(Memory::new()),
            clock: Arc::new(SystemClock::new()),
            random: Arc::new(OsRandom),
            limits: Limits::default(),
            room: Room::default(),
            replaced: crate::Replaced::default(),
            settings: Settings::default(),
            roll: Roll::default(),
        }
    }

    #[tokio::test]
    async fn the_more_is_taken_the_less_each_request_takes_and_the_last_waits() {
        let (parts, budget) = (parts(), Budget::new(48 << 20, "test"));
        let sizes = [8 * MIB, 2 * MIB, MIB];
        let mut leases = Vec::new();
        let mut took = [0; 3];
        while budget.total_and_used().1 < 48 * MIB {
            let lease = Lease::default();
            took[lease.reserve(&parts, &budget, &sizes).await.unwrap()] += 1;
            leases.push(lease);
        }
        assert_eq!(took, [3, 6, 12]);
        let next = Arc::new(Lease::default());
        let waiting = {
            let (next, parts, budget) = (Arc::clone(&next), parts.clone(), budget.clone());
            dl_runtime::spawn(async move { next.reserve(&parts, &budget, &sizes).await })
        };
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        leases.pop();
        assert_eq!(waiting.await.unwrap().unwrap(), 2);
    }

    #[tokio::test]
    async fn few_requests_wait_for_those_whose_clients_are_slow_and_others_are_told_at_once() {
        let (parts, items) = (parts(), Items::new(Budget::new(1_000, "test")));
        let slow = Lease::of_items(&parts, &items, 1, 700).await.unwrap();
        let ask = || {
            let (parts, items) = (parts.clone(), items.clone());
            dl_runtime::spawn(
                async move { Lease::of_items(&parts, &items, 1, 700).await.map(drop) },
            )
        };
        let waiting: Vec<_> = (0..WAITING_MAX).map(|_| ask()).collect();
        tokio::task::yield_now().await;
        assert!(waiting.iter().all(|request| !request.is_finished()));
        assert_eq!(ask().await.unwrap().unwrap_err().kind, Kind::Unavailable);
        drop(slow);
        for request in waiting {
            request.await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn a_budget_that_is_smaller_than_a_request_is_given_as_a_whole() {
        let (parts, budget) = (parts(), Budget::new(100, "test"));
        let lease = Lease::default();
        assert_eq!(lease.reserve(&parts, &budget, &[800, 400]).await.unwrap(), 1);
        assert_eq!(budget.total_and_used(), (100, 100));
        drop(lease);
        assert_eq!(budget.total_and_used(), (100, 0));
    }
}
