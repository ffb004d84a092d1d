//! Epochs read under faults.

use std::collections::{BTreeMap, BTreeSet};
use std::error::Error as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::{Memory, Stop};
use dl_runtime::fault::{CutPoint, Faults, Rates};
use dl_runtime::{SeededRandom, SystemClock};
use dl_server::prepare;
use dl_store::FaultStore;
use dl_tests::cluster::{Cluster, clock, context};
use dl_tests::dice::Dice;
use dl_tests::program::Server;
use dl_tests::rounds;
use libdiesel::{Client, ConnectOptions, Dataset, Kind, ShuffleOptions, Snapshot, SnapshotCache};

use super::scene::{self, Files};

/// A client of a server, with a request time-out in seconds.
fn client(server: &Server, timeout: u64) -> Result<Client> {
    Ok(Client::connect(ConnectOptions {
        servers: vec![server.address().to_owned()],
        request_timeout: Duration::from_secs(timeout),
        ..ConnectOptions::default()
    })?)
}

fn reader(client: &Client, folder: &Path) -> Result<Dataset> {
    scene::reader(client, &SnapshotCache::new(folder.join("cache"), 1 << 30))
}

/// The chunk objects below a folder, by id.
fn chunks(folder: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(chunks(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "c") {
            let id = path.file_stem().context("a name")?.to_string_lossy().into_owned();
            found.insert(id, path);
        }
    }
    Ok(found)
}

/// The numbers of the files in a chunk.
fn files_of(snapshot: &Snapshot, chunk: &str) -> Result<BTreeSet<u32>> {
    let mut files = BTreeSet::new();
    for number in 0..snapshot.files() {
        if snapshot.record(number)?.holder.chunk.to_string() == chunk {
            files.insert(number);
        }
    }
    Ok(files)
}

/// Keeps S-44 and S-14.
#[test]
fn damaged_and_lost_chunks_cost_only_their_files_by_name() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Server::start(&data)?;
    let files = scene::files(2_000, 9_000)?;
    let before = client(&server, 60)?;
    scene::put(&before, &files)?;
    let snapshot = reader(&before, folder.path())?.snapshot().cloned().context("a snapshot")?;
    server.stop()?;
    let objects: Vec<_> = chunks(&data.join("chunks"))?.into_iter().collect();
    let [(lost, lost_object), (damaged, damaged_object), ..] = objects.as_slice() else {
        anyhow::bail!("too few chunks");
    };
    fs::remove_file(lost_object)?;
    let of_damaged = files_of(&snapshot, damaged)?;
    let hit = of_damaged.iter().copied().nth(7).context("the chunk has eight files")?;
    let mut bytes = fs::read(damaged_object)?;
    let record = snapshot.record(hit)?;
    ensure!(record.stored > 0, "an empty file can't be damaged");
    *bytes.get_mut(record.offset as usize).context("the object has the file")? ^= 1;
    fs::write(damaged_object, bytes)?;
    let server = Server::start(&data)?;
    let reader = reader(&client(&server, 60)?, folder.path())?;

    let mut wanted: BTreeMap<u32, &str> =
        files_of(&snapshot, lost)?.into_iter().map(|number| (number, lost.as_str())).collect();
    // An empty file needs no read.
    let mut empty = Vec::new();
    for number in wanted.keys() {
        if snapshot.record(*number)?.stored == 0 {
            empty.push(*number);
        }
    }
    wanted.retain(|number, _| !empty.contains(number));
    wanted.insert(hit, damaged);
    let epoch = reader.shuffle(ShuffleOptions::new(1, 0, 3))?;
    let mut read = 0;
    while let Some(file) = epoch.next()? {
        match (file.bytes, wanted.remove(&file.number)) {
            (Ok(bytes), None) => {
                ensure!(files.get(&file.path).is_some_and(|put| *put == bytes), "{}", file.path);
                read += 1;
            }
            (Err(error), Some(chunk)) => {
                let why = error.source().context("there is a reason")?.to_string();
                ensure!(error.kind() == Kind::Corrupt, "{error}: {why}");
                ensure!(error.subject() == format!("dl://ds/{}", file.path), "{error}");
                ensure!(why.contains(chunk), "{error}: {why} does not name {chunk}");
            }
            (bytes, _) => anyhow::bail!("{}: {bytes:?}", file.path),
        }
    }
    ensure!(wanted.is_empty(), "{wanted:?} did not come");
    ensure!(read > files.len() / 2, "only {read} files");
    server.stop()?;
    Ok(())
}

/// Keeps S-44.
#[test]
fn occasional_store_errors_cost_time_only() -> Result<()> {
    let mut cluster = Cluster::new()?;
    let faults = Faults::new(Arc::new(SeededRandom::new(1)));
    let clock = Arc::new(SystemClock::new());
    let store = FaultStore::new(dl_store::memory(), clock, faults.clone(), CutPoint::new());
    let context = context(Arc::new(store), Arc::new(Memory::new()));
    cluster.run(prepare(&context, Stop::Fresh))?;
    cluster.start(&context, 2)?;
    let client = cluster.client()?;
    let files = scene::files(3_000, 9_000)?;
    scene::put(&client, &files)?;
    let folder = tempfile::tempdir()?;
    let reader = reader(&client, folder.path())?;
    faults.set_rates(
        "read",
        Some(Rates {
            before: 0.2,
            answer_lost: 0.0,
            delay: 0.2,
            longest_delay: Duration::from_millis(50),
            error: dl_store::Kind::Unavailable,
        }),
    );
    for number in 0..rounds(2, 20) {
        let epoch = reader.shuffle(ShuffleOptions::new(1, number, 3))?;
        let order: Vec<u32> = epoch.cursor()?.collect();
        ensure!(scene::rest(&epoch, &files)? == order, "epoch {number}");
    }
    Ok(())
}

/// Keeps S-44 and S-11.
#[test]
fn a_server_restart_in_an_epoch_costs_time_only() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let mut server = Server::start(&data)?;
    let address = server.address().to_owned();
    let files = scene::files(8_000, 12_000)?;
    let client = client(&server, 60)?;
    scene::put(&client, &files)?;
    let reader = reader(&client, folder.path())?;
    let dice = Dice::new(2);
    for number in 0..rounds(3, 30) {
        let epoch = reader.shuffle(ShuffleOptions::new(1, number, 4))?;
        let order: Vec<u32> = epoch.cursor()?.collect();
        let (read, again) = std::thread::scope(|scope| {
            let reading = scope.spawn(|| scene::rest(&epoch, &files));
            std::thread::sleep(Duration::from_millis(dice.below(60) as u64));
            server.kill()?;
            std::thread::sleep(Duration::from_millis(dice.below(400) as u64));
            let again = Server::start_with(&data, &address, &[])?;
            let read = reading.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?;
            anyhow::Ok((read?, again))
        })?;
        server = again;
        ensure!(read == order, "epoch {number}: {} of {} files", read.len(), order.len());
    }
    server.stop()?;
    Ok(())
}

/// Keeps S-44: a job may continue after an error and misses no file.
#[test]
fn while_no_server_answers_no_file_is_passed_over() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let server = Server::start(&data)?;
    let address = server.address().to_owned();
    let files = scene::files(4_000, 12_000)?;
    scene::put(&client(&server, 60)?, &files)?;
    let client = client(&server, 5)?;
    let reader = reader(&client, folder.path())?;
    let epoch = reader.shuffle(ShuffleOptions::new(1, 0, 4))?;
    let order: Vec<u32> = epoch.cursor()?.collect();
    let mut read = scene::some(&epoch, &files, 100)?;
    server.kill()?;
    let error = loop {
        match epoch.next() {
            Ok(file) => read.push(file.context("the epoch ended without an error")?.number),
            Err(error) => break error,
        }
    };
    ensure!(error.kind() == Kind::Unreachable, "{error:?}");
    let (time, at) = (clock(), epoch.position());
    let began = time.monotonic();
    ensure!(at == read.len() as u64, "{at}");
    // Some later files are in memory already. The first missing file stays first.
    let again = std::thread::scope(|scope| {
        let threads = [(); 3].map(|()| scope.spawn(|| epoch.next()));
        threads.map(|thread| thread.join().expect("a reader returns its error"))
    });
    ensure!(again.iter().any(Result::is_err), "{again:?}");
    read.extend(again.into_iter().flatten().flatten().map(|file| file.number));
    let took = time.monotonic() - began;
    ensure!(took < Duration::from_secs(10), "after {took:?}");
    ensure!(epoch.position() == at, "{}", epoch.position());
    let server = Server::start_with(&data, &address, &[])?;
    read.extend(scene::rest(&epoch, &files)?);
    let all: BTreeSet<u32> = read.iter().copied().collect();
    ensure!(all == order.iter().copied().collect(), "{} of {}", all.len(), order.len());
    ensure!(read.len() == order.len(), "{} of {} files", read.len(), order.len());
    server.stop()?;
    Ok(())
}

/// Keeps S-42.
#[test]
fn an_epoch_reads_its_snapshot_despite_concurrent_writes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let server = Server::start(&folder.path().join("data"))?;
    let client = client(&server, 60)?;
    let files = scene::files(2_000, 9_000)?;
    let writer = scene::put(&client, &files)?;
    let reader = reader(&client, folder.path())?;
    let epoch = reader.shuffle(ShuffleOptions::new(1, 0, 2))?;
    let mut read = scene::some(&epoch, &files, 10)?;
    let other: Files = files.keys().map(|path| (path.clone(), b"other".to_vec())).collect();
    let gone: Vec<_> = files.keys().step_by(3).cloned().collect();
    for (path, data) in &other {
        writer.put(path, libdiesel::Attributes::default(), data)?;
    }
    let _ = writer.flush()?.check()?;
    writer.delete(&gone)?;
    read.extend(scene::rest(&epoch, &files)?);
    ensure!(read.len() == files.len(), "{} files", read.len());
    server.stop()?;
    Ok(())
}
