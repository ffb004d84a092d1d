//! What calls ask of Redis however many folders there are, and however many files are deleted.

use dl_format::{DirPath, EntryVersion, FilePath};

use super::{as_left_by_a_dead_maker, check, filled, id, is_large, open, path};
use crate::conformance::history::{Maker, versions};
use crate::redis::live::TURNS;
use crate::redis::testing::Server;
use crate::{Found, ListEntry, ListQuery, MetaStore};

fn root() -> ListQuery {
    ListQuery::of(DirPath::ROOT, false, 10_000)
}

/// How often Redis has read from its connections: once or a few times for what is asked together.
async fn reads(server: &Server) -> u64 {
    server.number("stats", "total_reads_processed:").await
}

#[tokio::test(flavor = "multi_thread")]
async fn after_deletes_folders_of_a_listing_are_checked_together() {
    let server = Server::start(&[]).await;
    let mut maker = Maker::new(id(), 1);
    let object = maker.files((0..3_000).map(|n| format!("{:03}/{n}", n % 1_000)));
    let entries = object.header().entries().zip(versions(&object));
    let gone: Vec<EntryVersion> = entries
        .filter(|(entry, _)| entry.path.as_bytes().starts_with(b"00"))
        .map(|(_, version)| version)
        .collect();
    let tombstone = maker.tombstone(&gone);
    let store = filled(&server.url(), [&object, &tombstone]).await;
    let wanted: Vec<_> = (10..1_000).map(|n| ListEntry::Folder(path(format!("{n:03}")))).collect();
    // At last while others search: nobody waits for them.
    for (turns, most) in [(0, 200), (TURNS, 400)] {
        let turns = u32::try_from(turns).unwrap();
        let _turns = store.shared.searches.try_acquire_many(turns).unwrap();
        let before = reads(&server).await;
        assert_eq!(store.list(id(), &root()).await.unwrap(), wanted);
        let asked = reads(&server).await - before;
        assert!(asked < most, "{asked} reads for {} folders", wanted.len());
    }
}

/// Of many folders, and of one with hashed buckets.
#[tokio::test(flavor = "multi_thread")]
async fn a_tree_in_which_all_is_deleted_costs_few_rounds() {
    for folders in [100, 1] {
        let server = Server::start(&[]).await;
        let mut maker = Maker::new(id(), 1);
        let names: Vec<_> = (0..20_000).map(|n| format!("dead/{}/{n:05}", n % folders)).collect();
        let mut objects: Vec<_> = names.chunks(4_000).map(|names| maker.files(names)).collect();
        let gone: Vec<_> = objects.iter().flat_map(versions).collect();
        objects.extend([maker.tombstone(&gone), maker.files(["kept"])]);
        let store = filled(&server.url(), &objects).await;
        assert_eq!(is_large(&store).await, folders == 1);
        let before = reads(&server).await;
        let listed = store.list(id(), &root()).await.unwrap();
        let found = store.lookup(id(), &[path("dead"), path("dead/0")]).await.unwrap();
        let asked = reads(&server).await - before;
        assert!(matches!(&listed[..], [ListEntry::File(kept, _)] if *kept == path("kept")));
        assert_eq!(found, [Found::Missing, Found::Missing]);
        assert!(asked < 400, "{asked} reads for {} deleted files", names.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_file_behind_deleted_ones_keeps_its_folders() {
    let server = Server::start(&[]).await;
    let mut maker = Maker::new(id(), 1);
    let names = (0..3_000).map(|n| format!("a/{}/{n:04}", n % 7));
    let object = maker.files(names.chain(["a/6/z/z/z".to_owned()]));
    let mut gone = versions(&object);
    assert!(gone.pop().is_some(), "the last one stays");
    let tombstone = maker.tombstone(&gone);
    let store = filled(&server.url(), [&object, &tombstone]).await;
    check(&store, [&object, &tombstone]).await;
}

/// Also where their maker died between two pieces.
#[tokio::test(flavor = "multi_thread")]
async fn very_deep_paths_are_found_at_every_level() {
    let server = Server::start(&[]).await;
    let names: Vec<_> = (0..10).map(|n| format!("{n}{}/f", "/x".repeat(2_000))).collect();
    let object = Maker::new(id(), 1).files(&names);
    let store = filled(&server.url(), [&object]).await;
    for is_left in [false, true] {
        if is_left {
            let ends = [1, 1_001, 4_001];
            let lost = names[3..].iter().flat_map(|name| ends.map(|end| &name.as_bytes()[..end]));
            as_left_by_a_dead_maker(&store, &object, 1, &lost.collect::<Vec<_>>()).await;
        }
        for name in &names {
            let folders = name.match_indices('/').map(|(end, _)| path(&name[..end]));
            let paths: Vec<FilePath> = folders.chain([path(name)]).collect();
            let found = store.lookup(id(), &paths).await.unwrap();
            let (file, folders) = found.split_last().unwrap();
            assert!(matches!(file, Found::File(_)), "{file:?}");
            assert_eq!(folders, vec![Found::Folder; 2_001]);
        }
    }
    let listed = open(&server.url()).await.list(id(), &root()).await.unwrap();
    let wanted = (0..10).map(|n| ListEntry::Folder(path(n.to_string())));
    assert_eq!(listed, wanted.collect::<Vec<_>>());
    let dir = DirPath::new(names[7].as_bytes()[..3_991].to_vec()).unwrap();
    let listed = store.list(id(), &ListQuery::of(dir, true, 10_000)).await.unwrap();
    assert!(matches!(&listed[..], [ListEntry::File(file, _)] if *file == path(&names[7])));
}
