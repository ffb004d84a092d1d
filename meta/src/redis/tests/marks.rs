//! How much the marks hold, and how often they are written.

use std::sync::Arc;
use std::time::Duration;

use dl_format::Stamp;
use dl_runtime::ManualClock;
use redis::Value;

use super::{STORE, id, open, record};
use crate::conformance::history::Maker;
use crate::redis::keys;
use crate::redis::slots::Shard;
use crate::redis::testing::Server;
use crate::{Brought, Damage, MetaStore, Redis, RedisOptions};

const HOUR: u64 = 3_600_000_000;

async fn bound(server: &Server) -> Redis {
    let store = open(&server.url()).await;
    store.bind(STORE).await.unwrap();
    assert_eq!(store.damage().await.unwrap(), None);
    store
}

/// Most bringings-back that any mark tells of.
async fn told(server: &Server) -> usize {
    let mut most = 0;
    for shard in Shard::all() {
        let mark = String::from_utf8(keys::mark(shard).bytes).unwrap();
        let Value::Array(fields) = server.ask(&["HKEYS", &mark]).await else { panic!("a hash") };
        let is_told =
            |field: &&Value| matches!(field, Value::BulkString(f) if f.starts_with(b"mend:"));
        most = most.max(fields.iter().filter(is_told).count());
    }
    most
}

fn now(store: &Redis) -> u64 {
    Stamp::at(store.shared.clock.now()).get()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_that_found_no_damage_leaves_nothing_in_the_marks() {
    let server = Server::start(&[]).await;
    let store = bound(&server).await;
    for _ in 0..3 {
        let mending = store.mending(Some(Stamp::new(now(&store)))).await.unwrap();
        assert_eq!(told(&server).await, 1, "it is told while it lasts");
        store.mended(&mending, Brought::All, STORE).await.unwrap();
        assert_eq!(told(&server).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn appends_of_old_objects_leave_a_few_fields_that_go_back_as_far_as_all_did() {
    let server = Server::start(&[]).await;
    let store = bound(&server).await;
    let oldest = Stamp::new(now(&store) / 1_000 * 1_000 - 100 * HOUR);
    for number in 0..30 {
        let since = Stamp::new(oldest.get() + number * HOUR);
        let mending = store.mending(Some(since)).await.unwrap();
        // Every other one is cut off.
        if number % 2 == 0 {
            store.mended(&mending, Brought::Some, STORE).await.unwrap();
        }
    }
    assert!(told(&server).await <= 12, "{} fields", told(&server).await);
    // As after the restart of one that has lost what was said last.
    let mark = String::from_utf8(keys::mark(Shard::FIRST).bytes).unwrap();
    let lose = "for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
            if string.sub(field, 1, 5) == 'mend:' then redis.call('HDEL', KEYS[1], field) end
        end
        return redis.call('HSET', KEYS[1], 'run', 'other:other')";
    server.ask(&["EVAL", lose, "1", &mark]).await;
    assert_eq!(store.damage().await.unwrap(), Some(Damage { since: Some(oldest) }));
}

#[tokio::test(flavor = "multi_thread")]
async fn marks_are_written_by_one_server_of_those_that_append_and_seldom_when_none_does() {
    let server = Server::start(&[]).await;
    let store = bound(&server).await;
    store.put_dataset(&record()).await.unwrap();
    let others = [open(&server.url()).await, open(&server.url()).await];
    let mark = String::from_utf8(keys::mark(Shard::FIRST).bytes).unwrap();
    let seen = async || server.text(&["HGET", &mark, "seen"]).await;
    let second = || store.shared.clock.sleep(Duration::from_millis(1_100));
    let mut maker = Maker::new(id(), 1);
    let mut object = || maker.chunk([(&b"a"[..], 1)]);
    let first = seen().await;
    second().await;
    store.damage().await.unwrap();
    assert_eq!(seen().await, first, "nothing was appended");
    let clock = &store.shared.clock;
    let mut before = first;
    // Again where this machine was so busy that a second passed.
    let written = loop {
        store.append(&object()).await.unwrap();
        let began = clock.monotonic();
        store.damage().await.unwrap();
        let written = seen().await;
        assert_ne!(written, before, "it is not said that what was appended is there");
        others[0].append(&object()).await.unwrap();
        for other in &others {
            assert_eq!(other.damage().await.unwrap(), None);
        }
        let now = seen().await;
        if now == written {
            break written;
        }
        let took = clock.monotonic() - began;
        assert!(took > Duration::from_millis(900), "it was written again after {took:?}");
        before = now;
        second().await;
    };
    second().await;
    others[1].damage().await.unwrap();
    store.damage().await.unwrap();
    assert_eq!(seen().await, written, "by one that has appended nothing since");
    others[0].damage().await.unwrap();
    assert_ne!(seen().await, written, "its writer may be gone");
}

/// A server of which the clock is an hour ahead.
async fn hasty_clock(server: &Server, store: &Redis) -> Redis {
    let ahead = store.shared.clock.now() + Duration::from_secs(3_600);
    let clock = Arc::new(ManualClock::new(ahead));
    Redis::open(&server.url(), RedisOptions::default(), clock).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_clock_is_ahead_hides_no_later_loss() {
    let server = Server::start(&[]).await;
    let store = bound(&server).await;
    store.put_dataset(&record()).await.unwrap();
    let ahead = hasty_clock(&server, &store).await;
    ahead.append(&Maker::new(id(), 1).chunk([(&b"a"[..], 1)])).await.unwrap();
    ahead.damage().await.unwrap();
    let mending = ahead.mending(Some(Stamp::new(now(&ahead)))).await.unwrap();
    ahead.mended(&mending, Brought::All, STORE).await.unwrap();
    let mark = String::from_utf8(keys::mark(Shard::FIRST).bytes).unwrap();
    let seen: u64 = server.text(&["HGET", &mark, "seen"]).await.parse().unwrap();
    assert!(seen <= now(&store) / 1_000, "{seen}");
    // What an earlier version wrote comes down, too.
    let later = (seen + 3_600_000).to_string();
    server.ask(&["HSET", &mark, "seen", &later]).await;
    let mut object = Maker::new(id(), 2);
    store.append(&object.chunk([(&b"b"[..], 1)])).await.unwrap();
    for shard in Shard::all().skip(1) {
        let mark = String::from_utf8(keys::mark(shard).bytes).unwrap();
        server.ask(&["HSET", &mark, "seen", "1"]).await;
    }
    store.damage().await.unwrap();
    let seen: u64 = server.text(&["HGET", &mark, "seen"]).await.parse().unwrap();
    assert!(seen <= now(&store) / 1_000, "{seen}");
}

/// Clocks that were set back leave marks of a time to come: a loss before that would not be told.
#[tokio::test(flavor = "multi_thread")]
async fn marks_of_a_time_to_come_are_set_back() {
    let server = Server::start(&[]).await;
    let store = bound(&server).await;
    store.put_dataset(&record()).await.unwrap();
    let later = now(&store) / 1_000 + 7_200_000;
    for shard in Shard::all() {
        let mark = String::from_utf8(keys::mark(shard).bytes).unwrap();
        server.ask(&["HSET", &mark, "seen", &later.to_string()]).await;
    }
    store.damage().await.unwrap();
    // Who is far behind what the marks say tells of what it appends.
    assert!(store.newest().unwrap() > store.shared.clock.now() + Duration::from_secs(3_600));
    for shard in Shard::all() {
        let mark = String::from_utf8(keys::mark(shard).bytes).unwrap();
        let seen: u64 = server.text(&["HGET", &mark, "seen"]).await.parse().unwrap();
        assert!(seen <= now(&store) / 1_000, "{seen}");
    }
    store.damage().await.unwrap();
    assert!(store.newest().unwrap() <= store.shared.clock.now());
}

/// A backup of before the clocks were set back says nothing of when what it lacks was written.
#[tokio::test(flavor = "multi_thread")]
async fn what_comes_back_with_a_mark_of_a_time_to_come_may_lack_anything() {
    let server = Server::start(&[]).await;
    let store = bound(&server).await;
    let (before, later) = (now(&store) / 1_000 - 60_000, now(&store) / 1_000 + 7_200_000);
    for (seen, since) in [(before, before * 1_000), (later, 1_000)] {
        let mark = String::from_utf8(keys::mark(Shard::FIRST).bytes).unwrap();
        server.ask(&["HSET", &mark, "run", "of before", "seen", &seen.to_string()]).await;
        let damage = Some(Damage { since: Some(Stamp::new(since)) });
        assert_eq!(store.damage().await.unwrap(), damage);
        assert_eq!(store.mending(None).await.unwrap().damage, damage);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stamps_given_while_something_is_lost_are_above_those_that_were() {
    let server = Server::start(&[]).await;
    let store = bound(&server).await;
    store.put_dataset(&record()).await.unwrap();
    let usual = store.stamp(id(), Stamp::new(now(&store))).await.unwrap();
    // By a server whose clock is ahead; then it is lost, as by a replica that took over too early.
    let minutes = 10 * 60 * 1_000_000;
    let lost = open(&server.url()).await;
    let lost = lost.stamp(id(), Stamp::new(now(&store) + minutes)).await.unwrap();
    assert!(lost > usual);
    let home = String::from_utf8(keys::home(id()).bytes).unwrap();
    server.ask(&["HSET", &home, "given", &usual.get().to_string()]).await;
    let mark = String::from_utf8(keys::mark(Shard::FIRST).bytes).unwrap();
    server.ask(&["HSET", &mark, "run", "other:other"]).await;
    assert!(store.damage().await.unwrap().is_some());
    let now = Stamp::new(now(&store));
    assert!(store.stamp(id(), now).await.unwrap() > lost, "an overwrite would be older");
}
