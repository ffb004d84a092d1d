//! Purges beside writers, deletes, readers and other purges, through two servers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_format::{DatasetId, FilePath};
use dl_meta::redis_testing::Cluster;
use dl_meta::{Memory, MetaStore, Redis, RedisOptions, Stop};
use dl_runtime::{Clock, ManualClock};
use dl_store::Store;
use dl_tests::cluster::clock;
use dl_tests::dice::Dice;
use dl_tests::history::{Content, HistoryChecker, PendingWrite};
use dl_tests::wire::Wire;

use super::scene::{
    HOUR, NAME, SETTLED, Writer, check, check_files, data, new_clock, purge_all, serve, stored,
};

/// The speed of the clock: a purge of less than a second and a half uses a state younger than five
/// minutes.
const FASTER: u32 = 200;
/// The least number of objects removed during the writes.
const REMOVED: u64 = 10;
const PAUSE: Duration = Duration::from_millis(30);
/// A reader's pause between requests.
const SHORT_PAUSE: Duration = Duration::from_millis(3);
/// The writers; each has its own folder.
const ORIGINS: [u8; 2] = [1, 2];
/// Paths per folder.
const PATHS: usize = 25;
/// Files per request of a reader.
const ASKED: usize = 8;
/// The least number of answers per reader.
const ANSWERS: usize = 1_000;

/// Reports the begin of writes to the history, or of deletes with none.
fn begin<'a>(
    history: &HistoryChecker,
    writes: impl Iterator<Item = (&'a [u8], Option<Content>)>,
) -> Result<Vec<PendingWrite>> {
    let begun = writes.map(|(path, content)| {
        let path = FilePath::new(path.to_vec())?;
        anyhow::Ok(history.begin(&path, content))
    });
    begun.collect()
}

fn acknowledge(history: &HistoryChecker, begun: Vec<PendingWrite>) {
    begun.into_iter().for_each(|begun| history.acknowledge(begun));
}

/// A writer, alone below its folder.
async fn write(
    client: Wire,
    clock: Arc<ManualClock>,
    origin: u8,
    removed: Arc<AtomicU64>,
    history: Arc<HistoryChecker>,
) -> Result<Writer> {
    let dice = Dice::new(u64::from(origin));
    let mut writer = Writer::create(&client, origin).await?;
    let (until, mut step) = (clock.now() + SETTLED + HOUR / 6, 0);
    // A busy machine needs more rounds until the purges have removed enough.
    let is_enough = || removed.load(Ordering::Relaxed) > REMOVED;
    while clock.now() < until || (!is_enough() && clock.now() < until + 3 * HOUR) {
        step += 1;
        let count = 1 + dice.below(8);
        let files: Vec<_> = (0..count)
            .map(|n| {
                (format!("{origin}/{}", dice.below(PATHS)), data(step * 31 + n, dice.below(40_000)))
            })
            .collect();
        // The last write of a path wins.
        let last: BTreeMap<_, _> =
            files.iter().map(|(path, bytes)| (path.as_bytes(), Content::of(bytes))).collect();
        let begun = begin(&history, last.into_iter().map(|(path, content)| (path, Some(content))))?;
        writer.put(&client, clock.now(), &files).await?;
        acknowledge(&history, begun);
        if dice.once_in(3) {
            let (prefix, digit) = (format!("{origin}/"), b'0' + dice.below(10) as u8);
            let is_wanted =
                |path: &[u8]| path.starts_with(prefix.as_bytes()) && path.ends_with(&[digit]);
            let gone = writer.files.keys().map(Vec::as_slice).filter(|path| is_wanted(path));
            let begun = begin(&history, gone.map(|path| (path, None)))?;
            if !begun.is_empty() {
                writer.delete(&client, clock.now(), is_wanted).await?;
                acknowledge(&history, begun);
            }
        }
        self::clock().sleep(PAUSE).await;
    }
    Ok(writer)
}

async fn purge(client: Wire, writers: Weak<()>, removed: Arc<AtomicU64>) -> Result<()> {
    while writers.strong_count() > 0 {
        let done = client.purge(NAME, Duration::ZERO).await?;
        // An object that the other purge removed while this one adopted it is told until the next purge
        // beside no writer; the end of the test finds a real loss.
        let is_passing = |problem: &String| problem.contains("are not in the chunk store");
        ensure!(done.problems.iter().all(is_passing), "{done:?}");
        removed.fetch_add(done.removed, Ordering::Relaxed);
        clock().sleep(PAUSE).await;
    }
    Ok(())
}

/// A reader that reads or looks up files: each answer must be valid at some moment of the request.
/// Returns the count of answers.
async fn read(
    client: Wire,
    dataset: DatasetId,
    writers: Weak<()>,
    history: Arc<HistoryChecker>,
) -> Result<usize> {
    let (dice, mut answers) = (Dice::new(3), 0);
    while writers.strong_count() > 0 {
        let mut paths = Vec::new();
        for _ in 0..ASKED {
            let (origin, number) = (dice.pick(&ORIGINS), dice.below(PATHS));
            paths.push(FilePath::new(format!("{origin}/{number}"))?);
        }
        let since = history.now();
        let found: Vec<Option<Content>> = if dice.once_in(2) {
            let files = client.read(dataset, &paths).await?;
            files.iter().map(|bytes| bytes.as_deref().map(Content::of)).collect()
        } else {
            let items = client.stat(dataset, &paths).await?;
            items.iter().map(Content::of_item).collect::<Result<_>>()?
        };
        for (path, content) in paths.iter().zip(found) {
            history.check(path, content, since)?;
            answers += 1;
        }
        clock().sleep(SHORT_PAUSE).await;
    }
    Ok(answers)
}

/// Advances the clock of ids and stamps at `FASTER` speed; waits are not affected.
async fn pass(time: Arc<ManualClock>) {
    let (real, began) = (clock(), time.now());
    loop {
        real.sleep(PAUSE).await;
        time.set(began + real.monotonic() * FASTER);
    }
}

/// Runs two servers, each with its own metadata handle.
async fn beside_each_other(store: &Arc<dyn Store>, metas: [Arc<dyn MetaStore>; 2]) -> Result<()> {
    let time = new_clock();
    let (_one, first) = serve(store, &metas[0], &time, Stop::Fresh).await?;
    let (_two, second) = serve(store, &metas[1], &time, Stop::Clean).await?;
    let dataset = first.create(NAME).await?;
    let passing = dl_runtime::spawn(pass(Arc::clone(&time)));
    let (removed, history) = (Arc::new(AtomicU64::new(0)), Arc::<HistoryChecker>::default());
    // A token of the running writers: purges and readers run until the last token is dropped.
    let running = Arc::new(());
    let writers = [&first, &second].into_iter().zip(ORIGINS).map(|(client, origin)| {
        let (client, time, running) = (client.clone(), Arc::clone(&time), Arc::clone(&running));
        let (removed, history) = (Arc::clone(&removed), Arc::clone(&history));
        dl_runtime::spawn(async move {
            let _running = running;
            write(client, time, origin, removed, history).await
        })
    });
    // Collecting starts all writers now: otherwise purges and readers would see none and end.
    let writers: Vec<_> = writers.collect();
    let writing = Arc::downgrade(&running);
    drop(running);
    let purges = [&first, &second].map(|client| {
        dl_runtime::spawn(purge(client.clone(), Weak::clone(&writing), Arc::clone(&removed)))
    });
    let readers = [&first, &second].map(|client| {
        let (client, writers, history) =
            (client.clone(), Weak::clone(&writing), Arc::clone(&history));
        dl_runtime::spawn(read(client, dataset, writers, history))
    });
    let mut all: Option<Writer> = None;
    for writer in writers {
        let writer = writer.await??;
        match &mut all {
            Some(all) => all.files.extend(writer.files),
            None => all = Some(writer),
        }
    }
    let writer = all.context("no writer")?;
    for purge in purges {
        purge.await??;
    }
    for reader in readers {
        let answers = reader.await?.context("read")?;
        ensure!(answers > ANSWERS, "a reader had only {answers} answers beside the writers");
    }
    passing.abort();
    let removed = removed.load(Ordering::Relaxed);
    ensure!(removed > REMOVED, "only {removed} were removed beside the writers");
    check_files(store, &second, &time, &writer).await.context("when all is quiet")?;
    time.advance(SETTLED);
    // An object that one purge removed and the other adopted is gone after the next purge.
    purge_all(&first, &time).await?;
    check(store, &second, &time, &writer).await.context("purged")?;
    ensure!(first.verify(NAME, true).await?.is_empty(), "verify finds something");
    let [_, tombstones, bytes] = stored(store, writer.dataset).await?;
    let live: usize = writer.files.values().map(Vec::len).sum();
    ensure!(tombstones == 0, "{tombstones} tombstones");
    ensure!(bytes * 7 < live as u64 * 10 + 700_000, "{bytes} bytes for {live}");
    Ok(())
}

/// Keeps S-03, S-17, S-19, S-27 and S-28: Rule 4.
#[tokio::test(flavor = "multi_thread")]
async fn two_purges_beside_other_requests_lose_nothing() -> Result<()> {
    let store = dl_store::open("memory:").await?;
    let meta: Arc<dyn MetaStore> = Arc::new(Memory::new());
    beside_each_other(&store, [Arc::clone(&meta), meta]).await
}

/// Keeps S-03, S-27 and S-28.
#[tokio::test(flavor = "multi_thread")]
async fn two_purges_on_a_redis_cluster_lose_nothing() -> Result<()> {
    let cluster = Cluster::start(3, 0).await;
    let store = dl_store::open("memory:").await?;
    let url = cluster.url();
    let open = || Redis::open(&url, RedisOptions::default(), clock());
    beside_each_other(&store, [Arc::new(open().await?), Arc::new(open().await?)]).await
}
