//! Epochs over a scripted source.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;
use crate::process::tests::holds_in_a_child;

const FILES: u32 = 24;

/// The result of a read, by position.
type Script = dyn Fn(u64) -> Option<Result<(), Error>> + Send + Sync;

struct Scripted(Arc<Script>);

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

/// Fills each file with its number.
fn bytes_of(number: u32) -> Bytes {
    Bytes::copy_from_slice(&number.to_le_bytes())
}

impl FileSource for Scripted {
    fn read(&self, position: u64, number: u32) -> Option<FileRead> {
        Some((self.0)(position)?.map(|()| Ok(bytes_of(number))))
    }

    fn pass(&self, _: u64) {}

    fn skip(&self, _: u64) {}

    fn read_out_of_order(&self, number: u32) -> Option<FileRead> {
        (number == 3).then(|| Ok(Ok(bytes_of(number))))
    }
}

fn away() -> Error {
    Error::new(Kind::Unreachable, "read", "a chunk", "no server answers")
}

/// An epoch of four chunks of six files, in groups of two chunks.
fn epoch(
    options: ShuffleOptions,
    script: impl Fn(u64) -> Option<Result<(), Error>> + Send + Sync + 'static,
) -> Epoch {
    let chunk = |chunk| (0..FILES / 4).map(|file| format!("{chunk}/{file}")).collect();
    let chunks: Vec<Vec<String>> = (0..4).map(chunk).collect();
    let snapshot = Arc::new(crate::report::tests::snapshot(&chunks));
    let script: Arc<Script> = Arc::new(script);
    let open = move |_| Ok(Box::new(Scripted(Arc::clone(&script))) as Box<dyn FileSource>);
    Epoch::begin("dl://pets".to_owned(), snapshot, options, Box::new(open)).unwrap()
}

fn options() -> ShuffleOptions {
    ShuffleOptions::new(7, 0, 2)
}

fn next(epoch: &Epoch) -> (u64, u32) {
    let file = epoch.next().unwrap().expect("more files");
    assert_eq!(file.bytes.unwrap(), bytes_of(file.number));
    assert_eq!(file.path, epoch.snapshot().path(file.number).unwrap());
    (file.position, file.number)
}

#[test]
fn files_come_in_their_order_for_ranks_workers_and_tokens() {
    let token = epoch(options(), |_| Some(Ok(()))).token(5);
    let resumed = ShuffleOptions { resume: Some(token), ..options() };
    let cases = [
        (options(), 24),
        (options().of_rank(1, 3), 8),
        (options().of_worker(1, 2, 5), 10),
        (resumed, 19),
    ];
    for (options, files) in cases {
        let epoch = epoch(options.clone(), |_| Some(Ok(())));
        assert_eq!(epoch.length(), files);
        let order: Vec<u32> = epoch.cursor().unwrap().collect();
        let mut last = None;
        for (index, number) in order.iter().enumerate() {
            assert_eq!(epoch.position(), index as u64);
            let (position, found) = next(&epoch);
            assert_eq!(found, *number, "{options:?}");
            assert!(last < Some(position));
            last = Some(position);
        }
        assert!(epoch.next().unwrap().is_none());
        assert_eq!((order.len() as u64, epoch.position()), (files, files));
    }
}

#[test]
fn a_file_without_a_server_comes_again_before_all_others() {
    let is_away = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&is_away);
    let epoch = epoch(options(), move |_| match seen.load(Ordering::SeqCst) {
        true => Some(Err(away())),
        false => Some(Ok(())),
    });
    let order: Vec<u32> = epoch.cursor().unwrap().collect();
    assert_eq!(next(&epoch), (0, order[0]));
    is_away.store(true, Ordering::SeqCst);
    for _ in 0..2 {
        assert_eq!(epoch.next().unwrap_err().kind(), Kind::Unreachable);
        assert_eq!(epoch.position(), 1);
    }
    is_away.store(false, Ordering::SeqCst);
    assert_eq!(next(&epoch), (1, order[1]));
    assert_eq!(epoch.read_out_of_order(3).unwrap().unwrap().unwrap(), bytes_of(3));
    assert!(epoch.read_out_of_order(4).is_none());
}

/// A thread waits for the read of another thread, which fails and gives its file back.
#[test]
fn a_waiting_thread_takes_a_file_given_back_by_another() {
    let is_waiting = Arc::new(AtomicBool::new(false));
    let failed = Arc::new(AtomicBool::new(false));
    let (waiting, tried) = (Arc::clone(&is_waiting), Arc::clone(&failed));
    let epoch = epoch(options(), move |position| match position {
        // The first try ends after another thread has begun to wait.
        0 if !tried.load(Ordering::SeqCst) => {
            while !waiting.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            tried.store(true, Ordering::SeqCst);
            Some(Err(away()))
        }
        1 if !tried.load(Ordering::SeqCst) => {
            waiting.store(true, Ordering::SeqCst);
            None
        }
        _ => Some(Ok(())),
    });
    let order: Vec<u32> = epoch.cursor().unwrap().collect();
    let read = Mutex::new(BTreeSet::new());
    thread::scope(|scope| {
        let gives_up = scope.spawn(|| assert!(epoch.next().is_err()));
        while epoch.position() == 0 {
            thread::yield_now();
        }
        scope.spawn(|| {
            for _ in 0..FILES {
                read.lock().unwrap().insert(next(&epoch));
            }
        });
        gives_up.join().unwrap();
    });
    let expected: BTreeSet<_> = (0..).zip(order).collect();
    assert_eq!(read.into_inner().unwrap(), expected);
}

#[test]
fn a_forked_process_resumes_with_its_own_source() {
    let epoch = epoch(options(), |_| Some(Ok(())));
    let order: Vec<u32> = epoch.cursor().unwrap().collect();
    for position in 0..5 {
        assert_eq!(next(&epoch), (position, order[position as usize]));
    }
    assert!(holds_in_a_child(|| {
        epoch.read_out_of_order(3).is_none()
            && epoch.position() == 5
            && next(&epoch) == (5, order[5])
            && epoch.read_out_of_order(3).is_some()
            && holds_in_a_child(|| next(&epoch) == (6, order[6]))
    }));
    assert_eq!(next(&epoch), (5, order[5]), "the parent has its own position");
}
