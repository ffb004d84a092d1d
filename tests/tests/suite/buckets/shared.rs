//! A directory as the chunk store of two processes.
//!
//! Must hold: if both processes create an object, exactly one succeeds. No object is seen in part.
//! A deleted object is missing for both processes, even with an open file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_store::{ByteRange, Key, Kind, Prefix, Store, StoreExt};
use dl_tests::program::Process;
use dl_tests::soon;

const OBJECTS: usize = 150;
const LENGTH: usize = 20_000;
const NAME: &str = "buckets::shared::two_processes_share_a_directory";
const SECOND: &str = "DIESEL_TEST_SHARED_DIRECTORY";

fn contested(number: usize) -> Result<Key> {
    Ok(Key::new(format!("both/{}/{number}", number % 5))?)
}

/// Creates objects in competition with the other process, and reads and lists them; returns the
/// successful creates.
async fn contend(store: &dyn Store, process: u8) -> Result<BTreeSet<usize>> {
    let mut won = BTreeSet::new();
    for number in 0..OBJECTS {
        match store.create(&contested(number)?, vec![process; LENGTH].into()).await {
            Ok(()) => {
                won.insert(number);
            }
            Err(error) => ensure!(error.kind == Kind::Exists, "{error:?}"),
        }
        let own = Key::new(format!("own/{process}/{number}"))?;
        store.create(&own, vec![process; 10].into()).await?;
        if number % 2 == 0 {
            store.delete(&own).await?;
        }
        let read = store.read_all(&contested(number)?).await?;
        let maker = read.first().copied().unwrap_or_default();
        ensure!(read.len() == LENGTH && read.iter().all(|byte| *byte == maker), "{number}");
        if number % 10 == 0 {
            for object in store.list_sorted(&Prefix::ROOT).await? {
                ensure!([10, LENGTH as u64].contains(&object.size), "{object:?}");
            }
        }
    }
    Ok(won)
}

/// The second process: competes, reports its successful creates, and deletes half of the shared
/// objects.
async fn second(folder: &Path) -> Result<()> {
    let store = open(folder).await?;
    let won = contend(&*store, 2).await?;
    soon("the first process is done", || Ok(folder.join("first").exists()))?;
    for number in (0..OBJECTS).step_by(2) {
        store.delete(&contested(number)?).await?;
    }
    let won: Vec<String> = won.iter().map(ToString::to_string).collect();
    std::fs::write(folder.join("won"), won.join(" "))?;
    Ok(())
}

async fn open(folder: &Path) -> Result<std::sync::Arc<dyn Store>> {
    let store = folder.join("store");
    Ok(dl_store::open(store.to_str().context("a temporary folder has a name")?).await?)
}

#[tokio::test]
async fn two_processes_share_a_directory() -> Result<()> {
    if let Some(folder) = std::env::var_os(SECOND) {
        return second(&PathBuf::from(folder)).await;
    }
    let folder = tempfile::tempdir()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", NAME]).env(SECOND, folder.path());
    let mut process = Process::start(&mut command)?;
    let store = open(folder.path()).await?;
    let mut won = contend(&*store, 1).await?;
    std::fs::write(folder.path().join("first"), "done")?;
    ensure!(process.wait(Duration::from_secs(60))? == 0, "the second process failed");
    let others = std::fs::read_to_string(folder.path().join("won"))?;
    for number in others.split_whitespace() {
        ensure!(won.insert(number.parse()?), "both processes created {number}");
    }
    ensure!(won.len() == OBJECTS, "{} of {OBJECTS} objects were created", won.len());
    for number in 0..OBJECTS {
        let read = store.read_one(&contested(number)?, ByteRange::WHOLE).await;
        let is_missing = matches!(&read, Err(error) if error.kind == Kind::Missing);
        ensure!(is_missing == (number % 2 == 0), "{number}: {read:?}");
    }
    ensure!(store.list_sorted(&Prefix::ROOT).await?.len() == OBJECTS / 2 * 3);
    Ok(())
}
