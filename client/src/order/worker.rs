//! A worker's part of the files of a rank.
//!
//! Must hold: the batches of all workers, taken in turn, are the batches of the rank.

/// A worker of a loader: every `workers`-th batch of the rank, from `number` on. Batches count from
/// the begin of the epoch or from its resumption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Worker {
    /// The number of the worker, counted from 0.
    pub number: u32,
    /// The number of workers.
    pub workers: u32,
    /// Files in a batch, at least 1. The last batch of the rank may have fewer.
    pub batch: u32,
}

impl Worker {
    /// The only worker of a rank, with all files.
    pub(crate) const ONLY: Self = Self { number: 0, workers: 1, batch: 1 };

    /// The rank's index for the worker's index.
    pub(crate) fn of_rank(&self, index: u64) -> u64 {
        self.at(index).0
    }

    /// The same, with the number of consecutive files of the rank from there on.
    pub(super) fn at(&self, index: u64) -> (u64, u64) {
        if self.workers == 1 {
            return (index, u64::MAX);
        }
        let batch = u64::from(self.batch);
        let within = index % batch;
        let of_rank = index / batch * u64::from(self.workers) + u64::from(self.number);
        (of_rank * batch + within, batch - within)
    }

    /// The worker's number of files, for a number of files of the rank.
    pub(crate) fn share(&self, files: u64) -> u64 {
        let [number, workers, batch] = [self.number, self.workers, self.batch].map(u64::from);
        let (full, rest) = (files / batch, files % batch);
        let mine = (full + workers - 1 - number) / workers;
        mine * batch + if full % workers == number { rest } else { 0 }
    }
}
