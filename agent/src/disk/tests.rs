//! Copies in real folders, with several owners and with failing calls.

use std::fs::{read_dir, write};
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::time::{Duration, SystemTime};

use dl_runtime::{ManualClock, spawn};
use rustix::io::Errno;

use super::copy::{Access, Unfinished};
use super::folder::{Added, Folder};
use super::tier::Tier;
use super::*;
use crate::cache::Slots;

const MIB: u64 = 1 << 20;

fn dataset(number: u8) -> DatasetId {
    DatasetId::from_bytes([number; 16])
}

fn name(number: u8, range: Range<u32>) -> CopyName {
    CopyName { chunk: ChunkId::from_bytes([number; 16]), range }
}

/// Writes a copy of `byte`s.
fn add(folder: &Folder, of: &InUse, name: &CopyName, byte: u8) -> io::Result<Added> {
    let span = blocks(&name.range);
    let mut memory = vec![byte; span.len() + BLOCK as usize];
    let start = memory.as_ptr().align_offset(BLOCK as usize);
    let bytes = &mut memory[start..start + span.len()];
    let copy = Unfinished::create(&of.folder, folder.access)?;
    copy.write(bytes, span.start, name.range.end)?;
    folder.add(of, &copy, name)
}

#[test]
fn the_usage_is_the_sum_of_all_copies_within_the_quota() {
    let at = tempfile::tempdir().unwrap();
    let folder = Folder::open(at.path(), 20_000).unwrap();
    let of = folder.enter(dataset(1), "ds", 5).unwrap();
    assert_eq!(add(&folder, &of, &name(1, 4_096..10_000), 1).unwrap(), Added::New);
    assert_eq!(add(&folder, &of, &name(1, 4_096..10_000), 1).unwrap(), Added::There);
    assert_eq!(add(&folder, &of, &name(2, 0..14_096), 1).unwrap(), Added::New);
    assert_eq!(folder.used().unwrap(), 20_000);
    assert_eq!(add(&folder, &of, &name(3, 0..1), 1).unwrap(), Added::Full);
    // Another agent of the same user.
    let other = Folder::open(at.path(), 20_001).unwrap();
    let of_other = other.enter(dataset(1), "ds", 6).unwrap();
    assert_eq!(of_other.list().unwrap().len(), 2);
    assert_eq!(add(&other, &of_other, &name(3, 0..1), 1).unwrap(), Added::New);
    assert_eq!(folder.used().unwrap(), 20_001);
    folder.remove(&of.folder, &[name(2, 0..14_096), name(9, 0..1)]).unwrap();
    assert_eq!(other.used().unwrap(), 5_905);
}

#[test]
fn a_change_cut_short_is_counted_anew() {
    let at = tempfile::tempdir().unwrap();
    let folder = Folder::open(at.path(), MIB).unwrap();
    let of = folder.enter(dataset(1), "ds", 5).unwrap();
    add(&folder, &of, &name(1, 0..10_000), 1).unwrap();
    let user = read_dir(at.path()).unwrap().next().unwrap().unwrap().path();
    // A process was killed between the link and the new sum, or somebody wrote nonsense.
    for left in
        ["changing                  \n", "", "99 bytes\n\u{fffd}", "00000000000000000099 bytes"]
    {
        write(user.join("usage"), left).unwrap();
        assert_eq!(folder.used().unwrap(), 10_000, "{left:?}");
        add(&folder, &of, &name(2, 0..5), 1).unwrap();
        assert_eq!(folder.used().unwrap(), 10_005, "{left:?}");
        folder.remove(&of.folder, &[name(2, 0..5)]).unwrap();
    }
    // A wrong sum lasts until the folder is opened.
    write(user.join("usage"), "00000000000000000099 bytes\n").unwrap();
    assert_eq!(Folder::open(at.path(), MIB).unwrap().used().unwrap(), 10_000);
}

#[test]
fn datasets_without_an_agent_leave_for_new_copies() {
    let at = tempfile::tempdir().unwrap();
    let folder = Folder::open(at.path(), 30_000).unwrap();
    for (number, times) in [(1, 1), (2, 3), (3, 2)] {
        for time in 0..times {
            let of = folder.enter(dataset(number), "ds", i64::from(10 - number + time)).unwrap();
            _ = add(&folder, &of, &name(number, 0..10_000), 1).unwrap();
        }
    }
    let order = |eviction| {
        let order = folder.in_order(eviction).unwrap();
        order.into_iter().map(|used| used.dataset.as_bytes()[0]).collect::<Vec<_>>()
    };
    assert_eq!(order(Eviction::Lru), [1, 2, 3]);
    assert_eq!(order(Eviction::Lfu), [1, 3, 2]);
    assert_eq!(order(Eviction::Fifo), [3, 2, 1]);
    let of = folder.enter(dataset(1), "ds", 20).unwrap();
    assert!(!folder.make_room(10_000, Eviction::Keep).unwrap());
    assert!(folder.make_room(10_000, Eviction::Lru).unwrap());
    assert_eq!(folder.used().unwrap(), 20_000);
    assert_eq!(folder.remove_dataset(dataset(1)).unwrap(), None, "an agent has it open");
    assert!(!folder.make_room(25_000, Eviction::Lru).unwrap());
    assert_eq!(of.list().unwrap(), [name(1, 0..10_000)], "copies of an open dataset stay");
    assert_eq!(order(Eviction::Lru), [1]);
    drop(of);
    assert_eq!(folder.remove_dataset(dataset(1)).unwrap(), Some(10_000));
    assert_eq!((folder.used().unwrap(), folder.datasets().unwrap()), (0, Vec::new()));
}

#[test]
fn files_that_are_no_copies_stay_and_do_not_count() {
    let at = tempfile::tempdir().unwrap();
    let folder = Folder::open(at.path(), MIB).unwrap();
    let of = folder.enter(dataset(1), "ds", 5).unwrap();
    let user = read_dir(at.path()).unwrap().next().unwrap().unwrap().path();
    let inside = user.join(dataset(1).to_string());
    let copy = name(1, 5..9).file();
    for other in ["notes.txt", "0.5-9", &copy.replace("5-9", "9-5"), &copy.replace("5-", "05-")] {
        write(inside.join(other), "something else").unwrap();
    }
    // Left by a killed process on a file system where every file has a name.
    write(inside.join(".unfinished-1"), "half").unwrap();
    assert_eq!(of.list().unwrap(), []);
    assert_eq!(read_dir(&inside).unwrap().count(), 5, "the four files and the lock");
    drop(of);
    assert_eq!(folder.remove_dataset(dataset(1)).unwrap(), Some(0));
    assert_eq!(read_dir(&inside).unwrap().count(), 4);
}

#[test]
fn a_folder_of_another_user_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let at = tempfile::tempdir().unwrap();
    drop(Folder::open(at.path(), MIB).unwrap());
    let user = read_dir(at.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::set_permissions(&user, PermissionsExt::from_mode(0o770)).unwrap();
    let why = Folder::open(at.path(), MIB).unwrap_err().to_string();
    assert!(why.contains("name another folder"), "{why}");
    std::fs::remove_dir_all(&user).unwrap();
    std::os::unix::fs::symlink("/tmp", &user).unwrap();
    Folder::open(at.path(), MIB).unwrap_err();
}

/// A tier on a folder, with a copy.
async fn tier(at: &std::path::Path) -> (Arc<Tier>, Arc<ManualClock>, Arc<InUse>) {
    let clock = Arc::new(ManualClock::new(SystemTime::UNIX_EPOCH));
    let config = DiskConfig { path: at.to_owned(), quota: MIB };
    let tier = Arc::new(Tier::new(config, Eviction::Lru, Arc::clone(&clock) as Arc<dyn Clock>));
    let (of, copies) = tier.enter(dataset(1), "ds").await.unwrap();
    assert_eq!(copies, []);
    (tier, clock, of)
}

/// A pinned chunk of one slot.
fn pinned(slots: &mut Slots) -> Arc<PinnedFiles> {
    slots.fit(8_192, 8_192).unwrap();
    let bytes: Vec<u8> = (0..8_000_u32).map(|at| at as u8).collect();
    assert!(slots.arena().unwrap().write(0, 0, &bytes));
    Arc::new(slots.pin_chunk(0, (100, 8_000)).unwrap())
}

#[tokio::test]
async fn a_chunk_comes_back_as_it_was_written() {
    let at = tempfile::tempdir().unwrap();
    let (tier, _clock, of) = tier(at.path()).await;
    let (mut slots, copy) = (Slots::default(), name(1, 100..8_000));
    assert_eq!(tier.write(&of, &copy, pinned(&mut slots), false).await, WriteEnd::New);
    assert_eq!(tier.write(&of, &copy, pinned(&mut slots), true).await, WriteEnd::There);
    let arena = slots.arena().unwrap();
    arena.write(0, 0, &[0; 8_192]);
    let read = {
        let arena = Arc::clone(&arena);
        move |file: &CopyFile| {
            arena.write_with(0, 0, 8_192, |memory| file.read(memory, 0, 8_000)).unwrap()
        }
    };
    tier.read(&of, &copy, Read::Chunk, read).await.unwrap();
    let bytes = arena.written(0, 100, 7_900).unwrap();
    assert!(bytes.iter().zip(100..8_000_u32).all(|(byte, at)| *byte == at as u8));
    let gone = tier.read(&of, &name(2, 0..5), Read::Chunk, |_| Ok(())).await;
    assert_eq!(gone, Err(Unread::Gone));
    let status = tier.status(None);
    let told = (status.used_bytes, status.chunks_written, status.chunks_read, status.failed);
    assert_eq!((told, &*status.state), ((Some(7_900), 1, 1, 0), "ready"));
    tier.mark_damaged(&copy);
    assert!(tier.list(&of, None).await.unwrap().1.is_empty(), "not listed any more");
    assert_eq!(tier.write(&of, &copy, pinned(&mut slots), false).await, WriteEnd::New);
    assert_eq!(tier.status(None).chunks_written, 2, "in place of the wrong copy");
    tier.remove_damaged(&of, &copy).await;
    assert_eq!(tier.status(None).used_bytes, Some(7_900), "the new copy stays");
    tier.mark_damaged(&copy);
    tier.remove_damaged(&of, &copy).await;
    let status = tier.status(None);
    assert_eq!((status.used_bytes, status.damaged), (Some(0), 2));
}

#[tokio::test]
async fn a_failing_disk_rests_and_is_tried_again() {
    let at = tempfile::tempdir().unwrap();
    let (tier, clock, of) = tier(at.path()).await;
    let (mut slots, copy) = (Slots::default(), name(1, 100..8_000));
    assert_eq!(tier.write(&of, &copy, pinned(&mut slots), false).await, WriteEnd::New);
    let fails = |_: &CopyFile| Err::<(), _>(Errno::IO.into());
    assert_eq!(tier.read(&of, &copy, Read::Chunk, fails).await, Err(Unread::Resting));
    assert_eq!(tier.read(&of, &copy, Read::Chunk, |_| Ok(())).await, Err(Unread::Resting));
    assert_eq!((tier.room(), tier.status(None).state.as_str()), (None, "resting"));
    assert!(tier.status(None).reason.unwrap().contains("nput/output error"));
    clock.advance(Duration::from_secs(11));
    assert_eq!(tier.read(&of, &copy, Read::Chunk, |_| Ok(())).await, Ok(()));
    assert_eq!(tier.status(None).state, "ready");
}

#[tokio::test]
async fn a_disk_slower_than_the_servers_is_slow() {
    let at = tempfile::tempdir().unwrap();
    let (tier, clock, of) = tier(at.path()).await;
    let (mut slots, copy) = (Slots::default(), name(1, 100..8_000));
    assert_eq!(tier.write(&of, &copy, pinned(&mut slots), false).await, WriteEnd::New);
    let millis = |millis| Some(Duration::from_millis(millis));
    for _ in 0..8 {
        assert!(!tier.is_slow(millis(50)), "a few reads decide nothing");
        let clock = Arc::clone(&clock);
        let takes_long = move |_: &CopyFile| {
            clock.advance(Duration::from_millis(80));
            Ok(())
        };
        tier.read(&of, &copy, Read::Chunk, takes_long).await.unwrap();
    }
    assert!(!tier.is_slow(millis(100)) && !tier.is_slow(None));
    let slow = (0..32).filter(|_| tier.is_slow(millis(50)));
    assert_eq!(slow.count(), 30, "some reads measure the disk anew");
    let status = tier.status(millis(50));
    assert_eq!(
        (&*status.state, status.reason.as_deref()),
        ("slow", Some("the servers usually take 50.0 ms"))
    );
    assert_eq!(tier.status(None).state, "ready");
    // Files alone say nothing of chunks.
    tier.read(&of, &copy, Read::Files(5), |_| Ok(())).await.unwrap();
    let status = tier.status(None);
    assert_eq!((status.chunks_read, status.bytes_read), (8, 8 * 7_900 + 5));
}

#[tokio::test]
async fn calls_that_hang_keep_few_threads_and_no_caller() {
    let at = tempfile::tempdir().unwrap();
    let (tier, clock, of) = tier(at.path()).await;
    let (mut slots, copy) = (Slots::default(), name(1, 100..8_000));
    assert_eq!(tier.write(&of, &copy, pinned(&mut slots), false).await, WriteEnd::New);
    let mut releases = Vec::new();
    let mut reads = Vec::new();
    for _ in 0..6 {
        let (release, released) = mpsc::channel::<()>();
        releases.push(release);
        let (tier, of, copy) = (Arc::clone(&tier), Arc::clone(&of), copy.clone());
        reads.push(spawn(async move {
            let hang = move |_: &CopyFile| {
                let _ = released.recv();
                Ok(())
            };
            tier.read(&of, &copy, Read::Chunk, hang).await
        }));
    }
    let mut seen = Vec::new();
    for read in reads {
        let mut read = read;
        loop {
            tokio::select! {
                ended = &mut read => {
                    seen.push(ended.unwrap().unwrap_err());
                    break;
                }
                () = tokio::task::yield_now() => clock.advance(Duration::from_millis(10)),
            }
        }
    }
    let hung = seen.iter().filter(|why| **why == Unread::Hanging).count();
    assert!((4..=6).contains(&hung), "{seen:?}");
    assert!(tier.status(None).reason.unwrap().contains("no answer for 2 s"));
    releases.clear();
    clock.advance(Duration::from_secs(20));
    let mut back = tier.read(&of, &copy, Read::Chunk, |_| Ok(())).await;
    for _ in 0..100 {
        if back.is_ok() {
            break;
        }
        clock.advance(Duration::from_secs(20));
        back = tier.read(&of, &copy, Read::Chunk, |_| Ok(())).await;
    }
    assert_eq!(back, Ok(()));
}

#[test]
fn only_whole_copies_have_a_name() {
    let at = tempfile::tempdir().unwrap();
    let folder = Folder::open(at.path(), MIB).unwrap();
    let of = folder.enter(dataset(1), "ds", 5).unwrap();
    let copy = Unfinished::create(&of.folder, folder.access).unwrap();
    assert_eq!(of.list().unwrap(), []);
    let file = name(1, 0..4_096);
    assert!(copy.link(&of.folder, &file).unwrap());
    assert_eq!(of.list().unwrap(), std::slice::from_ref(&file));
    // A file cut short is no whole chunk.
    let read = CopyFile::open(&of.folder, &file, folder.access).unwrap();
    let mut memory = vec![0; 3 * BLOCK as usize];
    let start = memory.as_ptr().align_offset(BLOCK as usize);
    let why = read.read(&mut memory[start..start + BLOCK as usize], 0, 4_096).unwrap_err();
    assert_eq!(why.kind(), io::ErrorKind::UnexpectedEof);
    let user = read_dir(at.path()).unwrap().next().unwrap().unwrap().path();
    let path = user.join(dataset(1).to_string()).join(file.file());
    assert_eq!(std::fs::File::open(path).unwrap().read_at(&mut memory, 0).unwrap(), 0);
}

#[test]
fn copies_need_neither_direct_access_nor_files_without_names() {
    let at = tempfile::tempdir().unwrap();
    let mut folder = Folder::open(at.path(), MIB).unwrap();
    folder.access = Access::Buffered;
    let of = folder.enter(dataset(1), "ds", 5).unwrap();
    let user = read_dir(at.path()).unwrap().next().unwrap().unwrap().path();
    let inside = user.join(dataset(1).to_string());
    let copy = Unfinished::with_name(&of.folder, Access::Buffered).unwrap();
    copy.write(&[7; 8_192], 0, 8_000).unwrap();
    let names =
        || read_dir(&inside).unwrap().map(|one| one.unwrap().file_name()).collect::<Vec<_>>();
    let unfinished = names().into_iter().find(|name| name != "use").unwrap();
    Unfinished::clean(&of.folder, unfinished.to_str().unwrap());
    assert_eq!(names().len(), 2, "its writer lives");
    let file = name(1, 100..8_000);
    assert_eq!(folder.add(&of, &copy, &file).unwrap(), Added::New);
    assert_eq!(folder.add(&of, &copy, &file).unwrap(), Added::There);
    drop(copy);
    assert_eq!((names().len(), folder.used().unwrap()), (2, 7_900), "the copy and the lock");
    let mut memory = [0; 8_193];
    let read = CopyFile::open(&of.folder, &file, folder.access).unwrap();
    read.read(&mut memory[1..], 0, 8_000).unwrap();
    assert_eq!((memory[1], memory[8_000], memory[8_001]), (7, 7, 0));
    drop(Unfinished::with_name(&of.folder, Access::Direct).unwrap());
    assert_eq!(names().len(), 2, "given up");
}

#[test]
fn a_folder_is_cleaned_of_what_no_agent_uses() {
    let at = tempfile::tempdir().unwrap();
    assert_eq!(clean_disk(at.path(), true, |_| true).unwrap(), []);
    assert_eq!(read_dir(at.path()).unwrap().count(), 0, "nothing is made");
    let folder = Folder::open(at.path(), MIB).unwrap();
    let [first, second] = [1, 2].map(|number| {
        let of = folder.enter(dataset(number), &format!("ds-{number}"), 5).unwrap();
        add(&folder, &of, &name(number, 0..10_000), 1).unwrap();
        of
    });
    drop(first);
    let told = |removes| {
        let told = clean_disk(at.path(), removes, |one| one.name != "other").unwrap();
        let told = told.into_iter().map(|one| (one.name, one.bytes, one.fate));
        let mut told: Vec<_> = told.collect();
        told.sort_by(|one, other| one.0.cmp(&other.0));
        told
    };
    let one = ("ds-1".to_owned(), 10_000, DiskFate::Removed);
    let two = ("ds-2".to_owned(), 10_000, DiskFate::InUse);
    assert_eq!(told(false), [one.clone(), two.clone()]);
    assert_eq!(folder.used().unwrap(), 20_000);
    assert_eq!(told(true), [one, two.clone()]);
    assert_eq!(folder.used().unwrap(), 10_000);
    drop(second);
    assert_eq!(told(true), [(two.0.clone(), two.1, DiskFate::Removed)]);
    assert_eq!(told(true), []);
    assert_eq!(read_dir(at.path()).unwrap().count(), 1, "an agent has the folder open");
    drop(folder);
    assert_eq!(told(true), []);
    assert_eq!(read_dir(at.path()).unwrap().count(), 0);
}

#[test]
fn a_stopped_process_with_the_lock_delays_no_reader() {
    let at = tempfile::tempdir().unwrap();
    let folder = Folder::open(at.path(), MIB).unwrap();
    let of = folder.enter(dataset(1), "ds", 5).unwrap();
    let user = read_dir(at.path()).unwrap().next().unwrap().unwrap().path();
    let other = std::fs::File::open(user.join("usage")).unwrap();
    other.lock().unwrap();
    let why = add(&folder, &of, &name(1, 0..5), 1).unwrap_err();
    assert_eq!(why.kind(), io::ErrorKind::WouldBlock);
    assert_eq!((folder.used().unwrap(), of.list().unwrap()), (0, Vec::new()));
    other.unlock().unwrap();
    assert_eq!(add(&folder, &of, &name(1, 0..5), 1).unwrap(), Added::New);
}

#[test]
fn a_dataset_without_its_lock_file_is_cleaned() {
    let at = tempfile::tempdir().unwrap();
    let folder = Folder::open(at.path(), MIB).unwrap();
    let of = folder.enter(dataset(1), "ds", 5).unwrap();
    add(&folder, &of, &name(1, 0..5), 1).unwrap();
    let user = read_dir(at.path()).unwrap().next().unwrap().unwrap().path();
    // A process was killed between two steps.
    std::fs::remove_file(user.join(dataset(1).to_string()).join("use")).unwrap();
    write(user.join(".unfinished-2"), "half").unwrap();
    drop((of, folder));
    assert_eq!(clean_disk(at.path(), false, |_| true).unwrap()[0].bytes, 5);
    assert_eq!(clean_disk(at.path(), true, |_| true).unwrap().len(), 1);
    assert_eq!(read_dir(at.path()).unwrap().count(), 0);
}
