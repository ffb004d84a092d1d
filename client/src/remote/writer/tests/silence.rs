//! Servers without answers, from the start or from a later time on.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dl_runtime::{Clock, SystemClock};
use tonic::Status;

use super::{Objects, PLAIN, header, keeping, put_numbered};
use crate::error::Kind;
use crate::remote::ConnectOptions;
use crate::remote::testing::{Script, open, options, silent, start};

#[test]
fn a_silent_server_is_avoided() {
    let objects = Objects::default();
    let (_listener, silent) = silent();
    let servers = [silent, start(keeping(&objects))];
    let patience = Duration::from_secs(9);
    let dataset = open(ConnectOptions { request_timeout: patience, ..options(&servers) });
    for number in 0..4 {
        put_numbered(&dataset, number..number + 1, 10);
        assert_eq!(dataset.flush().unwrap().check().unwrap().files, 1);
    }
    let ids: HashSet<_> =
        objects.lock().unwrap().iter().map(|object| header(object).id()).collect();
    assert_eq!(ids.len(), 4);
}

#[test]
fn a_cause_is_reported_although_the_server_is_silent_later() {
    let is_first = AtomicBool::new(true);
    let server = start(Script::putting(move |_| {
        if is_first.swap(false, Ordering::Relaxed) {
            return Box::pin(async { Err(Status::unavailable("Redis is away")) });
        }
        Box::pin(std::future::pending())
    }));
    let patience = Duration::from_secs(4);
    let dataset = open(ConnectOptions { request_timeout: patience, ..options(&[server]) });
    dataset.put("a", PLAIN, b"bytes").unwrap();
    let error = dataset.close().unwrap_err();
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(why, format!("{server}: Redis is away"));
}

#[test]
fn with_silent_servers_a_write_fails_in_time_and_names_them() {
    let server = start(Script::putting(|_| Box::pin(std::future::pending())));
    let patience = Duration::from_secs(1);
    let dataset = open(ConnectOptions { request_timeout: patience, ..options(&[server]) });
    dataset.put("a", PLAIN, b"bytes").unwrap();
    let clock = SystemClock::new();
    let error = dataset.close().unwrap_err();
    assert!(clock.monotonic() < patience * 5);
    assert_eq!(error.kind(), Kind::TimedOut);
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(why, format!("{server}: no answer within 500ms"));
}
