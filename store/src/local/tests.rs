//! The local store: the contract, crashes at every step, and changes by other programs in a real
//! directory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::PermissionsExt;

use dl_runtime::fault::CutPoint;
use dl_runtime::{Random, SeededRandom};
use tempfile::TempDir;

use super::files::Errno;
use super::volatile::Volatile;
use super::*;
use crate::{ByteRange, StoreExt, conformance};

fn key(text: &str) -> Key {
    Key::new(text).unwrap()
}

fn disk(root: &Path) -> Directory<Disk> {
    Directory::open(Disk::open(root).unwrap()).unwrap()
}

/// All files below `dir`, of any name.
fn files_below(dir: &Path) -> Vec<PathBuf> {
    let (mut dirs, mut files) = (vec![dir.to_path_buf()], Vec::new());
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let list = if entry.file_type().unwrap().is_dir() { &mut dirs } else { &mut files };
            list.push(entry.path());
        }
    }
    files
}

#[tokio::test]
async fn a_local_directory_keeps_the_contract() {
    let dirs = TempDir::new().unwrap();
    let count = std::sync::atomic::AtomicUsize::new(0);
    conformance::run(async || {
        let number = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        open(&dirs.path().join(number.to_string())).await.unwrap()
    })
    .await;
    let is_stray = |path: &PathBuf| path.components().any(|part| part.as_os_str() == ".staging");
    assert!(!files_below(dirs.path()).iter().any(is_stray));
}

#[tokio::test]
async fn a_file_system_without_unnamed_files_keeps_the_contract() {
    let dirs = TempDir::new().unwrap();
    let count = std::sync::atomic::AtomicUsize::new(0);
    conformance::run(async || {
        let number = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let root = dirs.path().join(number.to_string());
        Arc::new(LocalStore::new(&root, disk(&root).stage_always())) as Arc<dyn Store>
    })
    .await;
}

#[tokio::test]
async fn the_disk_model_keeps_the_contract() {
    for has_unnamed_files in [true, false] {
        conformance::run(async || {
            let files = Volatile::new(has_unnamed_files, CutPoint::new());
            let directory = Directory::open(files).unwrap();
            Arc::new(LocalStore::new(Path::new("model"), directory)) as Arc<dyn Store>
        })
        .await;
    }
}

#[tokio::test]
async fn a_network_file_system_keeps_the_contract() {
    conformance::run(async || {
        let directory = Directory::open(Volatile::on_network()).unwrap();
        Arc::new(LocalStore::new(Path::new("model"), directory)) as Arc<dyn Store>
    })
    .await;
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Create(&'static str, &'static str),
    Delete(&'static str),
}

/// New directories, a second object in a directory, a taken key, a deletion, a key that comes back.
const SCENARIO: [Step; 8] = [
    Step::Create("d/a/1", "one"),
    Step::Create("d/a/2", "two"),
    Step::Create("d/a/1", "another one"),
    Step::Create("d/b/3", ""),
    Step::Delete("d/a/1"),
    Step::Delete("d/c/none"),
    Step::Create("d/a/1", "anew"),
    Step::Delete("d/b/3"),
];

/// The possible bodies of each key after the acknowledged steps; other keys have no object.
type Allowed = BTreeMap<&'static str, BTreeSet<Option<&'static str>>>;

/// Runs steps until a failure, notes the acknowledged steps, and returns the remaining steps.
fn go<'a>(directory: &Directory<Volatile>, steps: &'a [Step], allowed: &mut Allowed) -> &'a [Step] {
    for (done, step) in steps.iter().enumerate() {
        let (Step::Create(name, _) | Step::Delete(name)) = *step;
        let holds = allowed.entry(name).or_insert_with(|| BTreeSet::from([None]));
        let result = match step {
            Step::Create(name, body) => directory.create(&key(name), body.as_bytes()),
            Step::Delete(name) => directory.delete(&key(name)),
        };
        match (step, result) {
            (Step::Create(_, body), Ok(())) => {
                assert!(holds.contains(&None), "{step:?} took a key that was not free");
                *holds = BTreeSet::from([Some(*body)]);
            }
            (Step::Create(..), Err(error)) if error.kind == Kind::Exists => {
                holds.remove(&None);
                assert!(!holds.is_empty(), "{step:?} met an object that nobody created");
            }
            (Step::Delete(_), Ok(())) => *holds = BTreeSet::from([None]),
            (Step::Create(_, body), Err(_)) => {
                if holds.contains(&None) {
                    holds.insert(Some(body));
                }
                return &steps[done..];
            }
            (Step::Delete(_), Err(_)) => {
                holds.insert(None);
                return &steps[done..];
            }
        }
    }
    &[]
}

/// Checks a new process over the same disk: each key has a possible body, and all files are objects.
fn restart(files: &Volatile, allowed: &Allowed, when: &str) -> Directory<Volatile> {
    let directory = Directory::open(files.clone()).unwrap();
    let mut objects = Vec::new();
    for (name, holds) in allowed {
        let range = ObjectRange { key: key(name), range: ByteRange::WHOLE };
        let found = match directory.read(&[range]).remove(0) {
            Ok(bytes) => Some(String::from_utf8(bytes.to_vec()).unwrap()),
            Err(error) => {
                assert_eq!(error.kind, Kind::Missing, "{when}");
                None
            }
        };
        assert!(holds.contains(&found.as_deref()), "{when}: {name} holds {found:?}, not {holds:?}");
        if found.is_some() {
            objects.push((*name).to_owned());
        }
    }
    assert_eq!(files.files(), objects, "{when}: a file that is no object");
    directory
}

#[test]
fn a_crash_at_any_step_loses_no_acknowledged_object() {
    for has_unnamed_files in [true, false] {
        let cut = CutPoint::new();
        let files = Volatile::new(has_unnamed_files, cut.clone());
        let left = go(&Directory::open(files).unwrap(), &SCENARIO, &mut Allowed::new());
        assert!(left.is_empty());
        let points = cut.passed();
        assert!(points > 80, "{points}");
        for point in 0..=points {
            for luck in 0..8 {
                for next in [Next::PowerLoss, Next::Restart, Next::Retry, Next::Found] {
                    crash(has_unnamed_files, point, luck, next);
                }
            }
        }
    }
}

/// Steps between the failed call and the power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    PowerLoss,
    /// Another process does the step again; its promises count too.
    Restart,
    /// The fault passed, and the same process does the step again.
    Retry,
    /// Another process settles the objects that it finds, which are then durable.
    Found,
}

fn crash(has_unnamed_files: bool, point: u64, luck: u64, next: Next) {
    let when = format!("unnamed {has_unnamed_files}, point {point}, luck {luck}, {next:?}");
    let cut = CutPoint::new();
    let files = Volatile::new(has_unnamed_files, cut.clone());
    let mut allowed = Allowed::new();
    let mut directory = Directory::open(files.clone()).unwrap();
    cut.arm(point);
    let mut left = go(&directory, &SCENARIO, &mut allowed);
    cut.disarm();
    if next == Next::Restart {
        directory = restart(&files, &allowed, &when);
    }
    if next == Next::Found {
        directory = restart(&files, &allowed, &when);
        for (name, holds) in &mut allowed {
            let range = ObjectRange { key: key(name), range: ByteRange::WHOLE };
            let is_there = directory.read(&[range]).remove(0).is_ok();
            directory.make_durable(&[key(name)]).unwrap();
            if is_there {
                holds.remove(&None);
            }
        }
    }
    let goes_on = matches!(next, Next::Restart | Next::Retry);
    if let (true, Some((again, rest))) = (goes_on, left.split_first()) {
        assert!(go(&directory, &[*again], &mut allowed).is_empty(), "{when}");
        left = rest;
    }
    let random = SeededRandom::new(luck);
    files.lose_power(|| match luck {
        0 => false,
        1 => true,
        _ => random.unit() < 0.5,
    });
    let directory = restart(&files, &allowed, &when);
    assert!(go(&directory, left, &mut allowed).is_empty(), "{when}");
    restart(&files, &allowed, &when);
}

#[test]
fn only_staging_files_of_dead_processes_are_removed() {
    let root = TempDir::new().unwrap();
    let staging = root.path().join(".staging");
    fs::create_dir(&staging).unwrap();
    fs::write(staging.join("dead"), "half").unwrap();
    let living = Disk::open(root.path()).unwrap();
    let _held = living.stage(".staging/living").unwrap().unwrap();
    disk(root.path());
    assert_eq!(files_below(root.path()), [staging.join("living")]);
}

#[tokio::test]
async fn an_open_object_that_was_moved_away_is_missing() {
    let root = TempDir::new().unwrap();
    let (store, key) = (open(root.path()).await.unwrap(), key("a/b"));
    store.create(&key, "1".into()).await.unwrap();
    assert_eq!(store.read_all(&key).await.unwrap(), "1");
    fs::rename(root.path().join("a/b"), root.path().join("away")).unwrap();
    assert_eq!(store.read_all(&key).await.unwrap_err().kind, Kind::Missing);
    store.create(&key, "2".into()).await.unwrap();
    assert_eq!(store.read_all(&key).await.unwrap(), "2");
    fs::write(root.path().join("other"), "3").unwrap();
    fs::rename(root.path().join("other"), root.path().join("a/b")).unwrap();
    assert_eq!(store.read_all(&key).await.unwrap(), "3", "another one in its place");
}

#[tokio::test]
async fn a_deleted_object_gives_its_space_back_at_once() {
    let root = TempDir::new().unwrap();
    let store = open(root.path()).await.unwrap();
    let key = key("a/only-here");
    store.create(&key, "1".into()).await.unwrap();
    store.read_all(&key).await.unwrap();
    store.delete(&key).await.unwrap();
    let is_open = fs::read_dir("/proc/self/fd").unwrap().any(|entry| {
        let target = fs::read_link(entry.unwrap().path());
        target.is_ok_and(|target| target.to_string_lossy().contains("only-here"))
    });
    assert!(!is_open);
}

#[tokio::test]
async fn a_directory_removed_by_hand_is_made_again() {
    let root = TempDir::new().unwrap();
    let store = open(root.path()).await.unwrap();
    store.create(&key("a/b/1"), "1".into()).await.unwrap();
    fs::remove_dir_all(root.path().join("a")).unwrap();
    store.create(&key("a/b/2"), "2".into()).await.unwrap();
    assert_eq!(store.read_all(&key("a/b/2")).await.unwrap(), "2");
}

#[tokio::test]
async fn a_truncated_object_is_corrupt() {
    let root = TempDir::new().unwrap();
    let store = open(root.path()).await.unwrap();
    let key = key("a/1");
    store.create(&key, "12345678".into()).await.unwrap();
    fs::write(root.path().join("a/not a key"), "x").unwrap();
    fs::write(root.path().join(".hidden"), "x").unwrap();
    std::os::unix::fs::symlink("/etc/passwd", root.path().join("a/link")).unwrap();
    let listed = store.list_sorted(&Prefix::ROOT).await.unwrap();
    assert_eq!(listed, [ObjectInfo { key: key.clone(), size: 8 }]);
    fs::OpenOptions::new().write(true).open(root.path().join("a/1")).unwrap().set_len(5).unwrap();
    let range = ByteRange::exact(2, 8).unwrap();
    assert_eq!(store.read_one(&key, range).await.unwrap_err().kind, Kind::Corrupt);
    assert_eq!(store.read_one(&key, ByteRange::exact(2, 5).unwrap()).await.unwrap(), "345");
}

#[tokio::test]
async fn a_listing_of_many_objects_gives_each_once() {
    let root = TempDir::new().unwrap();
    let store = open(root.path()).await.unwrap();
    for dir in 0..3 {
        fs::create_dir(root.path().join(dir.to_string())).unwrap();
        for file in 0..LISTED_PER_JOB {
            fs::write(root.path().join(format!("{dir}/{file}")), "").unwrap();
        }
    }
    let listed = store.list_sorted(&Prefix::ROOT).await.unwrap();
    assert_eq!(
        listed.iter().map(|object| &object.key).collect::<BTreeSet<_>>().len(),
        listed.len()
    );
    assert_eq!(listed.len(), 3 * LISTED_PER_JOB);
}

#[tokio::test]
async fn opening_makes_directories_but_replaces_no_file() {
    let root = TempDir::new().unwrap();
    let store = open(&root.path().join("x/y/z")).await.unwrap();
    store.create(&key("k"), "1".into()).await.unwrap();
    let error = open(&root.path().join("x/y/z/k/below")).await.unwrap_err();
    assert_eq!(error.kind, Kind::Unsupported);
    assert!(error.to_string().contains("x/y/z/k/below"), "{error}");
}

#[test]
fn new_objects_have_the_permissions_that_the_umask_leaves() {
    let root = TempDir::new().unwrap();
    disk(root.path()).create(&key("a/1"), b"1").unwrap();
    fs::write(root.path().join("plain"), "1").unwrap();
    let mode = |name: &str| fs::metadata(root.path().join(name)).unwrap().permissions().mode();
    assert_eq!(mode("a/1"), mode("plain"));
}

#[test]
fn a_large_read_is_cut_into_jobs_that_cover_it_once() {
    let ranges = |count: usize, length: u64| {
        let range = ByteRange::exact(0, length).unwrap();
        vec![ObjectRange { key: key("k"), range }; count]
    };
    for (count, length, jobs) in [
        (0, 1, 0),
        (1, 1, 1),
        (256, 4096, 1),
        (1, 64 << 20, 1),
        (2, 4 << 20, 2),
        (100, 4 << 20, 4),
        (3, u64::MAX, 3),
    ] {
        let shares = shares(&ranges(count, length));
        assert_eq!(shares.len(), jobs, "{count} x {length}");
        assert!(shares.iter().cloned().flatten().eq(0..count), "{shares:?}");
    }
}

#[tokio::test]
async fn pruning_removes_empty_folders_only() {
    let root = TempDir::new().unwrap();
    let store = open(root.path()).await.unwrap();
    let keys = ["chunks/one/aa/1", "chunks/one/bb/2", "chunks/two/aa/3"].map(key);
    for key in &keys {
        store.create(key, "1".into()).await.unwrap();
    }
    store.delete(&keys[0]).await.unwrap();
    let one = Prefix::new("chunks/one").unwrap();
    store.prune(&one).await.unwrap();
    assert!(!root.path().join("chunks/one/aa").exists());
    assert_eq!(store.read_all(&keys[1]).await.unwrap(), "1");
    store.delete(&keys[1]).await.unwrap();
    store.prune(&one).await.unwrap();
    assert!(!root.path().join("chunks/one").exists());
    assert_eq!(store.read_all(&keys[2]).await.unwrap(), "1");
    store.create(&keys[0], "again".into()).await.unwrap();
    assert_eq!(store.read_all(&keys[0]).await.unwrap(), "again");
}

#[test]
fn a_removed_folder_is_no_lack_of_unnamed_files() {
    let root = TempDir::new().unwrap();
    let disk = Disk::open(root.path()).unwrap();
    disk.make_dir("a").unwrap();
    let file = disk.create_unnamed("a").unwrap();
    disk.remove_dir("a").unwrap();
    assert_eq!(disk.link_unnamed(&file, "a/1").unwrap_err(), Errno::NOENT);
}
