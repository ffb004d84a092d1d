//! Ranges of chunks out of stores in memory: whole, in order, each for itself, in bounded memory.

use std::sync::Arc;

use dl_format::ChunkId;

use super::*;
use crate::testing::{Careless, Rig, rig};

const MIB: u32 = 1 << 20;

/// Stores an object of so many bytes under the name of a chunk.
async fn store(rig: &Rig, dataset: DatasetId, number: u8, length: usize) -> (ChunkId, Bytes) {
    let id = ChunkId::from_bytes([number; 16]);
    let bytes: Bytes = (0..length).map(|n| (n.wrapping_mul(31) >> 4) as u8 ^ number).collect();
    let key = object_key(dataset, id, ObjectKind::Chunk);
    rig.context.store.create(&key, bytes.clone()).await.unwrap();
    (id, bytes)
}

fn range(chunk: ChunkId, offset: u32, length: u32) -> ChunkRange {
    ChunkRange { chunk, offset, length }
}

/// A request under way: its answer, and the memory that it has.
struct Asked {
    came: mpsc::Receiver<Reply<Pieces>>,
    budget: Budget,
    reserved: Arc<Reservation>,
}

fn ask(context: &ServerContext, budget: u32, request: GetChunksRequest) -> Asked {
    let (replies, came) = mpsc::channel(2);
    let (budget, reserved) = (Budget::new(budget, "test"), Arc::<Reservation>::default());
    let (context, reads, held) = (context.clone(), budget.clone(), Arc::clone(&reserved));
    dl_runtime::spawn(async move {
        let executor = Executor::new(Arc::clone(&context.store));
        get(&context, &executor, (&reads, &held), request, replies).await.unwrap();
    });
    Asked { came, budget, reserved }
}

impl Asked {
    /// All bytes of each range, and the failure that ended it.
    async fn answer(mut self, ranges: usize) -> Vec<(Vec<u8>, Option<(Kind, String)>)> {
        let mut answer = vec![(Vec::new(), None); ranges];
        loop {
            let (pieces, is_last) = match self.came.recv().await.expect("an end of the answer") {
                Reply::More(pieces) => (pieces, false),
                Reply::Last(pieces) => (pieces, true),
            };
            for ChunkPiece { range, data } in pieces {
                let (bytes, failed) = &mut answer[range as usize];
                assert!(failed.is_none(), "nothing follows a failure");
                match data {
                    Ok(data) => {
                        assert!((1..=PIECE_BYTES).contains(&(data.len() as u64)));
                        bytes.extend_from_slice(&data);
                    }
                    Err(why) => *failed = Some(why),
                }
            }
            if is_last {
                assert!(self.came.recv().await.is_none());
                return answer;
            }
        }
    }
}

fn request(dataset: DatasetId, ranges: &[ChunkRange]) -> GetChunksRequest {
    GetChunksRequest { dataset, ranges: ranges.to_vec(), pass_copies: false }
}

#[tokio::test]
async fn ranges_come_whole_and_in_order_in_any_memory() {
    let rig = rig().await;
    let dataset = rig.create("ds").await;
    let (long, long_bytes) = store(&rig, dataset, 1, 9 << 20).await;
    let (short, short_bytes) = store(&rig, dataset, 2, 5_000).await;
    let ranges = [
        range(short, 0, 5_000),
        range(long, 77, 9 * MIB - 77),
        range(short, 4_999, 1),
        range(long, 0, 300_000),
        range(long, 310_000, 1),
    ];
    for budget in [64 * MIB, 3 * MIB, 400_000] {
        let asked = ask(&rig.context, budget, request(dataset, &ranges));
        let answer = asked.answer(ranges.len()).await;
        for (range, (bytes, failed)) in ranges.iter().zip(answer) {
            let object = if range.chunk == long { &long_bytes } else { &short_bytes };
            let from = range.offset as usize;
            assert_eq!(failed, None);
            assert!(bytes == object[from..from + range.length as usize], "{range:?}");
        }
    }
}

#[tokio::test]
async fn a_missing_short_or_foreign_chunk_fails_alone() {
    let rig = rig().await;
    let (dataset, other) = (rig.create("ds").await, rig.create("other").await);
    let (there, bytes) = store(&rig, dataset, 1, 400_000).await;
    let (foreign, _) = store(&rig, other, 2, 400_000).await;
    let ranges = [
        range(ChunkId::from_bytes([7; 16]), 0, 9 * MIB),
        range(there, 0, 400_000),
        range(foreign, 0, 400_000),
        range(there, 399_999, 2),
        range(there, 1, 2),
    ];
    let asked = ask(&rig.context, 64 * MIB, request(dataset, &ranges));
    let answer = asked.answer(ranges.len()).await;
    let kinds: Vec<_> = answer.iter().map(|(_, why)| why.as_ref().map(|(kind, _)| *kind)).collect();
    assert_eq!(
        kinds,
        [Some(Kind::NotFound), None, Some(Kind::NotFound), Some(Kind::Corrupt), None]
    );
    assert!(answer[1].0 == bytes[..] && answer[4].0 == bytes[1..3]);
}

#[tokio::test]
async fn a_stuck_client_holds_two_waves_within_its_memory() {
    let rig = rig().await;
    let dataset = rig.create("ds").await;
    let (long, _) = store(&rig, dataset, 1, 60 << 20).await;
    let ranges = [range(long, 0, 60 * MIB); 64];
    let before = rig.counters.counts().read_bytes;
    let asked = ask(&rig.context, 48 * MIB, request(dataset, &ranges));
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    let read = rig.counters.counts().read_bytes - before;
    assert!((1..=2 * WAVES[0]).contains(&read), "{read} bytes were read");
    let (total, used) = asked.budget.total_and_used();
    assert_eq!((total, used), (u64::from(48 * MIB), memory(COST_MAX, WAVES[0])));
    let (budget, reserved) = (asked.budget.clone(), Arc::downgrade(&asked.reserved));
    drop(asked);
    while reserved.strong_count() > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(budget.total_and_used().1, 0);
}

#[tokio::test]
async fn copies_are_given_up_when_the_request_says_so() {
    let rig = rig().await;
    let dataset = rig.create("ds").await;
    let (one, _) = store(&rig, dataset, 1, 300_000).await;
    let (two, _) = store(&rig, dataset, 2, 10).await;
    let careless = Arc::new(Careless::new(Arc::clone(&rig.context.store)));
    let context = ServerContext { store: Arc::<Careless>::clone(&careless), ..rig.context.clone() };
    let ranges = [range(one, 0, 300_000), range(two, 0, 10)];
    for pass_copies in [false, true] {
        let request = GetChunksRequest { pass_copies, ..request(dataset, &ranges) };
        ask(&context, 64 * MIB, request).answer(2).await;
        let keys = [one, two].map(|id| object_key(dataset, id, ObjectKind::Chunk));
        let expected = if pass_copies { keys.to_vec() } else { Vec::new() };
        assert_eq!(careless.invalidated(), expected);
    }
}
