//! Memory of a request with a large answer: taken before the work begins, given back when no byte of
//! the answer is left in the process.
//!
//! Must hold: a request with memory never waits for more, so that requests never wait for each other;
//! a request takes little when little is left, and is slower for it.

use std::sync::{Arc, Mutex};

use dl_proto::Kind;
use dl_runtime::locked;
use tokio::sync::OwnedSemaphorePermit;

use crate::error::Error;
use crate::shared::context::{Budget, ServerContext};

/// A request with more items does not wait for memory, as its items are in memory meanwhile.
const PATIENT_ITEMS: usize = 8_192;

/// A request waits a part of patience for its items, and has a place of the server meanwhile.
const WAIT_PART: u32 = 3;

/// Belongs to the work on a request, to the answer, and to unsent pieces of the answer.
#[derive(Debug, Default)]
pub(crate) struct Reservation(Mutex<Vec<OwnedSemaphorePermit>>);

impl Reservation {
    /// Memory for so many items of a request, and their answer.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when there is none.
    pub(crate) async fn for_items(
        context: &ServerContext,
        budget: &Budget,
        items: usize,
        bytes: usize,
    ) -> Result<Arc<Self>, Error> {
        let bytes = (bytes as u64).min(budget.total_and_used().0);
        let permit = if items <= PATIENT_ITEMS {
            budget.take_within(context.limits.patience / WAIT_PART, bytes, context).await?
        } else {
            budget.try_take(bytes, 0).ok_or_else(|| {
                let why = "other requests have its memory; try again, or ask for less at once";
                Error::new(Kind::Unavailable, "look up", format!("{items} files"), why)
            })?
        };
        let reserved = Self::default();
        reserved.keep(permit);
        Ok(Arc::new(reserved))
    }

    /// Takes the first size that leaves other requests their part, or waits for the last size; gives the
    /// number of the size. Once for a request.
    ///
    /// # Errors
    /// [`Kind::Unavailable`] when there is none for too long.
    pub(crate) async fn reserve(
        &self,
        context: &ServerContext,
        budget: &Budget,
        sizes: &[u64],
    ) -> Result<usize, Error> {
        let Some((least, more)) = sizes.split_last() else { return Ok(0) };
        // The largest size leaves half of the budget to others, the next size a quarter.
        let mut part = 2;
        for (number, bytes) in more.iter().enumerate() {
            if let Some(permit) = budget.try_take(*bytes, part) {
                self.keep(permit);
                return Ok(number);
            }
            part *= 2;
        }
        self.keep(budget.take(*least, context).await?);
        Ok(more.len())
    }

    /// Takes so much more, if there is enough at once.
    pub(crate) fn grow(&self, budget: &Budget, bytes: u64) -> bool {
        budget.try_take(bytes, 0).map(|permit| self.keep(permit)).is_some()
    }

    fn keep(&self, permit: OwnedSemaphorePermit) {
        locked(&self.0).push(permit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::rig;

    const MIB: u64 = 1 << 20;

    #[tokio::test]
    async fn requests_shrink_with_the_rest_and_the_last_waits() {
        let (context, budget) = (rig().await.context, Budget::new(48 << 20, "test"));
        let sizes = [8 * MIB, 2 * MIB, MIB];
        let mut reserved = Vec::new();
        let mut took = [0; 3];
        while budget.total_and_used().1 < 48 * MIB {
            let next = Reservation::default();
            took[next.reserve(&context, &budget, &sizes).await.unwrap()] += 1;
            reserved.push(next);
        }
        assert_eq!(took, [3, 6, 12]);
        let next = Reservation::default();
        let mut waiting = Box::pin(next.reserve(&context, &budget, &sizes));
        assert!(futures::poll!(&mut waiting).is_pending());
        reserved.pop();
        assert_eq!(waiting.await.unwrap(), 2);
    }

    #[tokio::test]
    async fn a_budget_that_is_smaller_than_a_request_is_given_as_a_whole() {
        let (context, budget) = (rig().await.context, Budget::new(100, "test"));
        let reserved = Reservation::default();
        assert_eq!(reserved.reserve(&context, &budget, &[800, 400]).await.unwrap(), 1);
        assert_eq!(budget.total_and_used(), (100, 100));
        drop(reserved);
        assert_eq!(budget.total_and_used(), (100, 0));
    }
}
