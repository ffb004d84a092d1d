//! Connections to refusing, hanging or silent servers, and calls without a dataset.

use std::error::Error as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use dl_runtime::{Clock, SystemClock};
use tonic::Status;

use super::*;
use crate::dataset::Dataset;
use crate::error::Kind;
use crate::remote::options::{OnRetry, Retry};
use crate::remote::testing::{Script, info, open, options, refusing, shape, silent, start};

#[test]
fn refusing_servers_cost_one_connect_timeout_and_are_all_named() {
    let servers = [refusing(), refusing()];
    let later = Client::unconnected(options(&servers));
    let connects = || Client::connect(options(&servers)).unwrap_err();
    let asks = || later.dataset_names().unwrap_err();
    for attempt in [&connects as &dyn Fn() -> Error, &asks] {
        let clock = SystemClock::new();
        let error = attempt();
        // Not the timeout for each server.
        assert!(clock.monotonic() < Duration::from_millis(3_900));
        assert_eq!(error.kind(), Kind::Unreachable);
        let why = error.source().unwrap().to_string();
        for server in servers {
            assert!(why.contains(&format!("{server}: Connection refused")), "{why}");
        }
    }
}

#[test]
fn every_new_try_is_reported() {
    let reports = Arc::new(Mutex::new(Vec::<Retry>::new()));
    let heard = Arc::clone(&reports);
    let on_retry: OnRetry = Arc::new(move |retry| heard.lock().unwrap().push(retry.clone()));
    let server = refusing();
    let options = ConnectOptions { on_retry: Some(on_retry), ..options(&[server]) };
    let total = options.connect_timeout;
    Client::connect(options).unwrap_err();
    let reports = reports.lock().unwrap();
    let first = reports.first().expect("there were several tries");
    assert_eq!((first.action, &first.subject), ("connect to", &"the server".to_owned()));
    assert!(first.reason.contains(&format!("{server}: Connection refused")), "{first:?}");
    assert!(reports.is_sorted_by(|one, next| one.waited < next.waited && one.left > next.left));
    assert!(reports.iter().all(|retry| retry.left < total), "{reports:?}");
}

#[test]
fn connecting_to_a_silent_server_times_out() {
    let (_listener, server) = silent();
    let error = Client::connect(options(&[server])).unwrap_err();
    assert_eq!(error.kind(), Kind::TimedOut);
}

#[test]
fn one_live_server_is_enough() {
    let dataset = open(options(&[refusing(), start(Script::default())]));
    for _ in 0..10 {
        assert_eq!(dataset.refresh().unwrap(), info());
    }
}

#[test]
fn a_hanging_server_costs_one_try_and_is_then_avoided() {
    let (_listener, hangs) = silent();
    let tries = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&tries);
    let on_retry: OnRetry = Arc::new(move |_| {
        counted.fetch_add(1, Relaxed);
    });
    let (connect_timeout, request_timeout) = (Duration::from_secs(10), Duration::from_secs(12));
    let options = options(&[hangs, start(Script::default())]);
    let on_retry = Some(on_retry);
    let options = ConnectOptions { connect_timeout, request_timeout, on_retry, ..options };
    let dataset = open(options);
    for _ in 0..2 {
        for _ in 0..4 {
            dataset.refresh().unwrap();
        }
        assert_eq!(tries.load(Relaxed), 1, "the hanging server was tried again");
        // Longer than requests avoid a server after an error.
        std::thread::sleep(Duration::from_millis(2_200));
    }
}

#[test]
fn a_probe_finds_a_hanging_server_before_a_try_is_over() {
    let request_timeout = Duration::from_secs(60);
    let (_listener, hangs) = silent();
    let lives = start(Script::default());
    // Either server may be asked first.
    for servers in [[hangs, lives], [lives, hangs]] {
        let dataset = open(ConnectOptions { request_timeout, ..options(&servers) });
        let clock = SystemClock::new();
        let began = clock.monotonic();
        for _ in 0..4 {
            dataset.refresh().unwrap();
        }
        let took = clock.monotonic() - began;
        assert!(took < Duration::from_secs(8), "a try takes 20 s, and the calls took {took:?}");
    }
}

#[test]
fn user_and_key_go_with_requests_and_never_into_errors() {
    let admit = |user: &str, key: &str| match (user, key) {
        ("ann", "sesame") => Ok(()),
        _ => Err(Status::permission_denied("wrong key")),
    };
    let server = start(Script { admit: Box::new(admit), ..Script::default() });
    let server = server.to_string();
    let connect = |key| Dataset::connect("ann", Some(key), "pets", &[&server]);
    let dataset = connect("sesame").unwrap();
    assert!(!format!("{dataset:?}").contains("sesame"));
    let error = connect("guessed").unwrap_err();
    assert_eq!(error.kind(), Kind::Denied);
    assert!(!format!("{error:?}").contains("guessed"), "{error:?}");
    let unsendable = connect("se\nsame").unwrap_err();
    assert_eq!(unsendable.kind(), Kind::Invalid);
    assert!(!format!("{unsendable:?}").contains("same\""), "{unsendable:?}");
}

#[test]
fn datasets_are_listed_created_deleted_and_recovered() {
    let client = Client::connect(options(&[start(Script::default())])).unwrap();
    let name = info().name;
    assert_eq!(client.datasets().unwrap().found, [info()]);
    assert_eq!(client.dataset_names().unwrap().found, std::slice::from_ref(&name));
    assert_eq!(client.create_dataset(&name, shape()).unwrap().info(), &info());
    assert_eq!(client.delete_dataset(&name).unwrap().removed, 1);
    let mut steps = 0;
    let request = RecoverRequest { dataset: None, since: None };
    let done = client.recover(request, &mut |_| steps += 1).unwrap();
    assert_eq!((steps, done.len(), done[0].listed, done[0].done), (2, 1, 2, true));
}
