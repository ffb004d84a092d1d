//! Questions of many threads to a scripted server: questions share requests, and no question
//! suffers from another.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use dl_format::FilePath;
use dl_proto::StatItem;

use super::{
    Asker, IN_FLIGHT, LARGE, LARGE_IN_FLIGHT, Question, Queue, RequestSlot, SHARED_MAX, Stats,
    locked,
};
use crate::error::Kind;
use crate::remote::Client;
use crate::remote::dataset::RemoteDataset;
use crate::remote::testing::{Script, info, options, path, record, start};

/// Longer than any test takes.
const FOREVER: Duration = Duration::from_secs(3600);

type Requests = Arc<Mutex<Vec<Vec<FilePath>>>>;

/// A server where every path is a file as long as its name. A path with the prefix `wrong` makes
/// the server send nonsense.
fn serving() -> (RemoteDataset, Requests) {
    let requests = Requests::default();
    let seen = Arc::clone(&requests);
    let stat = move |request: dl_proto::StatRequest| {
        seen.lock().unwrap().push(request.paths.clone());
        if request.paths.iter().any(|path| path.as_bytes().starts_with(b"wrong")) {
            return Vec::new();
        }
        request.paths.iter().map(|path| StatItem::File(record(path.as_bytes()))).collect()
    };
    let server = start(Script { stat: Box::new(stat), ..Script::default() });
    let client = Client::connect(options(&[server])).unwrap();
    (client.find(&info().name).unwrap(), requests)
}

/// A queue with the maximum of requests at a silent server.
fn held_up(patience: Duration) -> Stats {
    let queue = Queue { in_flight: IN_FLIGHT, ..Queue::default() };
    Stats { queue: Arc::new(Mutex::new(queue)), patience }
}

/// Lets one request of the silent server run.
fn answer_one(stats: &Stats, dataset: &RemoteDataset) {
    let session = dataset.session().unwrap();
    let slot = RequestSlot { queue: Arc::clone(&stats.queue), is_over: false };
    session.wait(slot.run(Arc::clone(&session.connections), dataset.info().clone()));
}

fn waiting(stats: &Stats) -> usize {
    locked(&stats.queue).paths
}

fn ask(stats: &Stats, dataset: &RemoteDataset, name: &str) -> Result<StatItem, Kind> {
    let session = dataset.session().unwrap();
    let found = stats.ask(&session, dataset.info(), &[path(name)]);
    found.map(|found| found[0].clone()).map_err(|error| error.kind())
}

#[test]
fn questions_share_a_request_and_get_their_own_answers() {
    let (dataset, requests) = serving();
    let stats = held_up(FOREVER);
    let name = |number: usize| "x".repeat(number + 1);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..20)
            .map(|number| {
                let (stats, dataset) = (&stats, &dataset);
                scope.spawn(move || ask(stats, dataset, &name(number)))
            })
            .collect();
        while waiting(&stats) != 20 {
            thread::yield_now();
        }
        assert!(requests.lock().unwrap().is_empty());
        answer_one(&stats, &dataset);
        for (number, thread) in threads.into_iter().enumerate() {
            let expected = StatItem::File(record(name(number).as_bytes()));
            assert_eq!(thread.join().unwrap(), Ok(expected));
        }
    });
    assert_eq!(requests.lock().unwrap().iter().map(Vec::len).collect::<Vec<_>>(), [20]);
    let in_flight = locked(&stats.queue).in_flight;
    assert_eq!(in_flight, IN_FLIGHT - 1, "the slot came back");
}

#[test]
fn questions_proceed_beside_requests_without_an_answer() {
    let (dataset, requests) = serving();
    let stats = held_up(Duration::from_millis(1));
    for name in ["a", "bb"] {
        assert_eq!(ask(&stats, &dataset, name), Ok(StatItem::File(record(name.as_bytes()))));
    }
    assert_eq!(requests.lock().unwrap().concat(), ["a", "bb"].map(path));
    while locked(&stats.queue).in_flight != IN_FLIGHT {
        thread::yield_now();
    }
}

#[test]
fn a_failed_request_fails_its_own_questions_and_no_later() {
    let (dataset, _) = serving();
    let stats = held_up(FOREVER);
    thread::scope(|scope| {
        let threads = ["wrong", "right"].map(|name| {
            let (stats, dataset) = (&stats, &dataset);
            scope.spawn(move || ask(stats, dataset, name))
        });
        while waiting(&stats) != 2 {
            thread::yield_now();
        }
        answer_one(&stats, &dataset);
        for thread in threads {
            assert_eq!(thread.join().unwrap(), Err(Kind::Internal));
        }
    });
    assert_eq!(ask(&stats, &dataset, "b"), Ok(StatItem::File(record(b"b"))));
}

#[test]
fn a_shared_request_stays_within_its_bounds() {
    let mut queue = Queue { in_flight: LARGE_IN_FLIGHT, ..Queue::default() };
    let short = vec![path("a"); SHARED_MAX - 1];
    let long = vec![path(&["x"; 2_000].join("/")); 130];
    for paths in [&short[..], &short[..1], &short[..1], &long[..], &long[..]] {
        let asker = Asker { thread: thread::current(), answer: Mutex::new(None) };
        let question = Question { paths: paths.to_vec(), asker: Arc::new(asker) };
        assert!(!queue.add(question));
    }
    let mut taken = || queue.take().iter().map(|question| question.paths.len()).sum::<usize>();
    assert_eq!([taken(), taken(), taken(), taken()], [SHARED_MAX, 131, 130, 0]);
    assert_eq!(queue.paths, 0);
}

#[test]
fn many_paths_allow_more_requests_in_flight() {
    let mut queue = Queue::default();
    let mut begins = |paths: usize| {
        let asker = Asker { thread: thread::current(), answer: Mutex::new(None) };
        let question = Question { paths: vec![path("a"); paths], asker: Arc::new(asker) };
        queue.add(question)
    };
    assert_eq!([1, 1, 1].map(&mut begins), [true, true, false]);
    assert_eq!([LARGE, 1, 1].map(&mut begins), [true, true, false]);
}

#[test]
fn threads_that_ask_again_and_again_are_all_answered() {
    let (dataset, requests) = serving();
    let answered = AtomicUsize::new(0);
    thread::scope(|scope| {
        for thread in 0..16 {
            let (dataset, answered) = (&dataset, &answered);
            scope.spawn(move || {
                for number in 0..200 {
                    let name = path(&format!("thread{thread}/{number}"));
                    let expected = StatItem::File(record(name.as_bytes()));
                    assert_eq!(dataset.stat_many(&[name]).unwrap(), [expected]);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    assert_eq!(answered.into_inner(), 3_200);
    let asked: HashSet<FilePath> = requests.lock().unwrap().concat().into_iter().collect();
    assert_eq!(asked.len(), 3_200);
}
