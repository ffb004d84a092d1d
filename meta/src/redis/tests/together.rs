//! Lookups that go to Redis together.

use std::sync::Arc;

use dl_format::FilePath;
use dl_runtime::SystemClock;
use futures::future::join_all;

use super::{hasty, id, open, path, record};
use crate::conformance::history::Maker;
use crate::redis::testing::Server;
use crate::{Found, Kind, MetaStore, Redis};

const CALLS: usize = 200;

async fn filled(url: &str) -> Redis {
    let store = open(url).await;
    store.put_dataset(&record()).await.unwrap();
    let names: Vec<_> = (0..CALLS).map(|number| format!("{}/{number}", number % 7)).collect();
    let object = Maker::new(id(), 1).chunk(names.iter().map(|name| (name.as_bytes(), 1)));
    store.append(&object).await.unwrap();
    store
}

/// How often Redis was asked for a root.
async fn roots(server: &Server) -> u64 {
    let info = server.text(&["INFO", "commandstats"]).await;
    let line = info.lines().find(|line| line.starts_with("cmdstat_hmget:"));
    line.and_then(|line| line.split(['=', ',']).nth(1)?.parse().ok()).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_many_calls_at_once_gets_its_own_answer_and_they_share_questions() {
    let server = Server::start(&[]).await;
    let store = filled(&server.url()).await;
    store.lookup(id(), &[path("1/1")]).await.unwrap();
    let before = roots(&server).await;
    let calls = (0..CALLS).map(|number| {
        let there = path(format!("{}/{number}", number % 7));
        let asked: Vec<FilePath> = match number % 3 {
            0 => vec![there],
            1 => vec![path("nowhere"), there],
            _ => vec![there, path(format!("{}", number % 7))],
        };
        let store = &store;
        async move { (number, store.lookup(id(), &asked).await.unwrap()) }
    });
    for (number, found) in join_all(calls).await {
        let entry = |found: &Found| match found {
            Found::File(record) => record.version.entry,
            other => panic!("{number}: {other:?}"),
        };
        match (number % 3, found.as_slice()) {
            (0, [file]) | (1, [Found::Missing, file]) | (2, [file, Found::Folder]) => {
                assert_eq!(entry(file) as usize, number);
            }
            other => panic!("{number}: {other:?}"),
        }
    }
    let asked = roots(&server).await - before;
    assert!(asked < CALLS as u64 / 4, "{asked} roots were read for {CALLS} calls");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_counted_once_for_all_who_ask_at_the_same_time() {
    let server = Server::start(&[]).await;
    let store = filled(&server.url()).await;
    let ranges = async || {
        let info = server.text(&["INFO", "commandstats"]).await;
        let line = info.lines().find(|line| line.starts_with("cmdstat_zrangebylex:"));
        line.and_then(|line| line.split(['=', ',']).nth(1)?.parse::<u64>().ok()).unwrap_or(0)
    };
    let before = ranges().await;
    for info in join_all((0..CALLS).map(|_| store.dataset(id()))).await {
        assert_eq!(info.unwrap().unwrap().files, CALLS as u64);
    }
    let read = ranges().await - before;
    assert!(read < 8 * 10, "{read} pages were read of eight folders and the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lookup_sees_what_was_appended_before_it_however_many_are_on_their_way() {
    let server = Server::start(&[]).await;
    let store = Arc::new(filled(&server.url()).await);
    let mut maker = Maker::new(id(), 2);
    let objects: Vec<_> =
        (0..100).map(|number| maker.chunk([(format!("new/{number}").as_bytes(), 1)])).collect();
    let calls = objects.iter().enumerate().map(|(number, object)| {
        let store = &store;
        async move {
            store.append(object).await.unwrap();
            let found = store.lookup(id(), &[path(format!("new/{number}"))]).await.unwrap();
            assert!(matches!(found[..], [Found::File(_)]), "{number}: {found:?}");
        }
    });
    join_all(calls).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_given_up_takes_no_other_one_with_it() {
    let server = Server::start(&[]).await;
    let store = Arc::new(filled(&server.url()).await);
    for number in 0..CALLS {
        let (first, second) = (Arc::clone(&store), Arc::clone(&store));
        let given_up =
            dl_runtime::spawn(async move { first.lookup(id(), &[path("1/1")]).await.map(|_| ()) });
        let asked = path(format!("{}/{number}", number % 7));
        let kept = dl_runtime::spawn(async move { second.lookup(id(), &[asked]).await });
        tokio::task::yield_now().await;
        given_up.abort();
        assert!(matches!(kept.await.unwrap().unwrap()[..], [Found::File(_)]), "{number}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_redis_is_away_those_that_wait_fail_with_those_that_asked() {
    let server = Server::start(&[]).await;
    let url = server.url();
    drop(filled(&url).await);
    let clock = Arc::new(SystemClock::new());
    let store = Redis::open(&url, hasty(), clock).await.unwrap();
    store.lookup(id(), &[path("1/1")]).await.unwrap();
    server.kill();
    let asked = [path("1/1")];
    let calls = (0..CALLS).map(|_| store.lookup(id(), &asked));
    let ended = tokio::time::timeout(hasty().patience * 6, join_all(calls)).await;
    for answer in ended.expect("they don't wait for each other") {
        assert_eq!(answer.unwrap_err().kind, Kind::Unavailable);
    }
}
