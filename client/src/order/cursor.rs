//! The files of a rank, or of a worker, in order.
//!
//! Must hold: memory holds the files of a single group.

use std::ops::Range;
use std::sync::Arc;

use super::{Order, OrderError, Stride, Worker};

/// An iterator over the file numbers of a rank, or of a worker of a rank.
#[derive(Debug, Clone)]
pub struct Cursor {
    order: Arc<Order>,
    rank: u32,
    stride: Stride,
    worker: Worker,
    /// The number of files given so far, and of all files.
    given: u64,
    length: u64,
    /// The places of the group in `files`.
    group: Range<u64>,
    files: Vec<u32>,
    /// Indexes in `files`: the next file, and the end of the prepared run.
    next: usize,
    stop: usize,
}

impl Cursor {
    /// The files of a rank.
    ///
    /// # Errors
    /// [`OrderError::Rank`].
    pub fn new(order: Arc<Order>, rank: u32) -> Result<Self, OrderError> {
        Self::of_worker(order, rank, Worker::ONLY)
    }

    /// The files of a worker of a rank. A loader that takes batches from its workers in turn gets
    /// the order of the rank.
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
            stride: order.stride(rank),
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

    pub(crate) fn order(&self) -> &Order {
        &self.order
    }

    pub(crate) fn rank(&self) -> u32 {
        self.rank
    }

    pub(crate) fn worker(&self) -> Worker {
        self.worker
    }

    /// The number of all files of the cursor.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// The number of files given or passed over.
    pub fn position(&self) -> u64 {
        self.given
    }

    /// Continues after `position` files.
    pub fn seek(&mut self, position: u64) {
        self.given = position.min(self.length);
        (self.next, self.stop) = (0, 0);
    }

    /// For each chunk the number of its first file; at the end the number of files.
    pub(super) fn first_files(&self) -> &[u32] {
        &self.order.first_files
    }

    /// Appends the files up to the end of the current group, and continues after them. No file
    /// comes twice: a wrap-around of padding begins another group.
    pub(super) fn take_group(&mut self, files: &mut Vec<u32>) {
        let mut before = None;
        while let Some((place, _)) = self.place() {
            if before.is_some_and(|before| place <= before || !self.group.contains(&place)) {
                return;
            }
            before = Some(place);
            if self.prepare().is_none() {
                return;
            }
            let step = self.stride.step as usize;
            let piece = self.files.get(self.next..self.stop).unwrap_or_default();
            let count = piece.len().div_ceil(step);
            files.extend(piece.iter().step_by(step));
            self.next += count * step;
            self.given += count as u64;
        }
    }

    /// The place of the next file, and the number of files in the same run from there on.
    fn place(&self) -> Option<(u64, u64)> {
        if self.given >= self.length {
            return None;
        }
        let (index, in_batch) = self.worker.at(self.given);
        let Stride { places, first, step } = &self.stride;
        // Only padding wraps around.
        let (place, together) = places.at((first + index * step) % places.length().max(1))?;
        let together = together.div_ceil(*step).min(in_batch);
        Some((place, together.min(self.length - self.given)))
    }

    /// Prepares the run with the next file.
    #[cold]
    fn prepare(&mut self) -> Option<()> {
        let (place, together) = self.place()?;
        if !self.group.contains(&place) {
            let group = self.order.group_at(place);
            self.order.fill(&group, &mut self.files);
            self.group = group.places;
        }
        self.next = (place - self.group.start) as usize;
        let stop = together.saturating_sub(1).saturating_mul(self.stride.step).saturating_add(1);
        self.stop = self.files.len().min(self.next.saturating_add(stop as usize));
        Some(())
    }
}

impl Iterator for Cursor {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        if self.next >= self.stop {
            self.prepare()?;
        }
        let file = *self.files.get(self.next)?;
        self.next += self.stride.step as usize;
        self.given += 1;
        Some(file)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.length - self.given).unwrap_or(usize::MAX);
        (left, Some(left))
    }
}
