//! Questions of many threads against a server that follows a script: they share requests, and
//! none pays for another one.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use dl_format::FilePath;
use dl_proto::StatItem;

use super::{
    Asker, GATHERED, Gathering, LARGE, LARGE_UNDER_WAY, Question, Stats, Turn, UNDER_WAY, lock,
};
use crate::error::Kind;
use crate::remote::Client;
use crate::remote::dataset::RemoteDataset;
use crate::remote::testing::{Script, info, options, path, record, start};

/// Longer than any test takes.
const FOREVER: Duration = Duration::from_secs(3600);

/// The paths of each request.
type Requests = Arc<Mutex<Vec<Vec<FilePath>>>>;

/// A server at which every path is a file as long as its name; all paths that begin with `wrong`
/// make it answer nonsense.
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

/// Questions as they are while as many requests as may be are at a server that says nothing.
fn held_up(patience: Duration) -> Stats {
    let gathering = Gathering { under_way: UNDER_WAY, ..Gathering::default() };
    Stats { gathering: Arc::new(Mutex::new(gathering)), patience }
}

/// The silent server answers one of them.
fn answer_one(stats: &Stats, dataset: &RemoteDataset) {
    let session = dataset.session().unwrap();
    let turn = Turn { gathering: Arc::clone(&stats.gathering), is_over: false };
    session.wait(turn.run(Arc::clone(&session.connections), dataset.info().clone()));
}

fn waiting(stats: &Stats) -> usize {
    lock(&stats.gathering).paths
}

fn ask(stats: &Stats, dataset: &RemoteDataset, name: &str) -> Result<StatItem, Kind> {
    let session = dataset.session().unwrap();
    let found = stats.ask(&session, dataset.info(), &[path(name)]);
    found.map(|found| found[0].clone()).map_err(|error| error.kind())
}

#[test]
fn questions_of_many_threads_go_as_one_and_each_gets_its_own_answer() {
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
    let under_way = lock(&stats.gathering).under_way;
    assert_eq!(under_way, UNDER_WAY - 1, "the turn came back");
}

#[test]
fn questions_go_on_beside_requests_that_are_never_answered() {
    let (dataset, requests) = serving();
    let stats = held_up(Duration::from_millis(1));
    for name in ["a", "bb"] {
        assert_eq!(ask(&stats, &dataset, name), Ok(StatItem::File(record(name.as_bytes()))));
    }
    assert_eq!(requests.lock().unwrap().concat(), ["a", "bb"].map(path));
    while lock(&stats.gathering).under_way != UNDER_WAY {
        thread::yield_now();
    }
}

#[test]
fn a_request_that_fails_fails_those_that_share_it_and_no_later_one() {
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
fn no_request_grows_beyond_its_bounds() {
    let mut gathering = Gathering { under_way: LARGE_UNDER_WAY, ..Gathering::default() };
    let short = vec![path("a"); GATHERED - 1];
    let long = vec![path(&["x"; 2_000].join("/")); 130];
    for paths in [&short[..], &short[..1], &short[..1], &long[..], &long[..]] {
        let asker = Asker { thread: thread::current(), answer: Mutex::new(None) };
        let question = Question { paths: paths.to_vec(), asker: Arc::new(asker) };
        assert!(!gathering.add(question));
    }
    let mut taken = || gathering.take().iter().map(|question| question.paths.len()).sum::<usize>();
    assert_eq!([taken(), taken(), taken(), taken()], [GATHERED, 131, 130, 0]);
    assert_eq!(gathering.paths, 0);
}

#[test]
fn many_questions_go_in_several_requests_at_a_time_and_few_in_two() {
    let mut gathering = Gathering::default();
    let mut begins = |paths: usize| {
        let asker = Asker { thread: thread::current(), answer: Mutex::new(None) };
        let question = Question { paths: vec![path("a"); paths], asker: Arc::new(asker) };
        gathering.add(question)
    };
    assert_eq!([1, 1, 1].map(&mut begins), [true, true, false]);
    assert_eq!([LARGE, 1, 1].map(&mut begins), [true, true, false]);
}

#[test]
fn threads_that_ask_without_end_are_all_answered() {
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
