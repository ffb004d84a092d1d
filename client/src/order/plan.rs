//! The chunks of a group, in the order of need.
//!
//! Must hold: the plan has exactly the files of the group, each in a single chunk. A chunk precedes
//! the chunks whose first files are read later.

use std::ops::Range;

use super::Cursor;

/// The files of a group for a rank or a worker, by chunk. A chunk is named by its index in the
/// plan; the indexes follow the numbers of the chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChunkPlan {
    positions: Range<u64>,
    /// Numbers of the files, ascending, each once.
    numbers: Vec<u32>,
    chunks: Vec<PlannedChunk>,
    by_need: Vec<usize>,
}

/// A chunk, and the range of its files in the numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PlannedChunk {
    number: u32,
    files: Range<usize>,
}

impl ChunkPlan {
    /// The plan for the files from the cursor's position to the end of their group. Moves the
    /// cursor to the end of the group. None at the end of the order.
    pub fn next_of(cursor: &mut Cursor) -> Option<Self> {
        let (start, mut order) = (Cursor::position(cursor), Vec::new());
        cursor.take_group(&mut order);
        let plan = Self::new(start, &order, cursor.first_files());
        (!order.is_empty()).then_some(plan)
    }

    /// The plan of files in reading order, from a position on. `first_files` holds for each chunk
    /// the number of its first file.
    fn new(start: u64, order: &[u32], first_files: &[u32]) -> Self {
        let mut numbers = order.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let mut chunks = Vec::new();
        let mut from = 0;
        while let Some(first) = numbers.get(from) {
            let next = first_files.partition_point(|start| start <= first);
            let end = first_files.get(next).copied().unwrap_or(u32::MAX);
            let rest = numbers.get(from..).unwrap_or_default();
            let to = from + rest.partition_point(|number| *number < end).max(1);
            chunks.push(PlannedChunk { number: next.saturating_sub(1) as u32, files: from..to });
            from = to;
        }
        let positions = start..start + order.len() as u64;
        let mut plan = Self { positions, numbers, chunks, by_need: Vec::new() };
        plan.by_need = plan.sorted_by_need(order);
        plan
    }

    fn sorted_by_need(&self, order: &[u32]) -> Vec<usize> {
        let mut seen = vec![false; self.chunks.len()];
        let mut by_need = Vec::with_capacity(self.chunks.len());
        for number in order {
            if by_need.len() == self.chunks.len() {
                break;
            }
            let chunk = self.chunk_of(*number);
            if let Some(seen) = seen.get_mut(chunk)
                && !std::mem::replace(seen, true)
            {
                by_need.push(chunk);
            }
        }
        by_need
    }

    /// Positions of the files in the order of their reader.
    pub fn positions(&self) -> Range<u64> {
        self.positions.clone()
    }

    /// The number of chunks.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// The number of different files. A padded order may contain a file twice.
    pub fn files(&self) -> usize {
        self.numbers.len()
    }

    /// The number of a chunk in the snapshot.
    pub fn number_of(&self, chunk: usize) -> Option<u32> {
        self.chunks.get(chunk).map(|chunk| chunk.number)
    }

    /// The numbers of the files in a chunk, ascending.
    pub fn files_of(&self, chunk: usize) -> &[u32] {
        let files = self.chunks.get(chunk).map_or(0..0, |chunk| chunk.files.clone());
        self.numbers.get(files).unwrap_or_default()
    }

    /// The chunks, in the order of the first need.
    pub fn by_need(&self) -> &[usize] {
        &self.by_need
    }

    /// The chunk of a file, and the index of the file among the wanted files of the chunk; none for
    /// a file outside of the group.
    pub fn find(&self, number: u32) -> Option<(usize, usize)> {
        let chunk = self.chunk_of(number);
        let files = self.files_of(chunk);
        // Usually all files of a chunk are wanted.
        let dense = number.checked_sub(*files.first()?)? as usize;
        let place = if files.get(dense) == Some(&number) {
            dense
        } else {
            files.binary_search(&number).ok()?
        };
        Some((chunk, place))
    }

    /// The chunk with a file, if the file belongs to the group.
    fn chunk_of(&self, number: u32) -> usize {
        let starts_by = |chunk: &PlannedChunk| {
            self.numbers.get(chunk.files.start).is_some_and(|first| *first <= number)
        };
        self.chunks.partition_point(starts_by).saturating_sub(1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::order::{Order, OrderSettings, Partition, Selection, Tail, Worker};

    #[test]
    fn exactly_the_files_of_the_group_are_found_by_their_chunks() {
        let plan = ChunkPlan::new(40, &[9, 2, 30, 3, 8, 29], &[0, 0, 5, 10, 10, 40]);
        let files: Vec<&[u32]> = (0..plan.chunks()).map(|chunk| plan.files_of(chunk)).collect();
        assert_eq!(files, [&[2, 3][..], &[8, 9], &[29, 30]]);
        let numbers: Vec<_> = (0..4).map(|chunk| plan.number_of(chunk)).collect();
        assert_eq!(numbers, [Some(1), Some(2), Some(4), None]);
        assert_eq!(plan.by_need(), [1, 0, 2]);
        assert_eq!((plan.positions(), plan.files()), (40..46, 6));
        for number in 0..50 {
            let found = plan.find(number);
            let files = found.map(|(chunk, place)| plan.files_of(chunk)[place]);
            assert_eq!(files, [2, 3, 8, 9, 29, 30].contains(&number).then_some(number));
        }
    }

    proptest! {
        #[test]
        fn plans_hold_the_files_of_a_cursor_by_chunk_and_need(
            sizes in proptest::collection::vec(0_u32..9, 1..30),
            (group, world, rank, workers) in (1_u32..8, 1_u32..4, 0_u32..4, 1_u32..4),
            (seed, is_padded, is_local, left_out) in any::<(u64, bool, bool, u32)>(),
        ) {
            let ends = sizes.iter().scan(0, |end, size| { *end += size; Some(*end) });
            let first_files: Arc<[u32]> = std::iter::once(0).chain(ends).collect();
            let files = sizes.iter().sum();
            let wanted = (0..files).filter(|number| number % 5 != left_out % 7);
            let selection = Arc::new(Selection::of(files, wanted).unwrap());
            let partition =
                if is_local { Partition::Local { nodes: world } } else { Partition::Global };
            let tail = if is_padded { Tail::Pad } else { Tail::Drop };
            let settings =
                OrderSettings { world, partition, tail, ..OrderSettings::new(seed, 0, group) };
            let order = Arc::new(Order::new(Arc::clone(&first_files), selection, settings).unwrap());
            let worker = Worker { number: rank % workers, workers, batch: 3 };
            let mut cursor = Cursor::of_worker(order, rank % world, worker).unwrap();
            let all: Vec<u32> = cursor.clone().collect();

            let mut position = 0;
            while let Some(plan) = ChunkPlan::next_of(&mut cursor) {
                prop_assert_eq!(plan.positions().start, position);
                position = plan.positions().end;
                prop_assert_eq!(cursor.position(), position);
                let read = &all[plan.positions().start as usize..position as usize];
                // For each chunk: the first need, and the files.
                let mut chunks = BTreeMap::<u32, (usize, Vec<u32>)>::new();
                for (need, number) in read.iter().enumerate() {
                    let chunk = first_files.partition_point(|first| first <= number) as u32 - 1;
                    chunks.entry(chunk).or_insert((need, Vec::new())).1.push(*number);
                }
                let mut needs = Vec::new();
                for (index, (chunk, (need, mut wanted))) in chunks.into_iter().enumerate() {
                    wanted.sort_unstable();
                    wanted.dedup();
                    prop_assert_eq!(plan.number_of(index), Some(chunk));
                    prop_assert_eq!(plan.files_of(index), &wanted);
                    needs.push((need, index));
                }
                needs.sort_unstable();
                let by_need: Vec<usize> = needs.into_iter().map(|(_, index)| index).collect();
                prop_assert_eq!(plan.by_need(), by_need);
                for number in 0..files {
                    let found = plan.find(number).map(|(chunk, place)| plan.files_of(chunk)[place]);
                    prop_assert_eq!(found, read.contains(&number).then_some(number));
                }
            }
            prop_assert_eq!(position, all.len() as u64);
        }
    }
}
