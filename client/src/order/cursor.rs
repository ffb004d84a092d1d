//! One rank's, or one worker's, way through an order.
//!
//! Must hold: holds the files of one group, and no more than that.

use std::ops::Range;
use std::sync::Arc;

use super::{Order, OrderError, Way, Worker};

/// Gives the numbers of the files that one rank, or one worker of a rank, reads, in order.
#[derive(Debug, Clone)]
pub struct Cursor {
    order: Arc<Order>,
    rank: u32,
    way: Way,
    worker: Worker,
    /// Files given so far, of how many.
    given: u64,
    length: u64,
    /// Places of the group in `files`.
    group: Range<u64>,
    files: Vec<u32>,
    /// In `files`: the next one, and where the piece ends that is read without a look at the order.
    next: usize,
    stop: usize,
}

impl Cursor {
    /// The way of one rank.
    ///
    /// # Errors
    /// [`OrderError::Rank`].
    pub fn new(order: Arc<Order>, rank: u32) -> Result<Self, OrderError> {
        Self::of_worker(order, rank, Worker::ONLY)
    }

    /// The way of one worker of a rank: what a loader gets that asks its workers for batches in
    /// turn is the order of the rank.
    ///
    /// # Errors
    /// [`OrderError::Rank`], [`OrderError::Worker`].
    pub fn of_worker(order: Arc<Order>, rank: u32, worker: Worker) -> Result<Self, OrderError> {
        let world = order.settings.world;
        if rank >= world {
            return Err(OrderError::Rank { rank, world });
        }
        let Worker { number, workers, batch } = worker;
        if number >= workers || batch == 0 {
            return Err(OrderError::Worker { number, workers, batch });
        }
        Ok(Self {
            way: order.way(rank),
            rank,
            worker,
            given: 0,
            length: worker.share(order.length()),
            group: 0..0,
            files: Vec::new(),
            next: 0,
            stop: 0,
            order,
        })
    }

    /// The order.
    pub(crate) fn order(&self) -> &Order {
        &self.order
    }

    /// The rank.
    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    /// Which of the rank's workers.
    pub(crate) fn worker(&self) -> Worker {
        self.worker
    }

    /// Files that it gives in all.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Files that it has given or passed over.
    pub fn position(&self) -> u64 {
        self.given
    }

    /// Goes to where `position` files have been given.
    pub fn seek(&mut self, position: u64) {
        self.given = position.min(self.length);
        (self.next, self.stop) = (0, 0);
    }

    /// For each chunk the number of its first file and, behind them, the number of files.
    pub(super) fn first_files(&self) -> &[u32] {
        &self.order.first_files
    }

    /// Gives the files up to the end of the group that the next one is in, and goes on behind them.
    /// No file comes twice: who pads and comes round begins a group anew.
    pub(super) fn take_group(&mut self, files: &mut Vec<u32>) {
        let mut before = None;
        while let Some((place, _)) = self.place() {
            if before.is_some_and(|before| place <= before || !self.group.contains(&place)) {
                return;
            }
            before = Some(place);
            if self.turn().is_none() {
                return;
            }
            let step = self.way.step as usize;
            let piece = self.files.get(self.next..self.stop).unwrap_or_default();
            let count = piece.len().div_ceil(step);
            files.extend(piece.iter().step_by(step));
            self.next += count * step;
            self.given += count as u64;
        }
    }

    /// The place of the next file, and how many of this cursor's follow in one piece, itself
    /// included.
    fn place(&self) -> Option<(u64, u64)> {
        if self.given >= self.length {
            return None;
        }
        let (index, in_batch) = self.worker.at(self.given);
        let Way { places, first, step } = &self.way;
        // Only who pads comes round to the beginning.
        let (place, together) = places.at((first + index * step) % places.length().max(1))?;
        let together = together.div_ceil(*step).min(in_batch);
        Some((place, together.min(self.length - self.given)))
    }

    /// Prepares the piece that the next file is in.
    #[cold]
    fn turn(&mut self) -> Option<()> {
        let (place, together) = self.place()?;
        if !self.group.contains(&place) {
            let group = self.order.group_at(place);
            self.order.fill(&group, &mut self.files);
            self.group = group.places;
        }
        self.next = (place - self.group.start) as usize;
        let stop = together.saturating_sub(1).saturating_mul(self.way.step).saturating_add(1);
        self.stop = self.files.len().min(self.next.saturating_add(stop as usize));
        Some(())
    }
}

impl Iterator for Cursor {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        if self.next >= self.stop {
            self.turn()?;
        }
        let file = *self.files.get(self.next)?;
        self.next += self.way.step as usize;
        self.given += 1;
        Some(file)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.length - self.given).unwrap_or(usize::MAX);
        (left, Some(left))
    }
}
