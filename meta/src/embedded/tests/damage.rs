//! Damaged pages, at any place of the file: an error that says so, never the end of the process.

use std::path::Path;

use dl_format::{DirPath, FileRecord};
use dl_runtime::{Random, SeededRandom};

use super::super::tables::{Tables, encode_file};
use super::*;

const SIZE: usize = 4_096;

/// A closed file with some objects in it; gives its bytes.
async fn written(dir: &Path) -> Vec<u8> {
    let (store, _) = open(dir).await.unwrap();
    store.bind(StoreId::from_bytes([5; 16])).await.unwrap();
    store.put_dataset(&record()).await.unwrap();
    for object in Maker::new(DATASET, 1).history(60) {
        store.append(&object).await.unwrap();
    }
    store.close().await.unwrap();
    std::fs::read(dir.join("meta.redb")).unwrap()
}

async fn open(dir: &Path) -> Result<(Embedded, Stop), Error> {
    Embedded::open(dir, EmbeddedOptions::default(), clock()).await
}

/// Asks and changes all there is; each may fail, and that is all that may happen.
async fn use_all_of(store: &Embedded) -> Vec<Error> {
    let mut errors = Vec::new();
    errors.extend(store.dataset(DATASET).await.err());
    errors.extend(store.objects(DATASET, None, 1_000).await.err());
    let paths = [FilePath::new("a").unwrap(), FilePath::new("d0/f1").unwrap()];
    errors.extend(store.lookup(DATASET, &paths).await.err());
    let all = ListQuery::of(DirPath::ROOT, true, 10_000);
    errors.extend(store.list(DATASET, &all).await.err());
    let late = Maker::new(DATASET, 7).files(["late"]);
    errors.extend(store.append(&late).await.err());
    errors.extend(store.put_dataset(&record()).await.err());
    errors
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_page_is_damaged_every_question_is_answered() {
    let parent = tempfile::tempdir().unwrap();
    let whole = written(&parent.path().join("whole")).await;
    let used = whole.chunks(SIZE).enumerate().filter(|(_, page)| page.iter().any(|byte| *byte > 0));
    let used: Vec<_> = used.map(|(page, _)| page).collect();
    assert!(used.len() > 8, "{used:?}");
    let random = SeededRandom::new(3);
    let mut refused = 0;
    for page in used {
        let dir = parent.path().join(page.to_string());
        std::fs::create_dir_all(&dir).unwrap();
        let mut damaged = whole.clone();
        random.fill(&mut damaged[page * SIZE..(page + 1) * SIZE]);
        std::fs::write(dir.join("meta.redb"), damaged).unwrap();
        match open(&dir).await {
            Ok((store, _)) => {
                let errors = use_all_of(&store).await;
                refused += usize::from(errors.iter().any(|error| error.kind == Kind::Corrupt));
                // It may find the damage only now.
                let _ = store.close().await;
            }
            Err(error) => {
                assert_ne!(error.kind, Kind::InUse, "page {page}: {error:?}");
                refused += usize::from(error.kind == Kind::Corrupt);
            }
        }
    }
    assert!(refused > 1, "no damage was met");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_over_a_page_is_answered_and_the_store_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path()).await.unwrap();
    store.put_dataset(&record()).await.unwrap();
    let object = Maker::new(DATASET, 4).files(["x"]);
    store.append(&object).await.unwrap();
    let panicked = store.read("read", DATASET, |_| -> Result<(), _> { unreachable!("a page") });
    let error = panicked.await.unwrap_err();
    assert_eq!(error.kind, Kind::Corrupt);
    let why = std::error::Error::source(&error).unwrap().to_string();
    assert!(why.contains("damaged") && why.contains("a page"), "{why}");
    // Opened again, with all that was appended.
    recovers(&store).await;
    assert_eq!(store.append(&object).await.unwrap(), Appended::Known);
    store.close().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_append_again_restores_lost_and_damaged_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (store, _) = open(dir.path()).await.unwrap();
    store.put_dataset(&record()).await.unwrap();
    let mut maker = Maker::new(DATASET, 4);
    let objects =
        [maker.chunk([(&b"gone"[..], 1), (b"kept", 2)]), maker.chunk([(&b"wrong"[..], 3)])];
    for object in &objects {
        store.append(object).await.unwrap();
    }
    let paths = ["gone", "wrong"].map(|path| FilePath::new(path).unwrap());
    let found = store.lookup(DATASET, &paths).await.unwrap();
    store.close().await.unwrap();

    let database = redb::Database::open(dir.path().join("meta.redb")).unwrap();
    let transaction = database.begin_write().unwrap();
    let tables = Tables::of(DATASET);
    let mut rows = transaction.open_table(tables.paths()).unwrap();
    rows.remove(&b"gone"[..]).unwrap();
    let Found::File(right) = found[1] else { panic!("it is a file") };
    let mut value = Vec::new();
    encode_file(&FileRecord { length: right.length + 1, ..right }, &mut value).unwrap();
    rows.insert(&b"wrong"[..], value.as_slice()).unwrap();
    drop(rows);
    transaction.commit().unwrap();
    drop(database);

    let (store, _) = open(dir.path()).await.unwrap();
    assert_ne!(store.lookup(DATASET, &paths).await.unwrap(), found);
    for object in &objects {
        assert_eq!(store.append(object).await.unwrap(), Appended::Known);
    }
    Model::of(&objects).check(&store, DATASET, 5).await;
    store.close().await.unwrap();
}
