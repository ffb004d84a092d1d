//! A walk over real folders, by several threads.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Mutex;
use std::thread;

use tempfile::TempDir;

use super::*;
use crate::local::Destination;

fn root(folder: &Path, follow: bool) -> Arc<Root> {
    Root::open(folder, Destination::Below(b"in/".to_vec()), follow).expect("it exists")
}

fn tree(folder: &Path) -> Walk {
    let walk = Walk::default();
    walk.add_tree(&root(folder, false), b"");
    walk
}

fn text(problem: Problem) -> String {
    match problem {
        Problem::Skipped(why) | Problem::NotFollowed(why) => why.to_owned(),
        Problem::Failed(why) => why.to_string(),
    }
}

/// The outcome of the walk for each path below the root, with links followed or not.
fn walked(folder: &Path, threads: usize, follow: bool) -> BTreeMap<String, String> {
    let walk = Walk::default();
    walk.add_tree(&root(folder, follow), b"");
    let seen = Mutex::new(BTreeMap::new());
    let note = |path: &[u8], what: String| {
        let path = String::from_utf8_lossy(path).into_owned();
        let before = seen.lock().unwrap().insert(path.clone(), what);
        assert_eq!(before, None, "{path} came twice");
    };
    let visit = |event: Event<'_>| -> Result<(), ()> {
        match event {
            Event::Folder(folder) => note(folder.path(), "folder".to_owned()),
            Event::Empty => {}
            Event::Problem { path, problem, .. } => note(path, text(problem)),
            Event::File { folder, name, entry } => {
                let opened = folder.open(name, entry).map(|file| format!("{} bytes", file.size()));
                note(&folder.path_of(name), opened.unwrap_or_else(text));
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| walk.join(visit));
        }
    });
    seen.into_inner().unwrap()
}

/// Checks the outcome for one thread and for several.
fn assert_walked<const N: usize>(folder: &Path, follow: bool, expected: [(&str, &str); N]) {
    let expected = expected.map(|(path, what)| (path.to_owned(), what.to_owned()));
    let expected = BTreeMap::from(expected);
    for threads in [1, 3] {
        assert_eq!(walked(folder, threads, follow), expected);
    }
}

#[test]
fn every_file_is_visited_once_by_any_number_of_threads() {
    let folder = TempDir::new().unwrap();
    for number in 0..3000 {
        fs::write(folder.path().join(format!("file {number}")), "x").unwrap();
    }
    for number in 0..200 {
        let deep = folder.path().join(format!("a{}/b{number}/c", number % 7));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), "xy").unwrap();
    }
    let alone = walked(folder.path(), 1, false);
    assert_eq!(alone.values().filter(|what| *what == "1 bytes").count(), 3000);
    assert_eq!(alone.values().filter(|what| *what == "2 bytes").count(), 200);
    assert_eq!(alone.values().filter(|what| *what == "folder").count(), 7 + 400);
    assert_eq!(walked(folder.path(), 4, false), alone);
}

#[test]
fn folders_that_wait_take_little_more_than_their_names() {
    let folder = TempDir::new().unwrap();
    let root = root(folder.path(), false);
    let path = b"a long path of the folder they are in/".to_vec();
    let (walk, parent) = (Walk::default(), Arc::new(Parent { path, id: None, above: None }));
    let name = |number: u32| CString::new(format!("{number:08}")).unwrap();
    for number in 0..100_000 {
        walk.give_folder(&root, &parent, &name(number));
    }
    let bytes = |waiting: &Waiting| match waiting {
        Waiting::Folders(folders) => folders.names.bytes.len(),
        Waiting::Task(_) => usize::MAX,
    };
    assert_eq!(walk.state().waiting.iter().map(bytes).collect::<Vec<_>>(), [900_000]);
    let taken = (0..100_000).map(|_| match walk.take() {
        Some(Task::Folder(_, path, _)) => path,
        other => panic!("{other:?}"),
    });
    let expected =
        (0..100_000).rev().map(|number| [&parent.path, name(number).as_bytes()].concat());
    assert!(taken.eq(expected), "each comes once, the newest first");
}

#[test]
fn folders_of_two_roots_are_told_apart() {
    let both = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let walk = Walk::default();
    for (folder, name) in both.iter().zip(["one", "two"]) {
        fs::create_dir(folder.path().join(name)).unwrap();
        walk.add_tree(&root(folder.path(), false), b"");
    }
    let mut seen = Vec::new();
    let visit = |event: Event<'_>| -> Result<(), ()> {
        match event {
            Event::Folder(folder) => seen.push(folder.path().to_vec()),
            Event::Empty => {}
            other => panic!("{other:?}"),
        }
        Ok(())
    };
    walk.join(visit).unwrap();
    seen.sort_unstable();
    assert_eq!(seen, [b"one", b"two"]);
}

#[test]
fn links_are_followed_to_files_inside_and_nowhere_else() {
    let outside = TempDir::new().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("sub")).unwrap();
    fs::write(at("sub/file"), "1234").unwrap();
    symlink("sub/file", at("inside")).unwrap();
    symlink(at("sub/file"), at("absolute")).unwrap();
    symlink("../inside", at("sub/twice")).unwrap();
    symlink(outside.path().join("secret"), at("out")).unwrap();
    symlink(outside.path(), at("out folder")).unwrap();
    symlink("sub", at("sub link")).unwrap();
    symlink("..", at("up")).unwrap();
    symlink("nothing", at("dangling")).unwrap();
    symlink("loop", at("loop")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();

    let expected = [
        ("absolute", "4 bytes"),
        ("dangling", "it is a link to nothing"),
        ("inside", "4 bytes"),
        ("loop", "it is a link that leads in a circle"),
        ("out", "it is a link out of the folder"),
        ("out folder", "it is a link out of the folder"),
        ("socket", "it is a socket or a device"),
        ("sub", "folder"),
        ("sub link", "it is a link to a folder"),
        ("sub/file", "4 bytes"),
        ("sub/twice", "4 bytes"),
        ("up", "it is a link out of the folder"),
    ];
    assert_walked(folder.path(), false, expected);
}

#[test]
fn a_folder_that_a_link_replaces_meanwhile_is_not_followed_out() {
    let outside = TempDir::new().unwrap();
    fs::create_dir_all(outside.path().join("sub/deep")).unwrap();
    fs::write(outside.path().join("sub/deep/secret"), "secret").unwrap();
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir_all(at("a/sub/deep")).unwrap();
    fs::write(at("a/sub/file"), "between what is listed and what is opened").unwrap();
    let walk = tree(folder.path());
    let (mut files, mut problems) = (0, Vec::new());
    let walked = walk.join(|event| -> Result<(), ()> {
        match event {
            Event::File { .. } => {
                files += 1;
                fs::rename(at("a"), at("moved")).unwrap();
                symlink(outside.path(), at("a")).unwrap();
            }
            Event::Problem { path, .. } => problems.push(path.to_vec()),
            Event::Folder(_) | Event::Empty => {}
        }
        Ok(())
    });
    assert_eq!((walked, files), (Ok(()), 1));
    assert_eq!(problems, [b"a/sub/deep"]);
}

#[test]
fn listed_paths_follow_only_links_inside_the_folder() {
    let outside = TempDir::new().unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    fs::write(folder.path().join("sub/file"), "1234").unwrap();
    symlink("sub", folder.path().join("in")).unwrap();
    symlink(folder.path().join("sub"), folder.path().join("absolute")).unwrap();
    symlink(outside.path(), folder.path().join("out")).unwrap();
    symlink(outside.path().join("secret"), folder.path().join("sub/out")).unwrap();
    let root = root(folder.path(), false);
    let top = root.folder(b"").unwrap();
    for name in [c"sub/file", c"in/file", c"absolute/file"] {
        assert_eq!(top.open(name, Entry::Found).map(|file| file.size()).unwrap(), 4, "{name:?}");
        assert_eq!(top.stat(name, Entry::Found).map(|(size, _)| size).unwrap(), 4, "{name:?}");
    }
    for (name, why) in [
        (c"out/secret", "it lies behind a link out of the folder"),
        (c"sub/out", "it is a link out of the folder"),
    ] {
        let opened = top.open(name, Entry::Found);
        assert!(
            matches!(opened, Err(Problem::NotFollowed(unquoted)) if unquoted == why),
            "{opened:?}"
        );
        assert!(top.stat(name, Entry::Found).is_err(), "{name:?}");
    }
    for name in [c"sub/none", c"none/file", c"out/none"] {
        let opened = top.open(name, Entry::Found);
        assert!(opened.is_err(), "{name:?}");
    }
    assert!(matches!(top.open(c"sub/none", Entry::Found), Err(Problem::Failed(_))));
}

#[test]
fn paths_in_the_dataset_start_with_the_prefix() {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    let root = root(folder.path(), false);
    let sub = root.folder(b"sub").unwrap();
    let path = sub.dataset_path(c"file").unwrap();
    assert_eq!(path.as_bytes(), b"in/sub/file");
    assert_eq!(root.relative(&path), b"sub/file");
    assert_eq!(root.shown(b"sub"), folder.path().join("sub"));
}

#[test]
fn a_failing_visitor_stops_all_threads() {
    let folder = TempDir::new().unwrap();
    for number in 0..1000 {
        fs::write(folder.path().join(format!("{number}")), "").unwrap();
    }
    let walk = tree(folder.path());
    let ends = thread::scope(|scope| {
        let join = || walk.join(|_| Err::<(), _>("enough"));
        let threads = [(); 3].map(|()| scope.spawn(join));
        threads.map(|thread| thread.join().unwrap())
    });
    assert!(ends.contains(&Err("enough")));
}

#[test]
fn follow_allows_links_out_and_to_folders_and_reports_loops() {
    let outside = TempDir::new().unwrap();
    fs::create_dir(outside.path().join("deep")).unwrap();
    fs::write(outside.path().join("deep/blob"), "12").unwrap();
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("sub")).unwrap();
    symlink(outside.path().join("deep/blob"), at("sub/file")).unwrap();
    symlink(outside.path(), at("out")).unwrap();
    symlink("sub", at("twice")).unwrap();
    symlink("..", at("sub/up")).unwrap();
    // Two links to each other's folder, from outside.
    symlink(folder.path(), outside.path().join("back")).unwrap();
    symlink("circle", at("circle")).unwrap();
    symlink("nothing", at("dangling")).unwrap();

    let back = "it leads back to a folder that it lies in, in a loop";
    let expected = [
        ("circle", "it is a link that leads in a circle"),
        ("dangling", "it is a link to nothing"),
        ("out", "folder"),
        ("out/back", back),
        ("out/deep", "folder"),
        ("out/deep/blob", "2 bytes"),
        ("sub", "folder"),
        ("sub/file", "2 bytes"),
        ("sub/up", back),
        ("twice", "folder"),
        ("twice/file", "2 bytes"),
        ("twice/up", back),
    ];
    assert_walked(folder.path(), true, expected);
}

#[test]
fn folders_with_the_data_of_a_server_are_named_and_not_entered() {
    let folder = TempDir::new().unwrap();
    let at = |name: &str| folder.path().join(name);
    for path in ["diesel-data/chunks", "store", "index", "mine/chunks", "mine/meta"] {
        fs::create_dir_all(at(path)).unwrap();
        fs::write(at(path).join("file"), "1").unwrap();
    }
    let store = dl_format::StoreId::from_bytes([7; 16]);
    let identity = dl_format::IdentityRecord { store }.encode();
    fs::write(at("diesel-data/chunks/identity"), &identity).unwrap();
    fs::write(at("store/identity"), &identity).unwrap();
    fs::write(at("index/meta.redb"), "redb and more").unwrap();
    fs::write(at("mine/chunks/identity"), "something else").unwrap();
    let seen = walked(folder.path(), 2, false);
    for server in ["diesel-data", "store", "index"] {
        assert!(seen.get(server).is_some_and(|what| what.contains("dlserver")), "{seen:?}");
        assert!(!seen.keys().any(|path| path.starts_with(&format!("{server}/"))), "{seen:?}");
    }
    assert_eq!(seen.values().filter(|what| what.ends_with("bytes")).count(), 3, "{seen:?}");
}

#[test]
fn folders_without_entries_are_counted() {
    let folder = TempDir::new().unwrap();
    for path in ["a/b", "a/c", "d/e/f"] {
        fs::create_dir_all(folder.path().join(path)).unwrap();
    }
    fs::write(folder.path().join("a/c/file"), "").unwrap();
    let mut empty = 0;
    let walked = tree(folder.path()).join(|event| -> Result<(), ()> {
        empty += u64::from(matches!(event, Event::Empty));
        Ok(())
    });
    assert_eq!((walked, empty), (Ok(()), 2));
}
