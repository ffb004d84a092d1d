//! The writer with scripted servers: acknowledged files are exactly the stored files, with any
//! failure of a try.

mod silence;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use dl_format::{Attributes, ChunkId, FilePath, Header, ObjectKind};
use dl_runtime::{Clock, ManualClock, SystemClock};
use tokio::sync::Semaphore;
use tonic::Status;

use crate::dataset::Dataset;
use crate::error::Kind;
use crate::remote::ConnectOptions;
use crate::remote::connections::Connections;
use crate::remote::process::Process;
use crate::remote::session::Session;
use crate::remote::testing::{Script, data, dataset, info, open, options, path, shape, start};
use crate::remote::writer::{Exact, Writer};

const PLAIN: Attributes = Attributes { mode: 0o644, mtime: 0 };

/// The objects accepted by a server, in the order of arrival.
type Objects = Arc<Mutex<Vec<Bytes>>>;

/// A server that keeps all objects.
fn keeping(objects: &Objects) -> Script {
    answering(objects, |_| Ok(()))
}

/// A server that keeps the objects with a positive answer, which depends on their number.
fn answering(
    objects: &Objects,
    answer: impl Fn(usize) -> Result<(), Status> + Send + Sync + 'static,
) -> Script {
    let (kept, count) = (Arc::clone(objects), AtomicUsize::new(0));
    Script::putting(move |object| {
        let answer = answer(count.fetch_add(1, Ordering::SeqCst));
        if answer.is_ok() {
            kept.lock().unwrap().push(object);
        }
        Box::pin(std::future::ready(answer))
    })
}

/// A server that keeps all objects, and answers as far as the gate permits.
fn gated(objects: &Objects, gate: &Arc<Semaphore>) -> Script {
    let (kept, gate) = (Arc::clone(objects), Arc::clone(gate));
    Script::putting(move |object| {
        let gate = Arc::clone(&gate);
        kept.lock().unwrap().push(object);
        Box::pin(async move {
            gate.acquire().await.unwrap().forget();
            Ok(())
        })
    })
}

/// Waits for a condition, for at most 30 seconds.
fn until(is_true: impl Fn() -> bool) {
    let clock = SystemClock::new();
    while !is_true() && clock.monotonic() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn header(object: &Bytes) -> Header {
    Header::decode(object).unwrap()
}

/// All files in the objects by arrival, with large files put together.
fn contents(objects: &Objects) -> Vec<(FilePath, Vec<u8>)> {
    let objects = objects.lock().unwrap();
    let parts: BTreeMap<ChunkId, &Bytes> =
        objects.iter().map(|object| (header(object).id(), object)).collect();
    let mut files = Vec::new();
    for object in objects.iter() {
        let header = header(object);
        for entry in header.entries() {
            let mut whole = Vec::new();
            for extent in header.extents() {
                let part = parts[&extent.part];
                whole.extend(&part[part.len() - extent.length as usize..]);
            }
            let start = entry.offset as usize;
            whole.extend(&object[start..start + entry.stored as usize]);
            assert_eq!(
                (whole.len() as u64, dl_format::Crc32c::of(&whole)),
                (entry.length, entry.crc)
            );
            files.push((entry.path, whole));
        }
    }
    files
}

fn files(objects: &Objects) -> BTreeMap<FilePath, Vec<u8>> {
    contents(objects).into_iter().collect()
}

fn put_numbered(dataset: &Dataset, numbers: std::ops::Range<u32>, length: usize) {
    for number in numbers {
        let name = path(&format!("file{number:05}"));
        dataset.put(&name, PLAIN, &data(length, number as u8)).unwrap();
    }
}

#[test]
fn a_put_with_a_lost_answer_is_repeated_with_the_same_object() {
    let seen = Objects::default();
    let sent = Arc::clone(&seen);
    let dataset = dataset(Script::putting(move |object| {
        let mut sent = sent.lock().unwrap();
        sent.push(object);
        let is_lost = sent.len() < 3;
        let lost = Status::unavailable("the answer was lost");
        Box::pin(std::future::ready(if is_lost { Err(lost) } else { Ok(()) }))
    }));
    dataset.put("a", PLAIN, b"bytes").unwrap();
    let flushed = dataset.flush().unwrap().check().unwrap();
    assert_eq!((flushed.files, flushed.bytes), (1, 5));
    let seen = seen.lock().unwrap();
    assert_eq!(seen.len(), 3);
    assert!(seen.iter().all(|object| object == &seen[0]));
}

#[test]
fn threads_fill_chunks_together_with_few_open_chunks() {
    let objects = Objects::default();
    let dataset = dataset(keeping(&objects));
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let dataset = &dataset;
            threads.spawn(move || put_numbered(dataset, thread * 500..(thread + 1) * 500, 4096));
        }
    });
    let flushed = dataset.flush().unwrap().check().unwrap();
    assert_eq!((flushed.files, flushed.bytes), (2000, 2000 * 4096));
    let files = files(&objects);
    assert_eq!(files.len(), 2000);
    assert!(files.values().enumerate().all(|(n, bytes)| *bytes == data(4096, n as u8)));
    let full = 2000 * 4096 / shape().size() as usize + 1;
    assert!(objects.lock().unwrap().len() <= full + 4, "{}", objects.lock().unwrap().len());
    dataset.close().unwrap();
}

fn refuse_the_second(number: usize) -> Result<(), Status> {
    if number == 1 { Err(Status::resource_exhausted("the disk is full")) } else { Ok(()) }
}

#[test]
fn a_flush_reports_exactly_the_failed_files() {
    let objects = Objects::default();
    let dataset = dataset(answering(&objects, refuse_the_second));
    let mut accepted = BTreeSet::new();
    let mut number = 0;
    // Puts are refused once the failure is known.
    let error = loop {
        let name = path(&format!("file{number:05}"));
        match dataset.put(&name, PLAIN, &data(100_000, 1)) {
            Ok(()) => _ = accepted.insert(name),
            Err(error) => break error,
        }
        number += 1;
    };
    assert_eq!(error.kind(), Kind::Full);
    let flushed = dataset.flush().unwrap();
    let failed: Vec<_> = flushed.failed.iter().flat_map(|failed| failed.paths.clone()).collect();
    let unique: BTreeSet<_> = failed.iter().cloned().collect();
    let stored: BTreeSet<_> = files(&objects).into_keys().collect();
    assert_eq!((flushed.failed.len(), unique.len()), (1, failed.len()));
    assert!(!failed.is_empty() && unique.is_disjoint(&stored));
    assert_eq!(flushed.files, stored.len() as u64);
    assert_eq!(unique.union(&stored).cloned().collect::<BTreeSet<_>>(), accepted);
    // The flush has reported the failure, so puts succeed again.
    dataset.put("later", PLAIN, b"x").unwrap();
    assert_eq!(dataset.flush().unwrap().check().unwrap().files, 1);
}

/// Keeps S-01 for threads with their own flushes.
#[test]
fn concurrent_flushes_each_report_earlier_failures() {
    let (first, second) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let doors = [("a", Arc::clone(&first), false), ("b", Arc::clone(&second), true)];
    let (arrived, count) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let came = Arc::clone(&arrived);
    let dataset = dataset(Script::putting(move |object| {
        let name = header(&object).entry(0).unwrap().path;
        let (_, door, refuse) = doors.iter().find(|door| path(door.0) == name).unwrap();
        let (door, refuse) = (Arc::clone(door), *refuse);
        came.fetch_add(1, Ordering::SeqCst);
        Box::pin(async move {
            door.acquire().await.unwrap().forget();
            if refuse { Err(Status::resource_exhausted("full")) } else { Ok(()) }
        })
    }));
    let arrive = |number| until(|| arrived.load(Ordering::SeqCst) >= number);
    let flush = || {
        let flushed = dataset.flush().unwrap();
        count.fetch_add(1, Ordering::SeqCst);
        (flushed.files, flushed.failed.len())
    };
    let begins = AtomicBool::new(false);
    std::thread::scope(|threads| {
        dataset.put("a", PLAIN, b"slow").unwrap();
        let of_a = threads.spawn(flush);
        arrive(1);
        dataset.put("b", PLAIN, b"refused").unwrap();
        let of_b = threads.spawn(flush);
        arrive(2);
        // The put fails while both flushes wait, and belongs to the second flush.
        second.add_permits(1);
        while dataset.put("a", PLAIN, b"not taken").is_ok() {}
        // A later flush reports the failure too.
        let of_all = threads.spawn(|| {
            begins.store(true, Ordering::SeqCst);
            flush()
        });
        until(|| begins.load(Ordering::SeqCst));
        // Time for the third flush to register.
        std::thread::sleep(Duration::from_secs(1));
        first.add_permits(1);
        let results = (of_a.join().unwrap(), of_b.join().unwrap(), of_all.join().unwrap());
        assert_eq!(results, ((1, 0), (0, 1), (0, 1)));
    });
    assert_eq!(count.load(Ordering::SeqCst), 3);
    // All failures have been reported.
    assert_eq!(dataset.flush().unwrap().check().unwrap().files, 0);
}

#[test]
fn all_objects_in_flight_are_given_up_if_no_server_answers() {
    const TIMEOUT: Duration = Duration::from_secs(5);
    let server = start(Script::putting(|_| Box::pin(std::future::pending())));
    let options = ConnectOptions { in_flight_chunks: 2, ..options(&[server]) };
    let dataset = open(ConnectOptions { request_timeout: TIMEOUT, ..options });
    let clock = SystemClock::new();
    let accepted = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let (dataset, accepted) = (&dataset, &accepted);
            threads.spawn(move || {
                for number in 0..1000 {
                    let name = path(&format!("{thread}/{number}"));
                    if dataset.put(&name, PLAIN, &data(200_000, 1)).is_err() {
                        return;
                    }
                    accepted.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
    });
    let flushed = dataset.flush().unwrap();
    let took = clock.monotonic();
    assert!(took < TIMEOUT * 3 / 2, "{took:?}");
    assert!(flushed.failed.iter().all(|failed| failed.error.kind() == Kind::TimedOut));
    let failed: usize = flushed.failed.iter().map(|failed| failed.paths.len()).sum();
    assert_eq!((flushed.files, failed), (0, accepted.into_inner()));
}

#[test]
fn a_put_waits_while_too_many_chunks_are_in_flight() {
    let (gate, objects) = (Arc::new(Semaphore::new(0)), Objects::default());
    let server = start(gated(&objects, &gate));
    let dataset = open(ConnectOptions { in_flight_chunks: 3, ..options(&[server]) });
    let accepted = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for number in 0..100 {
                put_numbered(&dataset, number..number + 1, 200_000);
                accepted.fetch_add(1, Ordering::SeqCst);
            }
        });
        // Five files fill a chunk: three chunks in flight, a fourth waits with its thread.
        let counts = || (objects.lock().unwrap().len(), accepted.load(Ordering::SeqCst));
        until(|| counts() == (3, 20));
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(counts(), (3, 20));
        gate.add_permits(1000);
    });
    assert_eq!(dataset.flush().unwrap().check().unwrap().files, 100);
}

/// A writer with at most one object in flight, and a clock that stands still.
fn one_at_a_time(server: SocketAddr) -> (Arc<Writer>, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::new(UNIX_EPOCH + Duration::from_secs(1_800_000_000)));
    let process = Process::start(Arc::<ManualClock>::clone(&clock)).unwrap();
    let process: &Process = Box::leak(Box::new(process));
    let options =
        ConnectOptions { request_timeout: Duration::from_secs(36_000), ..options(&[server]) };
    let connections = Arc::new(Connections::new(&options, process, Arc::default()).unwrap());
    (Writer::new(Session { process, connections }, &info(), 1), clock)
}

#[test]
fn a_waiting_object_gets_an_id_with_the_time_of_its_sending() {
    for length in [5, 5 << 20] {
        let (gate, objects) = (Arc::new(Semaphore::new(0)), Objects::default());
        let (writer, clock) = one_at_a_time(start(gated(&objects, &gate)));
        let before = clock.now();
        let put = |name, length| {
            writer.put(&path(name), PLAIN, &data(length, 1))?;
            writer.flush().check()
        };
        std::thread::scope(|threads| {
            let first = threads.spawn(move || put("first", 5));
            until(|| !objects.lock().unwrap().is_empty());
            let second = threads.spawn(move || put("second", length));
            std::thread::sleep(Duration::from_millis(300));
            clock.advance(Duration::from_secs(20 * 60));
            gate.add_permits(100);
            assert_eq!(first.join().unwrap().unwrap().files, 1);
            assert_eq!(second.join().unwrap().unwrap().files, 1);
        });
        let objects = objects.lock().unwrap();
        let ids: Vec<_> = objects.iter().map(|object| header(object).id()).collect();
        assert!(ids.is_sorted_by(|a, b| a < b));
        let sealed: Vec<_> = ids.into_iter().map(ChunkId::sealed_at).collect();
        assert!(sealed[0] == before && sealed[1..].iter().all(|time| *time == clock.now()));
    }
}

/// Keeps S-23: chunks are sent in parallel, so the first put must be stored before the second
/// leaves.
#[test]
fn the_later_of_two_puts_of_a_path_wins() {
    let (objects, first) = (Objects::default(), AtomicUsize::new(1));
    let kept = Arc::clone(&objects);
    let dataset = dataset(Script::putting(move |object| {
        let slow = first.swap(0, Ordering::SeqCst) == 1;
        let kept = Arc::clone(&kept);
        Box::pin(async move {
            if slow {
                SystemClock::new().sleep(Duration::from_millis(300)).await;
            }
            kept.lock().unwrap().push(object);
            Ok(())
        })
    }));
    dataset.put("twice", PLAIN, b"first").unwrap();
    // Enough to send the chunk of the first put.
    put_numbered(&dataset, 0..12, 200_000);
    dataset.put("twice", PLAIN, b"second").unwrap();
    dataset.put_reader("twice", PLAIN, 5, &mut &b"third"[..]).unwrap();
    assert_eq!(dataset.flush().unwrap().check().unwrap().files, 15);
    let versions = contents(&objects).into_iter().filter(|(name, _)| *name == path("twice"));
    let versions: Vec<Vec<u8>> = versions.map(|(_, bytes)| bytes).collect();
    assert_eq!(versions, [&b"first"[..], b"second", b"third"]);
}

#[test]
fn a_large_file_is_named_after_its_parts() {
    let part = shape().part_length() as usize;
    // With a tail; without; with a tail too long for the chunk with the list.
    for length in [part * 3 + 77, part * 3, part * 2 - 1, part + 1, shape().size() as usize] {
        let objects = Objects::default();
        let dataset = dataset(keeping(&objects));
        let whole = data(length, 3);
        let source = &mut &whole[..];
        dataset.put_reader("large", PLAIN, length as u64, source).unwrap();
        let flushed = dataset.flush().unwrap().check().unwrap();
        assert_eq!((flushed.files, flushed.bytes), (1, length as u64));
        assert!(files(&objects)[&path("large")] == whole, "{length} bytes");
        let objects = objects.lock().unwrap();
        let (named, parts) = objects.split_last().unwrap();
        assert_eq!(header(named).kind(), ObjectKind::Chunk);
        assert!(parts.iter().all(|part| header(part).kind() == ObjectKind::Part));
    }
}

#[test]
fn a_large_file_with_a_failed_part_is_not_named() {
    let objects = Objects::default();
    let dataset = dataset(answering(&objects, refuse_the_second));
    let error = dataset.put("large", PLAIN, &data(5 << 20, 1)).unwrap_err();
    assert_eq!(error.kind(), Kind::Full);
    let flushed = dataset.flush().unwrap();
    assert_eq!((flushed.files, flushed.failed.len()), (0, 0));
    assert!(objects.lock().unwrap().iter().all(|object| header(object).kind() == ObjectKind::Part));
}

#[test]
fn a_source_that_ends_early_puts_nothing() {
    let objects = Objects::default();
    let dataset = dataset(keeping(&objects));
    for length in [10, 5 << 20] {
        let error = dataset.put_reader("a", PLAIN, length, &mut &b"short"[..]).unwrap_err();
        assert_eq!(error.kind(), Kind::Local);
    }
    assert_eq!(dataset.flush().unwrap().check().unwrap().files, 0);
    assert!(files(&objects).is_empty());
}

#[test]
fn a_panicking_source_blocks_no_other_put() {
    struct Panics;
    impl Read for Panics {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            panic!("as a caller's may")
        }
    }
    let dataset = dataset(keeping(&Objects::default()));
    let put = || dataset.put_reader("a", PLAIN, 5 << 20, &mut Panics);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(put)).unwrap_err();
    dataset.put("a", PLAIN, b"content").unwrap();
    assert_eq!(dataset.flush().unwrap().check().unwrap().files, 1);
}

#[test]
fn a_put_file_keeps_time_and_mode_and_must_be_regular() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    std::fs::write(&source, b"content").unwrap();
    std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o4751)).unwrap();
    let time = UNIX_EPOCH + Duration::new(1_000_000_007, 123_456_789);
    std::fs::File::open(&source).unwrap().set_modified(time).unwrap();
    let objects = Objects::default();
    let dataset = dataset(keeping(&objects));
    assert_eq!(dataset.put_file("a", &source).unwrap(), 7);
    assert_eq!(dataset.put_file("b", folder.path()).unwrap_err().kind(), Kind::Local);
    assert_eq!(dataset.put_file("c", &folder.path().join("none")).unwrap_err().kind(), Kind::Local);
    assert_eq!(dataset.flush().unwrap().check().unwrap().files, 1);
    let entry = header(&objects.lock().unwrap()[0]).entry(0).unwrap();
    let wanted = Attributes { mode: 0o4751, mtime: 1_000_000_007_123_456_789 };
    assert_eq!((entry.path, entry.attributes), (path("a"), wanted));
}

fn exact(source: &Path, left: u64) -> Exact<'_> {
    let file = std::fs::File::open(source).unwrap();
    Exact { source, metadata: file.metadata().unwrap(), file, left }
}

#[test]
fn a_grown_file_is_refused_and_a_file_of_size_0_is_read_whole() {
    let folder = tempfile::tempdir().unwrap();
    let grown = folder.path().join("grown");
    std::fs::write(&grown, "12345678").unwrap();
    assert!(exact(&grown, 3).read_to_end(&mut Vec::new()).is_err());
    assert_eq!(exact(&grown, 8).read_to_end(&mut Vec::new()).unwrap(), 8);

    let objects = Objects::default();
    let dataset = dataset(keeping(&objects));
    let made_up = Path::new("/proc/version");
    let contents = std::fs::read(made_up).unwrap();
    assert_eq!(dataset.put_file("v", made_up).unwrap(), contents.len() as u64);
    assert_eq!(dataset.flush().unwrap().check().unwrap().bytes, contents.len() as u64);
}

#[test]
fn a_file_changed_during_the_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("source");
    let touch = |file: &std::fs::File| file.set_modified(UNIX_EPOCH);
    let shrink = |file: &std::fs::File| file.set_len(6);
    for (change, left) in [(touch as fn(&std::fs::File) -> std::io::Result<()>, 8), (shrink, 6)] {
        std::fs::write(&source, "12345678").unwrap();
        let mut exact = exact(&source, left);
        assert_eq!(exact.read(&mut [0; 3]).unwrap(), 3);
        change(&std::fs::File::options().write(true).open(&source).unwrap()).unwrap();
        let why = exact.read_to_end(&mut Vec::new()).unwrap_err().to_string();
        assert!(why.starts_with("read /") && why.contains("changed during the read"), "{why}");
    }
}

/// A source that flushes before each read.
struct Flushing<'a> {
    dataset: &'a Dataset,
    files: u64,
}

impl Read for Flushing<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.files += self.dataset.flush().unwrap().check().unwrap().files;
        buffer.fill(1);
        Ok(buffer.len())
    }
}

#[test]
fn a_flush_does_not_wait_for_a_slow_source() {
    for length in [4, 5 << 20] {
        let objects = Objects::default();
        let dataset = dataset(keeping(&objects));
        dataset.put("first", PLAIN, b"bytes").unwrap();
        let mut source = Flushing { dataset: &dataset, files: 0 };
        dataset.put_reader("slow", PLAIN, length, &mut source).unwrap();
        assert_eq!(source.files, 1);
        assert_eq!(dataset.flush().unwrap().check().unwrap().files, 1);
        assert!(files(&objects)[&path("slow")] == vec![1; length as usize]);
    }
}
