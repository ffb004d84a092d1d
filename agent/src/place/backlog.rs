//! Chunks to be fetched without a waiting reader or a near need. They are the chunks of prefetches
//! and, with the policy `oneshot`, all chunks of all datasets.
//!
//! Must hold: prefetches come first, in the order of their requests. A list is walked once: a chunk
//! is checked again only after leaving memory.

use std::collections::VecDeque;

use super::ChunkKey;

/// Maximum of waiting prefetches, each of one message.
const PREFETCHES_MAX: usize = 256;

/// The chunks still to be fetched, as positions in lists.
#[derive(Debug, Default)]
pub struct Backlog {
    prefetches: VecDeque<List>,
    /// A list for each dataset to be fetched as a whole.
    all: Vec<List>,
    /// Whether memory had no room for the next chunk of a prefetch.
    pub is_stuck: bool,
}

/// Chunks of one dataset.
#[derive(Debug)]
struct List {
    dataset: usize,
    /// Start and end of the remaining runs.
    runs: VecDeque<(u32, u32)>,
}

impl List {
    /// The first absent chunk; chunks that are done before it leave the list.
    fn next(&mut self, is_done: impl Fn(ChunkKey) -> bool) -> Option<ChunkKey> {
        let dataset = self.dataset;
        while let Some((start, end)) = self.runs.front_mut() {
            let first = (*start..*end).find(|chunk| !is_done(ChunkKey { dataset, chunk: *chunk }));
            if let Some(chunk) = first {
                *start = chunk;
                return Some(ChunkKey { dataset, chunk });
            }
            self.runs.pop_front();
        }
        None
    }

    fn chunks(&self) -> u64 {
        self.runs.iter().map(|(start, end)| u64::from(end.saturating_sub(*start))).sum()
    }
}

impl Backlog {
    /// Adds a prefetch of a dataset with `chunks` chunks. False if the request is invalid, or too
    /// many prefetches wait.
    pub fn prefetch(&mut self, dataset: usize, chunks: u32, runs: Vec<(u32, u32)>) -> bool {
        let list = List { dataset, runs: runs.into() };
        let is_legal = list.runs.iter().all(|(start, end)| start <= end && *end <= chunks);
        if !is_legal || list.chunks() > chunks.into() || self.prefetches.len() >= PREFETCHES_MAX {
            return false;
        }
        self.prefetches.push_back(list);
        self.is_stuck = false;
        true
    }

    /// Adds all chunks of a dataset.
    pub fn add_all(&mut self, dataset: usize, chunks: u32) {
        self.all.push(List { dataset, runs: [(0, chunks)].into() });
    }

    /// Starts a dataset's list again, because chunks skipped as other members' chunks may belong to
    /// this agent now.
    pub fn begin_again(&mut self, dataset: usize, chunks: u32) {
        if let Some(list) = self.all.iter_mut().find(|list| list.dataset == dataset) {
            list.runs = [(0, chunks)].into();
        }
    }

    /// Removes all lists of a dataset.
    pub fn forget(&mut self, dataset: usize) {
        self.prefetches.retain(|list| list.dataset != dataset);
        self.all.retain(|list| list.dataset != dataset);
    }

    /// The next absent chunk of the prefetches.
    pub fn next_of_prefetches(&mut self, is_done: impl Fn(ChunkKey) -> bool) -> Option<ChunkKey> {
        while let Some(list) = self.prefetches.front_mut() {
            if let Some(key) = list.next(&is_done) {
                return Some(key);
            }
            self.prefetches.pop_front();
        }
        self.is_stuck = false;
        None
    }

    /// The next absent chunk of the whole datasets.
    pub fn next_of_all(&mut self, is_done: impl Fn(ChunkKey) -> bool) -> Option<ChunkKey> {
        self.all.iter_mut().find_map(|list| list.next(&is_done))
    }

    /// Notes that a chunk has left memory, or that its fetch failed for now.
    pub fn is_absent_again(&mut self, key: ChunkKey) {
        let list = self.all.iter_mut().find(|list| list.dataset == key.dataset);
        let Some(list) = list else { return };
        match list.runs.front_mut() {
            Some((start, end)) => {
                (*start, *end) = (key.chunk.min(*start), key.chunk.saturating_add(1).max(*end));
            }
            None => list.runs.push_front((key.chunk, key.chunk.saturating_add(1))),
        }
    }

    /// Chunks of prefetches not yet processed.
    pub fn waiting(&self) -> u64 {
        self.prefetches.iter().map(List::chunks).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::HashSet;

    use super::*;

    fn key(dataset: usize, chunk: u32) -> ChunkKey {
        ChunkKey { dataset, chunk }
    }

    #[test]
    fn prefetches_come_in_order_without_present_chunks() {
        let mut backlog = Backlog::default();
        assert!(backlog.prefetch(1, 9, vec![(7, 9), (2, 4)]));
        assert!(backlog.prefetch(0, 3, vec![(0, 3)]));
        assert_eq!(backlog.waiting(), 7);
        let there = RefCell::new(HashSet::from([key(1, 8), key(0, 0)]));
        let mut order = Vec::new();
        while let Some(next) = backlog.next_of_prefetches(|key| there.borrow().contains(&key)) {
            order.push((next.dataset, next.chunk));
            there.borrow_mut().insert(next);
        }
        assert_eq!(order, [(1, 7), (1, 2), (1, 3), (0, 1), (0, 2)]);
        assert_eq!(backlog.waiting(), 0);
    }

    #[test]
    fn a_prefetch_of_too_much_is_refused() {
        let mut backlog = Backlog::default();
        assert!(!backlog.prefetch(0, 9, vec![(0, 10)]), "a chunk that there is not");
        assert!(!backlog.prefetch(0, 9, vec![(5, 4)]), "a run that ends before it begins");
        assert!(!backlog.prefetch(0, 9, vec![(0, 9), (0, 9)]), "a chunk twice");
        assert!((0..PREFETCHES_MAX).all(|_| backlog.prefetch(0, 9, vec![(0, 9)])));
        assert!(!backlog.prefetch(0, 9, vec![(0, 9)]), "too many");
    }

    #[test]
    fn a_fill_checks_each_chunk_once_until_the_chunk_leaves_memory() {
        const CHUNKS: u32 = 1_000;
        let mut backlog = Backlog::default();
        backlog.add_all(0, CHUNKS);
        let (there, looks) = (RefCell::new(HashSet::new()), RefCell::new(0));
        let settled = |key: ChunkKey| {
            *looks.borrow_mut() += 1;
            there.borrow().contains(&key.chunk)
        };
        while let Some(next) = backlog.next_of_all(settled) {
            there.borrow_mut().insert(next.chunk);
        }
        assert_eq!(there.borrow().len(), CHUNKS as usize);
        assert!(*looks.borrow() <= 2 * CHUNKS, "{looks:?} looks");
        for chunk in [30, 700, 20] {
            there.borrow_mut().remove(&chunk);
            backlog.is_absent_again(key(0, chunk));
        }
        let mut again = Vec::new();
        while let Some(next) = backlog.next_of_all(settled) {
            there.borrow_mut().insert(next.chunk);
            again.push(next.chunk);
        }
        assert_eq!(again, [20, 30, 700]);
        backlog.is_absent_again(key(1, 5));
        assert_eq!(backlog.next_of_all(settled), None, "a dataset that is not to be there");
    }
}
