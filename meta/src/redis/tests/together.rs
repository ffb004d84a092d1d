//! Lookups that go to Redis together.

use std::sync::Arc;

use dl_format::FilePath;
use futures::future::join_all;

use super::{calls, id, path};
use crate::conformance::history::Maker;
use crate::redis::testing::Server;
use crate::{Found, MetaStore, Redis};

const CALLS: usize = 200;

async fn filled(url: &str) -> Redis {
    let names = (0..CALLS).map(|number| format!("{}/{number}", number % 7));
    super::filled(url, [&Maker::new(id(), 1).files(names)]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_calls_share_questions_and_get_own_answers() {
    let server = Server::start(&[]).await;
    let store = filled(&server.url()).await;
    store.lookup(id(), &[path("1/1")]).await.unwrap();
    let before = calls(&server, "hlen").await;
    let lookups = (0..CALLS).map(|number| {
        let there = path(format!("{}/{number}", number % 7));
        let asked: Vec<FilePath> = match number % 3 {
            0 => vec![there],
            1 => vec![path("nowhere"), there],
            _ => vec![there, path(format!("{}", number % 7))],
        };
        let store = &store;
        async move { (number, store.lookup(id(), &asked).await.unwrap()) }
    });
    for (number, found) in join_all(lookups).await {
        let file = match (number % 3, found.as_slice()) {
            (0, [Found::File(file)])
            | (1, [Found::Missing, Found::File(file)])
            | (2, [Found::File(file), Found::Folder]) => file,
            other => panic!("{number}: {other:?}"),
        };
        assert_eq!(file.version.entry as usize, number);
    }
    let asked = calls(&server, "hlen").await - before;
    assert!(asked < CALLS as u64 / 4, "{asked} questions for {CALLS} calls");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_counted_once_for_all_who_ask_at_the_same_time() {
    let server = Server::start(&[]).await;
    let store = filled(&server.url()).await;
    let before = calls(&server, "zrangebylex").await;
    for info in join_all((0..CALLS).map(|_| store.dataset(id()))).await {
        assert_eq!(info.unwrap().unwrap().files, CALLS as u64);
    }
    let read = calls(&server, "zrangebylex").await - before;
    assert!(read < 8 * 10, "{read} pages were read of eight folders and the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_is_given_up_takes_no_other_one_with_it() {
    let server = Server::start(&[]).await;
    let store = Arc::new(filled(&server.url()).await);
    for number in 0..CALLS {
        let look_up = |asked: FilePath| {
            let store = Arc::clone(&store);
            dl_runtime::spawn(async move { store.lookup(id(), &[asked]).await })
        };
        let given_up = look_up(path("1/1"));
        let kept = look_up(path(format!("{}/{number}", number % 7)));
        tokio::task::yield_now().await;
        given_up.abort();
        assert!(matches!(kept.await.unwrap().unwrap()[..], [Found::File(_)]), "{number}");
    }
}
