//! One rank's, or one worker's, way through an order.
//!
//! Must hold: holds the files of one group, and no more than that.

use std::ops::Range;
use std::sync::Arc;

use super::{Order, OrderError};

/// Gives the numbers of the files that one rank, or one worker of a rank, reads, in order.
#[derive(Debug, Clone)]
pub struct Cursor {
    order: Arc<Order>,
    node: usize,
    /// Which of the node's ranks this is, of how many.
    rank: u64,
    ranks: u64,
    share: Share,
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

/// The batches of a rank that a worker reads: each `workers`-th, from its own number on.
#[derive(Debug, Clone, Copy)]
struct Share {
    worker: u64,
    workers: u64,
    batch: u64,
}

impl Share {
    /// Which of the rank's files the worker's `index`-th is, and how many follow it one after the
    /// other, itself included.
    fn at(&self, index: u64) -> (u64, u64) {
        if self.workers == 1 {
            return (index, u64::MAX);
        }
        let (batch, within) = (index / self.batch, index % self.batch);
        let batch = batch * self.workers + self.worker;
        (batch * self.batch + within, self.batch - within)
    }

    /// How many of a rank's files are the worker's.
    fn of(&self, files: u64) -> u64 {
        let (full, rest) = (files / self.batch, files % self.batch);
        let mine = (full + self.workers - 1 - self.worker) / self.workers;
        let last = if full % self.workers == self.worker { rest } else { 0 };
        mine * self.batch + last
    }
}

impl Cursor {
    /// The way of one rank.
    ///
    /// # Errors
    /// [`OrderError::Rank`].
    pub fn new(order: Arc<Order>, rank: u32) -> Result<Self, OrderError> {
        Self::of_worker(order, rank, 0, 1, 1)
    }

    /// The way of one worker of a rank, which reads each `workers`-th batch of `batch` files: what
    /// a loader gets that asks its workers for batches in turn is the order of the rank.
    ///
    /// # Errors
    /// [`OrderError::Rank`], [`OrderError::Worker`].
    pub fn of_worker(
        order: Arc<Order>,
        rank: u32,
        worker: u32,
        workers: u32,
        batch: u32,
    ) -> Result<Self, OrderError> {
        let world = order.settings.world;
        if rank >= world {
            return Err(OrderError::Rank { rank, world });
        }
        if worker >= workers || batch == 0 {
            return Err(OrderError::Worker { worker, workers, batch });
        }
        let share = Share { worker: worker.into(), workers: workers.into(), batch: batch.into() };
        let ranks = order.settings.ranks_of_a_node();
        let rank = u64::from(rank);
        Ok(Self {
            node: (rank / ranks) as usize,
            rank: rank % ranks,
            ranks,
            share,
            given: 0,
            length: share.of(order.length()),
            group: 0..0,
            files: Vec::new(),
            next: 0,
            stop: 0,
            order,
        })
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

    /// Gives the files up to the end of the group that the next one is in, and goes on behind them.
    /// No file comes twice: who pads and comes round begins a group anew.
    pub(crate) fn take_group(&mut self, files: &mut Vec<u32>) {
        let mut before = None;
        while let Some((place, _)) = self.place() {
            if before.is_some_and(|before| place <= before || !self.group.contains(&place)) {
                return;
            }
            before = Some(place);
            if self.turn().is_none() {
                return;
            }
            let step = self.ranks as usize;
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
        let span = self.order.spans.get(self.node)?;
        let (index, in_batch) = self.share.at(self.given);
        // Only who pads comes round to the beginning.
        let index = (index * self.ranks + self.rank) % span.length().max(1);
        let (place, together) = span.at(index)?;
        let together = together.div_ceil(self.ranks).min(in_batch);
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
        let stop = together.saturating_sub(1).saturating_mul(self.ranks).saturating_add(1);
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
        self.next += self.ranks as usize;
        self.given += 1;
        Some(file)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::try_from(self.length - self.given).unwrap_or(usize::MAX);
        (left, Some(left))
    }
}
