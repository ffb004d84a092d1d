//! The window of an epoch, with fetchers controlled by each test.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use bytes::Bytes;

use super::group::Content;
use super::window::{Fetch, Taken, Window};
use crate::epoch::Turns;
use crate::error::{Error, Kind};
use crate::order::{Cursor, Order, OrderSettings, Selection, Tail};

const CHUNKS: u32 = 12;
const FILES: u32 = 10;
const GROUP: u32 = 3;
const FETCHERS: usize = 2;

/// A window over chunks of ten files, with a count of the started fetchers.
struct Scene {
    window: Arc<Window>,
    started: Arc<AtomicUsize>,
    order: Vec<u32>,
    turns: Turns,
    /// Chunks of another source.
    elsewhere: Arc<Mutex<Vec<u32>>>,
}

impl Scene {
    fn new(settings: OrderSettings) -> Self {
        let first_files: Arc<[u32]> = (0..=CHUNKS).map(|chunk| chunk * FILES).collect();
        let selection = Arc::new(Selection::all(CHUNKS * FILES));
        let order = Order::new(first_files, selection, settings).unwrap();
        let cursor = Cursor::new(Arc::new(order), 0).unwrap();
        let started = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&started);
        let start = move || _ = counted.fetch_add(1, Ordering::SeqCst);
        let order = cursor.clone().collect();
        let turns = Turns::new(cursor.clone());
        let elsewhere = Arc::new(Mutex::new(Vec::new()));
        let chunks = Arc::clone(&elsewhere);
        let is_elsewhere = Box::new(move |chunk| chunks.lock().unwrap().contains(&chunk));
        let window = Window::new(cursor, Box::new(start), FETCHERS, is_elsewhere);
        Self { window: Arc::new(window), started, order, turns, elsewhere }
    }

    /// Runs the started fetchers; gives the finished fetches.
    fn fetch(&self, result: impl Fn(&Fetch) -> Result<Vec<Content>, Error>) -> Vec<Vec<u32>> {
        let mut done = Vec::new();
        while self.started.load(Ordering::SeqCst) > 0 {
            while let Some(fetch) = self.window.next_fetch() {
                done.push(fetch.numbers.clone());
                self.window.record(&fetch, result(&fetch));
            }
            self.started.fetch_sub(1, Ordering::SeqCst);
        }
        done
    }

    /// Takes a file with fetchers at work; gives the fetches.
    fn take(
        &self,
        number: u32,
        result: impl Fn(&Fetch) -> Result<Vec<Content>, Error> + Sync,
    ) -> (Taken, Vec<Vec<u32>>) {
        self.taking(|| self.window.take(number), result)
    }

    /// The same at a position of the order.
    fn take_at(
        &self,
        position: u64,
        result: impl Fn(&Fetch) -> Result<Vec<Content>, Error> + Sync,
    ) -> (Taken, Vec<Vec<u32>>) {
        let number = self.order[position as usize];
        self.taking(|| self.window.take_at(position, number).expect("a planned group"), result)
    }

    fn taking(
        &self,
        take: impl FnOnce() -> Taken + Send,
        result: impl Fn(&Fetch) -> Result<Vec<Content>, Error> + Sync,
    ) -> (Taken, Vec<Vec<u32>>) {
        thread::scope(|scope| {
            let taking = scope.spawn(take);
            let mut done = Vec::new();
            while !taking.is_finished() {
                done.extend(self.fetch(&result));
                thread::yield_now();
            }
            done.extend(self.fetch(&result));
            (taking.join().unwrap(), done)
        })
    }
}

/// Fills each file with its number.
fn well(fetch: &Fetch) -> Result<Vec<Content>, Error> {
    let bytes = |number: &u32| Content::Bytes(Bytes::copy_from_slice(&number.to_le_bytes()));
    Ok(fetch.numbers.iter().map(bytes).collect())
}

fn away(_: &Fetch) -> Result<Vec<Content>, Error> {
    Err(Error::new(Kind::Unreachable, "read", "a chunk", "no server answers"))
}

fn is_file(taken: &Taken, number: u32) -> bool {
    matches!(taken, Taken::File(Ok(bytes)) if **bytes == number.to_le_bytes())
}

#[test]
fn a_window_fetches_two_groups_and_each_chunk_once() {
    let scene = Scene::new(OrderSettings::new(1, 0, GROUP));
    let group = (GROUP * FILES) as usize;
    let mut fetched = Vec::new();
    for (index, expected) in scene.order.iter().enumerate() {
        let (taken, done) = scene.take_at(index as u64, well);
        assert!(is_file(&taken, *expected), "{taken:?}");
        fetched.extend(done);
        let chunks = ((index + 1) / group + 2).min((CHUNKS / GROUP) as usize) * GROUP as usize;
        assert_eq!(fetched.len(), chunks, "after {index}");
    }
    let mut files = fetched.concat();
    files.sort_unstable();
    assert_eq!(files, (0..CHUNKS * FILES).collect::<Vec<_>>());
}

#[test]
fn a_late_read_of_a_dropped_group_is_separate() {
    let scene = Scene::new(OrderSettings::new(1, 0, GROUP));
    let group = (GROUP * FILES) as usize;
    let (late, second) = (scene.order[0], &scene.order[group..]);
    for number in &second[..group.div_ceil(4)] {
        assert!(is_file(&scene.take(*number, well).0, *number));
    }
    assert!(matches!(scene.window.take(late), Taken::Separate));
    let third = scene.order[2 * group];
    assert!(is_file(&scene.take(third, well).0, third), "the next group has arrived");
}

#[test]
fn files_read_by_path_are_still_delivered_in_order() {
    let scene = Scene::new(OrderSettings::new(1, 0, GROUP));
    assert!(is_file(&scene.take_at(0, well).0, scene.order[0]));
    for number in &scene.order[..(GROUP * FILES * 3 / 2) as usize] {
        assert!(is_file(&scene.take(*number, well).0, *number));
    }
    for (position, number) in (0..).zip(&scene.order).skip(1) {
        assert!(is_file(&scene.take_at(position, well).0, *number));
    }
}

#[test]
fn a_position_behind_the_two_groups_waits_for_the_first_group() {
    let scene = Scene::new(OrderSettings::new(1, 0, GROUP));
    let group = u64::from(GROUP * FILES);
    let third = || scene.window.take_at(2 * group, scene.order[2 * group as usize]);
    for position in 0..group {
        assert!(third().is_none(), "at {position}");
        assert!(is_file(&scene.take_at(position, well).0, scene.order[position as usize]));
    }
    assert!(is_file(&scene.take_at(2 * group, well).0, scene.order[2 * group as usize]));
}

/// The files before the last position were read without the window.
#[test]
fn a_lone_position_behind_the_two_groups_skips_them() {
    let scene = Scene::new(OrderSettings::new(1, 0, GROUP));
    let skipped = u64::from(2 * GROUP * FILES) + 7;
    for _ in 0..skipped {
        scene.turns.end(scene.turns.give().unwrap());
    }
    let turn = scene.turns.give().unwrap();
    assert_eq!(turn.position, skipped);
    assert!(scene.window.take_at(turn.position, turn.number).is_none());
    assert!(!scene.turns.wait(turn), "no other thread reads");
    for position in [skipped, 0] {
        scene.window.skip(position);
    }
    for (position, number) in (0..).zip(&scene.order).skip(skipped as usize) {
        assert!(is_file(&scene.take_at(position, well).0, *number), "at {position}");
    }
    let late = skipped - 1;
    assert!(matches!(scene.take_at(late, well).0, Taken::Separate));
}

#[test]
fn chunks_of_another_source_are_left_to_it_and_keep_no_group() {
    let scene = Scene::new(OrderSettings::new(1, 0, GROUP));
    scene.elsewhere.lock().unwrap().extend(0..CHUNKS / 2);
    let mut fetched = Vec::new();
    for (position, number) in (0..).zip(&scene.order) {
        let (taken, done) = scene.take_at(position, well);
        let is_left = matches!(taken, Taken::Separate);
        assert_eq!(is_left, *number < CHUNKS / 2 * FILES, "{number}: {taken:?}");
        fetched.extend(done);
    }
    let mut files = fetched.concat();
    files.sort_unstable();
    assert_eq!(files, (CHUNKS / 2 * FILES..CHUNKS * FILES).collect::<Vec<_>>());
}

#[test]
fn an_ended_window_gives_the_files_of_its_groups_only() {
    let scene = Scene::new(OrderSettings::new(1, 0, GROUP));
    let end = scene.window.end_ahead().unwrap();
    assert_eq!(end, u64::from(2 * GROUP * FILES));
    for (position, number) in (0..end).zip(&scene.order) {
        assert!(!scene.window.is_behind(position));
        assert!(is_file(&scene.take_at(position, well).0, *number));
    }
    assert!(scene.window.is_behind(end));
    assert!(matches!(scene.take_at(end, well).0, Taken::Separate));
}

#[test]
fn without_a_server_fetching_stops_until_the_next_read() {
    let scene = Scene::new(OrderSettings::new(1, 0, GROUP));
    let first = scene.order[0];
    for _ in 0..2 {
        let (taken, tried) = scene.take_at(0, away);
        assert!(matches!(taken, Taken::Unreachable(_)), "{taken:?}");
        assert!(tried.len() <= FETCHERS, "{tried:?}");
    }
    let (taken, fetched) = scene.take_at(0, well);
    assert!(is_file(&taken, first), "{taken:?}");
    assert_eq!(fetched.len(), 2 * GROUP as usize, "all other chunks are fetched again");
}

#[test]
fn a_lost_fetcher_leaves_no_thread_waiting() {
    let scene = Scene::new(OrderSettings::new(1, 0, GROUP));
    let first = scene.order[0];
    thread::scope(|scope| {
        let taking = scope.spawn(|| scene.window.take(first));
        while scene.started.load(Ordering::SeqCst) == 0 {
            thread::yield_now();
        }
        let fetch = scene.window.next_fetch().unwrap();
        assert!(fetch.numbers.contains(&first), "a chunk with a waiting thread comes first");
        let why = Error::new(Kind::Internal, "read", "a chunk", "the task ended");
        scene.window.lose(&fetch, why);
        assert!(matches!(taking.join().unwrap(), Taken::Unreachable(_)));
    });
}

#[test]
fn threads_share_an_epoch_and_leave_nothing_out() {
    for (group, tail) in [(1, Tail::Drop), (3, Tail::Pad), (50, Tail::Drop)] {
        let scene = Scene::new(OrderSettings { tail, ..OrderSettings::new(1, 0, group) });
        let read = Mutex::new(Vec::new());
        thread::scope(|scope| {
            let readers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        while let Some(turn) = scene.turns.give() {
                            let (position, number) = (turn.position, turn.number);
                            match scene.window.take_at(position, number) {
                                None => {
                                    if !scene.turns.wait(turn) {
                                        scene.window.skip(position);
                                    }
                                    continue;
                                }
                                // A dropped group is read separately.
                                Some(Taken::Separate) => {}
                                Some(taken) => assert!(is_file(&taken, number), "{taken:?}"),
                            }
                            scene.turns.end(turn);
                            read.lock().unwrap().push((position, number));
                        }
                    })
                })
                .collect();
            while !readers.iter().all(|reader| reader.is_finished()) {
                scene.fetch(well);
                thread::yield_now();
            }
        });
        let mut read = read.into_inner().unwrap();
        read.sort_unstable();
        let expected: Vec<_> = (0..).zip(scene.order.iter().copied()).collect();
        assert_eq!(read, expected, "groups of {group}");
    }
}
