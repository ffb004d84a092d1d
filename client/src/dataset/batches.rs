//! The files of an epoch in batches of views.
//!
//! Must hold: an unreadable file is reported and the next file follows; a failed or abandoned call
//! skips no file.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use dl_runtime::locked;

use super::Dataset;
use crate::epoch::Epoch;
use crate::error::Error;
use crate::worker::View;

/// A file of a batch: its number in the snapshot, with its bytes or the error.
pub type BatchFile = (u32, Result<View, Error>);

/// The files of an epoch as views, batch after batch. A clone shares the place in the epoch.
#[derive(Debug, Clone)]
pub struct Batches {
    epoch: Epoch,
    dataset: Dataset,
    ahead: Arc<Mutex<Ahead>>,
}

/// Files taken from the order and not yet returned: a failed or abandoned call leaves them to the
/// next call.
#[derive(Debug, Default)]
struct Ahead {
    /// Before the files of `taken`.
    read: VecDeque<BatchFile>,
    taken: Vec<u32>,
    /// Whether the order is exhausted.
    is_over: bool,
}

impl Batches {
    /// The files of an epoch of a dataset.
    pub fn new(epoch: Epoch, dataset: Dataset) -> Self {
        Self { epoch, dataset, ahead: Arc::default() }
    }

    /// The epoch.
    pub fn epoch(&self) -> &Epoch {
        &self.epoch
    }

    /// The next files, at most `files`, none at the end, without waiting. `None` if a file is absent
    /// from the memory of the node, or another call is reading: see [`read`](Self::read).
    ///
    /// # Errors
    /// Those of [`Epoch::take`].
    pub fn present(&self, files: usize) -> Result<Option<Vec<BatchFile>>, Error> {
        let mut ahead = match self.ahead.try_lock() {
            Ok(ahead) => ahead,
            Err(TryLockError::Poisoned(ahead)) => ahead.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        if self.is_cached() {
            ahead.look(self, files)?;
        }
        let is_there = ahead.is_over || ahead.read.len() >= files;
        Ok(is_there.then(|| ahead.give(files)))
    }

    /// The next files, at most `files`, none at the end.
    ///
    /// # Errors
    /// While the servers can't be asked; the next call goes on with the same file.
    pub fn read(&self, files: usize) -> Result<Vec<BatchFile>, Error> {
        let mut ahead = self.ahead();
        ahead.fill(self, files)?;
        Ok(ahead.give(files))
    }

    /// Reads until the next files, at most `files`, are [`present`](Self::present).
    ///
    /// # Errors
    /// As for [`read`](Self::read).
    pub fn fill(&self, files: usize) -> Result<(), Error> {
        self.ahead().fill(self, files)
    }

    /// The numbers of the next files, at most `files`, none at the end, without their bytes.
    ///
    /// # Errors
    /// Those of [`Epoch::take`].
    pub fn take(&self, files: usize) -> Result<Vec<u32>, Error> {
        let mut ahead = self.ahead();
        let mut numbers: Vec<u32> =
            ahead.give(files).into_iter().map(|(number, _)| number).collect();
        let taken = ahead.taken.len().min(files - numbers.len());
        numbers.extend(ahead.taken.drain(..taken));
        numbers.extend(self.epoch.take(files - numbers.len())?);
        Ok(numbers)
    }

    /// The next file, if it is read already.
    pub fn next_read(&self) -> Option<BatchFile> {
        self.ahead.try_lock().ok()?.read.pop_front()
    }

    /// Puts files back before all others, in their order.
    pub fn put_back(&self, files: Vec<BatchFile>) {
        let mut ahead = self.ahead();
        files.into_iter().rev().for_each(|file| ahead.read.push_front(file));
    }

    /// The number of files returned.
    pub fn position(&self) -> u64 {
        let ahead = self.ahead.try_lock().map_or(0, |ahead| ahead.read.len() + ahead.taken.len());
        self.epoch.position().saturating_sub(ahead as u64)
    }

    fn ahead(&self) -> MutexGuard<'_, Ahead> {
        locked(&self.ahead)
    }

    /// Whether files are read from the memory of the node.
    fn is_cached(&self) -> bool {
        self.dataset.worker().is_some()
    }
}

impl Ahead {
    /// Takes up to `files` files, and reads the files present in the memory of the node.
    fn look(&mut self, of: &Batches, files: usize) -> Result<(), Error> {
        if self.taken.is_empty() && self.read.len() < files {
            self.taken = of.epoch.take(files - self.read.len())?;
            self.is_over = self.taken.is_empty();
        }
        let mut views = Vec::with_capacity(self.taken.len());
        of.dataset.view_present(&self.taken, &mut views);
        let numbers = self.taken.drain(..views.len());
        self.read.extend(numbers.zip(views.into_iter().map(Ok)));
        Ok(())
    }

    /// Reads until `files` files, or all remaining files, are there.
    fn fill(&mut self, of: &Batches, files: usize) -> Result<(), Error> {
        while self.read.len() < files {
            if !of.is_cached() {
                let Some(file) = of.epoch.next()? else {
                    self.is_over = true;
                    return Ok(());
                };
                self.read.push_back((file.number, file.bytes.map(View::from)));
                continue;
            }
            if self.taken.is_empty() {
                self.taken = of.epoch.take(files - self.read.len())?;
            }
            if self.taken.is_empty() {
                self.is_over = true;
                return Ok(());
            }
            let read = of.dataset.view_each(&self.taken)?;
            self.read.extend(self.taken.drain(..).zip(read));
        }
        Ok(())
    }

    fn give(&mut self, files: usize) -> Vec<BatchFile> {
        self.read.drain(..files.min(self.read.len())).collect()
    }
}

impl Dataset {
    /// Borrows many files, in their order, each with an error of its own.
    ///
    /// # Errors
    /// While the servers can't be asked.
    pub fn view_each<F: super::AsFile>(
        &self,
        files: &[F],
    ) -> Result<Vec<Result<View, Error>>, Error> {
        match self.view_many(files) {
            Ok(views) => Ok(views.into_iter().map(Ok).collect()),
            Err(error) if error.kind().is_retryable() => Err(error),
            Err(_) => files
                .iter()
                .map(|file| match self.view_many(std::slice::from_ref(file)) {
                    Err(error) if error.kind().is_retryable() => Err(error),
                    Err(error) => Ok(vec![Err(error)]),
                    Ok(views) => Ok(views.into_iter().map(Ok).collect()),
                })
                .collect::<Result<Vec<Vec<_>>, _>>()
                .map(|each| each.into_iter().flatten().collect()),
        }
    }
}
