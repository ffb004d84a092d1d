//! Reading ranges, from copies where they are there and from the slow store where not.
//!
//! Must hold: what a copy does not give whole, the slow store is asked for. Bytes of pages that
//! were not found whole lately are checked before they are given out; they are marked as of when
//! the reading began.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::index::{Place, Plan};
use super::{READ_PATIENCE, Tier};
use crate::range::Span;
use crate::{ByteRange, Error, Key, Kind, ObjectRange};

/// What one range gives.
type Read = Result<Bytes, Error>;

impl Tier {
    pub(super) async fn read(self: &Arc<Self>, wanted: &[ObjectRange]) -> Vec<Read> {
        let plan = self.plan(wanted).await;
        if plan.places.iter().all(|place| *place == Place::Trusted) {
            let copies = self.read_fast(&plan.near).await;
            if copies.len() == wanted.len() && copies.iter().all(Result::is_ok) {
                self.hits.fetch_add(copies.len() as u64, Ordering::Relaxed);
                return copies;
            }
            return self.read_rest(wanted, &plan, copies, Vec::new()).await;
        }
        let far = wanted.iter().zip(&plan.places).filter(|(_, place)| !is_near(**place));
        let far: Vec<_> = far.map(|(range, _)| range.clone()).collect();
        let (copies, objects) = tokio::join!(self.read_fast(&plan.near), self.read_slow(&far));
        self.bring(&far, &objects);
        self.read_rest(wanted, &plan, copies, objects).await
    }

    /// Where each range is to be read from. Copies that an earlier process left are proven by
    /// asking the slow store for one byte: their objects may have been deleted since.
    async fn plan(self: &Arc<Self>, wanted: &[ObjectRange]) -> Plan {
        if !self.is_ready() {
            return Plan::slow(wanted.len());
        }
        let look_up = || self.index().plan(wanted, self.clock.monotonic());
        let plan = look_up();
        let unproven: BTreeSet<&Key> = wanted
            .iter()
            .zip(&plan.places)
            .filter(|(_, place)| **place == Place::Unproven)
            .map(|(range, _)| &range.key)
            .collect();
        if unproven.is_empty() {
            return plan;
        }
        let first = ByteRange(Span::Exact { start: 0, end: 1 });
        let ranges: Vec<ObjectRange> = unproven
            .into_iter()
            .map(|key| ObjectRange { key: key.clone(), range: first })
            .collect();
        let answers = self.slow.read(&ranges).await;
        for (range, answer) in ranges.iter().zip(answers) {
            match answer {
                Ok(_) => self.index().prove(&range.key),
                Err(error) if error.kind == Kind::Missing => {
                    self.index().give_up(&range.key);
                }
                Err(_) => {}
            }
        }
        look_up()
    }

    /// Reads copies; none of them when the fast store does not answer.
    async fn read_fast(&self, copies: &[ObjectRange]) -> Vec<Read> {
        if copies.is_empty() {
            return Vec::new();
        }
        let read = self.in_time(READ_PATIENCE, "read copies in", self.fast.read(copies)).await;
        read.unwrap_or_else(|error| {
            self.failed(&error);
            Vec::new()
        })
    }

    async fn read_slow(&self, wanted: &[ObjectRange]) -> Vec<Read> {
        if wanted.is_empty() {
            return Vec::new();
        }
        let _reading = self.along.reading();
        self.slow.read(wanted).await
    }

    /// What was read, put in order; with what copies did not give, from the slow store.
    async fn read_rest(
        self: &Arc<Self>,
        wanted: &[ObjectRange],
        plan: &Plan,
        copies: Vec<Read>,
        objects: Vec<Read>,
    ) -> Vec<Read> {
        let (mut copies, mut objects) = (copies.into_iter(), objects.into_iter());
        let given = |(range, place): (&ObjectRange, &Place)| {
            if is_near(*place) {
                self.near(&range.key, *place, plan, &mut copies).map(Ok)
            } else {
                objects.next()
            }
        };
        let given: Vec<_> = wanted.iter().zip(&plan.places).map(given).collect();
        let lost = wanted.iter().zip(&given).filter(|(_, result)| result.is_none());
        let lost: Vec<ObjectRange> = lost.map(|(range, _)| range.clone()).collect();
        let near = plan.places.iter().filter(|place| is_near(**place)).count();
        self.hits.fetch_add(near.saturating_sub(lost.len()) as u64, Ordering::Relaxed);
        let found = self.read_slow(&lost).await;
        self.bring(&lost, &found);
        let mut found = found.into_iter();
        let whole = |(range, result): (&ObjectRange, Option<_>)| {
            let missing = || Err(Error::new(Kind::Corrupt, "read object", &range.key));
            result.or_else(|| found.next()).unwrap_or_else(missing)
        };
        wanted.iter().zip(given).map(whole).collect()
    }

    /// The bytes out of what was read from a copy, if they could be had.
    fn near(
        self: &Arc<Self>,
        key: &Key,
        place: Place,
        plan: &Plan,
        copies: &mut impl Iterator<Item = Read>,
    ) -> Option<Bytes> {
        let Place::Unchecked { number, cut } = place else { return self.had(key, copies.next()) };
        let (pages, sums) = (copies.next(), copies.next());
        let (pages, sums) = (self.had(key, pages)?, self.had(key, sums)?);
        let bytes = cut.take(key, &pages, &sums);
        match bytes {
            Some(_) => self.index().is_whole(key, number, cut, plan.now),
            None => self.rot(key),
        }
        bytes
    }

    fn had(self: &Arc<Self>, key: &Key, read: Option<Read>) -> Option<Bytes> {
        match read? {
            Ok(bytes) => return Some(bytes),
            // Somebody tidied up.
            Err(error) if error.kind == Kind::Missing => {
                self.drop_copy(key);
            }
            Err(error) if error.kind == Kind::Corrupt => self.rot(key),
            Err(error) => self.failed(&error),
        }
        None
    }
}

/// Whether a range is to be read from a copy.
fn is_near(place: Place) -> bool {
    matches!(place, Place::Trusted | Place::Unchecked { .. })
}
