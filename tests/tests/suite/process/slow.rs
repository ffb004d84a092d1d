//! Honest clients on a slow link, and clients that wait for the server.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_format::{Attributes, ChunkShape, DatasetName, FilePath};
use dl_meta::{Memory, Stop};
use dl_runtime::fault::{CutPoint, Fault, Faults};
use dl_runtime::{OsRandom, locked};
use dl_server::{Limits, ServerContext, prepare};
use dl_store::FaultStore;
use dl_tests::cluster::{Cluster, clock, context, in_memory};
use dl_tests::dice::Dice;
use dl_tests::slow_link::SlowLink;
use libdiesel::{Client, ConnectOptions};

/// The slowest promised link, in bytes per second.
const RATE: u32 = 100_000;

const PLAIN: Attributes = Attributes { mode: 0o644, mtime: 1 };

/// A server and its address.
fn server(context: &ServerContext) -> Result<(Cluster, String)> {
    let mut cluster = Cluster::new()?;
    cluster.run(prepare(context, Stop::Fresh))?;
    cluster.start(context, 1)?;
    let address = cluster.addresses().pop().context("the server runs")?;
    Ok((cluster, address))
}

fn file(number: u8) -> Result<FilePath> {
    Ok(FilePath::new(format!("file-{number}"))?)
}

/// The messages of a waiting client.
type Said = Arc<Mutex<Vec<String>>>;

fn said(said: &Said) -> String {
    locked(said).join("\n")
}

/// A client with a request time-out in seconds.
fn client(address: &str, seconds: u64) -> Result<(Client, Said)> {
    let said = Said::default();
    let notes = Arc::clone(&said);
    let options = ConnectOptions {
        servers: vec![address.to_owned()],
        request_timeout: Duration::from_secs(seconds),
        on_retry: Some(Arc::new(move |retry| {
            let note = format!("{} {}: {}", retry.action, retry.subject, retry.reason);
            locked(&notes).push(note);
        })),
        ..ConnectOptions::default()
    };
    Ok((Client::connect(options)?, said))
}

/// Runs a step for each file at the same time.
fn at_once<T: Sync>(of: &[T], step: impl Fn(u8, &T) -> Result<()> + Sync) -> Result<()> {
    std::thread::scope(|scope| {
        let step = &step;
        let begin = |(number, one)| scope.spawn(move || step(number, one));
        let begun: Vec<_> = (0..).zip(of).map(begin).collect();
        begun.into_iter().try_for_each(|one| {
            one.join().map_err(|_| anyhow::anyhow!("a thread panicked")).flatten()
        })
    })
}

/// Keeps S-11, S-59 and S-66: two chunks share the link, so each exceeds the time-outs of an attempt
/// and a request.
#[test]
fn a_put_over_a_slow_link_continues_without_messages() -> Result<()> {
    let (_cluster, address) = server(&in_memory(Limits::default()))?;
    let line = SlowLink::start(address.parse()?, RATE)?;
    let (slow, notes) = client(&line.address().to_string(), 8)?;
    let (name, dice) = (DatasetName::new("ds")?, Dice::new(1));
    slow.create_dataset(&name, ChunkShape::new(1 << 20, 64)?)?;
    let file_of_handle = |_| anyhow::Ok((slow.dataset(&name)?, dice.bytes(600_000)));
    let files = (0..2).map(file_of_handle).collect::<Result<Vec<_>>>()?;
    at_once(&files, |number, (dataset, bytes)| {
        dataset.put(&file(number)?, PLAIN, bytes)?;
        ensure!(dataset.flush()?.check()?.files == 1, "file {number} is missing");
        Ok(())
    })?;
    ensure!(said(&notes).is_empty(), "{}", said(&notes));
    let (fast, _) = client(&address, 60)?;
    let dataset = fast.dataset(&name)?;
    for (number, (_, bytes)) in (0..).zip(&files) {
        ensure!(dataset.get(&file(number)?)? == *bytes, "file {number}");
    }
    Ok(())
}

/// Keeps S-11, S-59 and S-66: each read waits longer than the time-out for its first bytes, while
/// other reads progress.
#[test]
fn reads_over_a_slow_link_are_not_reported_as_unanswered() -> Result<()> {
    let (_cluster, address) = server(&in_memory(Limits::default()))?;
    let (fast, _) = client(&address, 60)?;
    let (name, dice) = (DatasetName::new("ds")?, Dice::new(2));
    let dataset = fast.create_dataset(&name, ChunkShape::new(1 << 20, 64)?)?;
    let files: Vec<_> = (0..12).map(|_| dice.bytes(90_000)).collect();
    for (number, bytes) in (0..).zip(&files) {
        dataset.put(&file(number)?, PLAIN, bytes)?;
    }
    ensure!(dataset.flush()?.check()?.files == 12, "some are missing");
    let line = SlowLink::start(address.parse()?, RATE)?;
    let (slow, notes) = client(&line.address().to_string(), 60)?;
    let dataset = slow.dataset(&name)?;
    at_once(&files, |number, bytes| {
        ensure!(dataset.get(&file(number)?)? == *bytes, "file {number}");
        Ok(())
    })?;
    ensure!(said(&notes).is_empty(), "{}", said(&notes));
    Ok(())
}

/// Keeps S-12: the server's patience ends before the client's.
#[test]
fn a_put_without_server_memory_shows_the_reason() -> Result<()> {
    let faults = Faults::new(Arc::new(OsRandom));
    let store = FaultStore::new(dl_store::memory(), clock(), faults.clone(), CutPoint::new());
    let patience = Duration::from_secs(3);
    let limits = Limits { write_bytes: 512 << 10, patience, ..Limits::default() };
    let context = ServerContext { limits, ..context(Arc::new(store), Arc::new(Memory::new())) };
    let (_cluster, address) = server(&context)?;
    let (client, _) = client(&address, 6)?;
    let name = DatasetName::new("ds")?;
    let dataset = client.create_dataset(&name, ChunkShape::new(1 << 20, 64)?)?;
    // The first chunk holds all the memory during a slow store operation.
    faults.script("create", [Some(Fault::Delay(Duration::from_secs(20)))]);
    let waiting = client.dataset(&name)?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            dataset.put(&file(0)?, PLAIN, b"bytes")?;
            // The result does not matter here.
            let _ = dataset.flush();
            anyhow::Ok(())
        });
        while !faults.is_used_up("create") {
            std::thread::sleep(Duration::from_millis(5));
        }
        waiting.put(&file(1)?, PLAIN, b"bytes")?;
        let why = waiting.flush()?.check().err().context("the chunk was stored")?;
        let why = format!("{:#}", anyhow::Error::from(why));
        ensure!(why.contains("524288 bytes are in use"), "{why}");
        Ok(())
    })
}
