//! The part of a rank's files that one worker of a loader reads.
//!
//! Must hold: the batches that workers are asked for in turns are those of their rank.

/// A worker of a loader: each `workers`-th batch of its rank is its own, from its number on.
/// Batches are counted from where the epoch begins or goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Worker {
    /// Which one, counted from 0.
    pub number: u32,
    /// Of how many.
    pub workers: u32,
    /// Files of a batch, at least 1. The rank's last one may have fewer.
    pub batch: u32,
}

impl Worker {
    /// The only one of its rank, which reads everything.
    pub(crate) const ONLY: Self = Self { number: 0, workers: 1, batch: 1 };

    /// Which of the rank's files its `index`-th is.
    pub(crate) fn of_rank(&self, index: u64) -> u64 {
        self.at(index).0
    }

    /// The same, and how many files of the rank follow it one after the other, itself included.
    pub(super) fn at(&self, index: u64) -> (u64, u64) {
        if self.workers == 1 {
            return (index, u64::MAX);
        }
        let batch = u64::from(self.batch);
        let within = index % batch;
        let of_rank = index / batch * u64::from(self.workers) + u64::from(self.number);
        (of_rank * batch + within, batch - within)
    }

    /// How many of as many files of a rank it reads.
    pub(crate) fn share(&self, files: u64) -> u64 {
        let [number, workers, batch] = [self.number, self.workers, self.batch].map(u64::from);
        let (full, rest) = (files / batch, files % batch);
        let mine = (full + workers - 1 - number) / workers;
        mine * batch + if full % workers == number { rest } else { 0 }
    }
}
