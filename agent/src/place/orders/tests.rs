//! Orders of several ranks, their shares of the slots, and their progress.

use std::cell::RefCell;

use libdiesel::order::{Cursor, Order};

use super::*;

const FILES: u32 = 4;
const ROOM: u32 = 100;

fn presence(there: &HashSet<ChunkKey>, key: ChunkKey) -> Presence {
    if there.contains(&key) { Presence::Transient } else { Presence::Absent }
}

/// An order for each rank, with chunks of four files.
fn orders(ranks: u32, chunks: u32, group: u32, slots: u32) -> Orders {
    let first_files: Arc<[u32]> = (0..=chunks).map(|chunk| chunk * FILES).collect();
    let mut orders = Orders { slots, ..Orders::default() };
    for rank in 0..ranks {
        let begin = Begin {
            seed: 3,
            epoch: 0,
            group,
            world: ranks,
            nodes: Some(ranks),
            is_padded: false,
            rank,
            position: 0,
            selection: None,
        };
        orders.begin(rank.into(), 0, Arc::clone(&first_files), begin).unwrap();
    }
    orders
}

/// The sequence of fetched chunks.
fn fetched(mut next: impl FnMut(&HashSet<ChunkKey>) -> Option<ChunkKey>) -> Vec<u32> {
    let (mut there, mut came) = (HashSet::new(), Vec::new());
    while let Some(key) = next(&there) {
        assert!(there.insert(key), "twice");
        came.push(key.chunk);
    }
    came
}

#[test]
fn ranks_of_a_node_take_turns() {
    let orders = RefCell::new(orders(4, 40, 5, 100));
    let came = fetched(|there| orders.borrow_mut().next(ROOM, |key| presence(there, key)));
    assert_eq!(came.len(), 4 * 5, "the group of each rank");
    let orders = orders.borrow();
    for round in came.chunks(4) {
        let ranks = round.iter().map(|chunk| {
            orders.orders.iter().position(|order| order.window.needs(*chunk)).unwrap()
        });
        assert_eq!(ranks.collect::<HashSet<_>>().len(), 4, "{round:?}");
    }
}

#[test]
fn chunks_beyond_the_window_follow_in_the_order_of_first_need() {
    let orders = RefCell::new(orders(1, 30, 5, 100));
    let came = fetched(|there| {
        let is_there = |key| there.contains(&key);
        let mut orders = orders.borrow_mut();
        orders.next(ROOM, |key| presence(there, key)).or_else(|| orders.next_after_window(is_there))
    });
    let begun = orders.borrow_mut().orders.remove(0);
    let settings = OrderSettings::from(&begun.key.1);
    let first_files = (0..=30).map(|chunk| chunk * FILES).collect::<Vec<_>>();
    let selection = Arc::new(Selection::all(30 * FILES));
    let order = Order::new(first_files.into(), selection, settings).unwrap();
    let mut wanted = Vec::new();
    for file in Cursor::new(Arc::new(order), 0).unwrap() {
        if !wanted.contains(&(file / FILES)) {
            wanted.push(file / FILES);
        }
    }
    assert_eq!(came, wanted);
}

#[test]
fn the_progress_of_an_epoch_sums_over_its_ranks() {
    let mut orders = orders(2, 10, 2, 100);
    let at = |positions: [u64; 2]| move |connection| Some(positions[connection as usize]);
    orders.follow(at([3, 8]));
    let whole = Progress { epoch: 0, position: 11, files: 40 };
    assert_eq!((orders.progress(0), orders.progress(1)), (Some(whole), None));
    orders.leave(1);
    let half = Progress { epoch: 0, position: 3, files: 20 };
    assert_eq!(orders.progress(0), Some(half));
}

#[test]
fn orders_share_the_slots_and_report_the_largest_fitting_group() {
    let orders = orders(3, 90, 10, 25);
    let groups: Vec<_> =
        orders.followed().map(|order| (order.group_max, order.chunks.len())).collect();
    assert_eq!(groups, [(24, 10), (13, 10), (2, 0)]);
}

#[test]
fn a_too_large_group_is_reported_and_fetched_as_it_fits() {
    let mut orders = orders(1, 30, 10, 10);
    assert_eq!(orders.group_max(0), Some(9));
    assert!(orders.next(ROOM, |_| Presence::Absent).is_none());
    assert!(orders.next_of_large(|_| false).is_some());
    let followed: Vec<OrderView> = orders.followed().collect();
    let [order] = &followed[..] else { panic!("{followed:?}") };
    assert_eq!((order.group, order.group_max, order.chunks.len()), (10, 9, 0));
}
