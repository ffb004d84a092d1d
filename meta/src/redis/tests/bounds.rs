//! What calls ask of Redis however many folders there are, and however many files are deleted.

use std::slice;

use dl_format::{Committed, DirPath, EntryVersion, FilePath, FileRecord};

use super::{id, open, path, record};
use crate::conformance::history::Maker;
use crate::redis::command::Ask;
use crate::redis::live::TURNS;
use crate::redis::testing::Server;
use crate::{Found, ListEntry, ListQuery, MetaStore, Redis};

fn query(dir: DirPath, recursive: bool) -> ListQuery {
    ListQuery::of(dir, recursive, 10_000)
}

async fn filled(server: &Server, objects: &[Committed]) -> Redis {
    let store = open(&server.url()).await;
    store.put_dataset(&record()).await.unwrap();
    for object in objects {
        store.append(object).await.unwrap();
    }
    store
}

fn versions(object: &Committed, below: &str) -> Vec<EntryVersion> {
    let entries = object.header().entries();
    let entries = entries.filter(|entry| entry.path.as_bytes().starts_with(below.as_bytes()));
    entries.map(|entry| FileRecord::of(object, &entry).version).collect()
}

/// How often Redis has read from its connections: once or a few times for what is asked together.
async fn reads(server: &Server) -> u64 {
    let info = server.text(&["INFO", "stats"]).await;
    let reads = info.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
    reads.expect("Redis counts them").trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn folders_of_a_listing_are_looked_into_together_once_something_was_deleted() {
    let server = Server::start(&[]).await;
    let mut maker = Maker::new(id(), 1);
    let names: Vec<_> = (0..3_000).map(|n| format!("{:03}/{n}", n % 1_000)).collect();
    let object = maker.chunk(names.iter().map(|name| (name.as_bytes(), 1)));
    let tombstone = maker.tombstone(&versions(&object, "00"));
    let store = filled(&server, &[object, tombstone]).await;
    let before = reads(&server).await;
    let listed = store.list(id(), &query(DirPath::ROOT, false)).await.unwrap();
    let asked = reads(&server).await - before;
    let wanted = (10..1_000).map(|n| ListEntry::Folder(path(format!("{n:03}"))));
    assert_eq!(listed, wanted.collect::<Vec<_>>());
    assert!(asked < 200, "{asked} reads for {} folders", listed.len());
    // While others search, nobody waits for them.
    let turns = u32::try_from(TURNS).unwrap();
    let _turns = store.shared.searches.try_acquire_many(turns).unwrap();
    let before = reads(&server).await;
    assert_eq!(store.list(id(), &query(DirPath::ROOT, false)).await.unwrap(), listed);
    let asked = reads(&server).await - before;
    assert!(asked < 400, "{asked} reads for {} folders", listed.len());
}

/// Of many folders, and of one with hashed buckets.
#[tokio::test(flavor = "multi_thread")]
async fn a_tree_in_which_all_is_deleted_costs_few_rounds() {
    for folders in [100, 1] {
        let server = Server::start(&[]).await;
        let mut maker = Maker::new(id(), 1);
        let names: Vec<_> = (0..20_000).map(|n| format!("dead/{}/{n:05}", n % folders)).collect();
        let mut objects: Vec<_> = names
            .chunks(4_000)
            .map(|names| maker.chunk(names.iter().map(|name| (name.as_bytes(), 1))))
            .collect();
        let gone: Vec<_> = objects.iter().flat_map(|object| versions(object, "dead")).collect();
        objects.extend([maker.tombstone(&gone), maker.chunk([(&b"kept"[..], 1)])]);
        let store = filled(&server, &objects).await;
        assert_eq!(store.shared.root(id()).await.unwrap().unwrap().is_large, folders == 1);
        let before = reads(&server).await;
        let listed = store.list(id(), &query(DirPath::ROOT, false)).await.unwrap();
        let found = store.lookup(id(), &[path("dead"), path("dead/0")]).await.unwrap();
        let asked = reads(&server).await - before;
        assert!(matches!(&listed[..], [ListEntry::File(kept, _)] if *kept == path("kept")));
        assert_eq!(found, [Found::Missing, Found::Missing]);
        assert!(asked < 400, "{asked} reads for {} deleted files", names.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_live_file_far_behind_deleted_ones_makes_all_folders_above_it_folders() {
    let server = Server::start(&[]).await;
    let mut maker = Maker::new(id(), 1);
    let mut names: Vec<_> = (0..3_000).map(|n| format!("a/{}/{n:04}", n % 7)).collect();
    names.push("a/6/z/z/z".to_owned());
    let object = maker.chunk(names.iter().map(|name| (name.as_bytes(), 1)));
    let mut gone = versions(&object, "a");
    assert!(gone.pop().is_some(), "the last one stays");
    let tombstone = maker.tombstone(&gone);
    let store = filled(&server, &[object, tombstone]).await;
    let folder = |text: &str| ListEntry::Folder(path(text));
    for (dir, wanted) in [("", "a"), ("a", "a/6"), ("a/6", "a/6/z"), ("a/6/z", "a/6/z/z")] {
        let dir = DirPath::new(dir.as_bytes()).unwrap();
        let listed = store.list(id(), &query(dir, false)).await.unwrap();
        assert_eq!(listed, [folder(wanted)]);
    }
    let asked = ["a", "a/0", "a/6", "a/6/z", "a/6/z/z", "a/6/z/z/z"].map(path);
    let found = store.lookup(id(), &asked).await.unwrap();
    let [a, Found::Missing, b, c, d, Found::File(_)] = &found[..] else { panic!("{found:?}") };
    assert!([a, b, c, d].into_iter().all(|found| *found == Found::Folder), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn very_deep_paths_are_found_from_their_first_folder_to_their_last() {
    let server = Server::start(&[]).await;
    let names: Vec<_> = (0..10).map(|n| format!("{n}{}/f", "/x".repeat(2_000))).collect();
    let files = names.iter().map(|name| (name.as_bytes(), 1));
    let object = Maker::new(id(), 1).chunk(files);
    let store = filled(&server, slice::from_ref(&object)).await;
    let all_are_found = async || {
        for name in &names {
            let folders = name.match_indices('/').map(|(end, _)| path(&name[..end]));
            let paths: Vec<FilePath> = folders.chain([path(name)]).collect();
            let found = store.lookup(id(), &paths).await.unwrap();
            let (file, folders) = found.split_last().unwrap();
            assert!(matches!(file, Found::File(_)), "{file:?}");
            assert_eq!(folders.len(), 2_001);
            assert!(folders.iter().all(|found| *found == Found::Folder));
        }
    };
    all_are_found().await;
    // As it would be, had its maker died between two pieces.
    let keys = store.shared.keys_of(id()).await.unwrap().unwrap();
    let todo = Ask::to(&keys.todo(), "HSET").arg(object.header().id().as_bytes());
    let mut asks = vec![todo.arg("x 1")];
    for name in names.iter().skip(3) {
        for end in [1, 1_001, 4_001] {
            asks.push(Ask::to(&keys.rows(0, &name.as_bytes()[..end]), "UNLINK"));
        }
    }
    store.shared.router.ask(asks).await.unwrap();
    all_are_found().await;
    let listed = store.list(id(), &query(DirPath::ROOT, false)).await.unwrap();
    let wanted = (0..10).map(|n| ListEntry::Folder(path(n.to_string())));
    assert_eq!(listed, wanted.collect::<Vec<_>>());
    let dir = DirPath::new(names[7].as_bytes()[..3_991].to_vec()).unwrap();
    let listed = store.list(id(), &query(dir, true)).await.unwrap();
    assert!(matches!(&listed[..], [ListEntry::File(file, _)] if *file == path(&names[7])));
}
