//! Snapshots from the log of a dataset to its readers: build, storage, transfer and answers.
//!
//! Must hold: a snapshot is a single cut of the log and never changes.

mod asked;
mod cli;
mod fetched;
mod killed;
mod long;
mod report;
mod stored;

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use dl_format::snapshot::Manifest;
use dl_format::{SnapshotObject, parse_snapshot_key, snapshots_prefix};
use dl_meta::{Memory, Stop};
use dl_server::{ServerContext, prepare};
use dl_store::{Prefix, Store, StoreExt};
use dl_tests::cluster::{Cluster, context};
use dl_tests::program::{Ended, Server, run};
use libdiesel::admin::{PurgeProgress, PurgeRequest, RecoverRequest};
use libdiesel::{Attributes, ChunkShape, Client, Dataset, DatasetName, FilePath, SnapshotCache};

/// Servers in this process, and a dataset `ds` of small chunks.
struct Scene {
    cluster: Cluster,
    store: Arc<dyn Store>,
    client: Client,
    dataset: Dataset,
    folder: tempfile::TempDir,
}

impl Scene {
    /// A server over stores in memory.
    fn new() -> Result<Self> {
        let store = dl_store::memory();
        Self::over(1, &store, context(Arc::clone(&store), Arc::new(Memory::new())))
    }

    /// Servers with these parts over `store`.
    fn over(count: usize, store: &Arc<dyn Store>, context: ServerContext) -> Result<Self> {
        let (mut cluster, store) = (Cluster::new()?, Arc::clone(store));
        cluster.run(prepare(&context, Stop::Fresh))?;
        cluster.start(&context, count)?;
        let client = cluster.client()?;
        let dataset = client.create_dataset(&name()?, ChunkShape::new(1 << 20, 64)?)?;
        Ok(Self { cluster, store, client, dataset, folder: tempfile::tempdir()? })
    }

    /// The cache in the folder `name`.
    fn cache(&self, name: &str) -> SnapshotCache {
        SnapshotCache::new(self.folder.path().join(name), 1 << 30)
    }

    /// The current dataset with a snapshot.
    fn reader(&self, cache: &str) -> Result<Dataset> {
        Ok(self.client.dataset(&name()?)?.with_snapshot(&self.cache(cache))?)
    }

    /// The bytes of the newest snapshot.
    fn saved(&self, file: &str) -> Result<Vec<u8>> {
        let file = self.folder.path().join(file);
        self.client.dataset(&name()?)?.save_meta(&file)?;
        Ok(std::fs::read(file)?)
    }

    /// The stored objects of snapshots.
    fn stored(&self) -> Result<Vec<(dl_store::Key, SnapshotObject)>> {
        let below = Prefix::new(snapshots_prefix(self.dataset.info().id))?;
        let objects = self.cluster.run(self.store.list_sorted(&below))?;
        let parsed = objects.into_iter().filter_map(|object| {
            let (_, _, what) = parse_snapshot_key(object.key.as_str())?;
            Some((object.key, what))
        });
        Ok(parsed.collect())
    }

    fn manifests(&self) -> Result<Vec<Manifest>> {
        let mut manifests = Vec::new();
        for (key, what) in self.stored()? {
            if what == SnapshotObject::Manifest {
                let bytes = self.cluster.run(self.store.read_all(&key))?;
                manifests.push(Manifest::decode(&bytes)?);
            }
        }
        Ok(manifests)
    }

    /// Removes the stored objects of snapshots.
    fn forget(&self) -> Result<()> {
        for (key, _) in self.stored()? {
            self.cluster.run(self.store.delete(&key))?;
        }
        Ok(())
    }

    /// Replaces the server by a server whose metadata are recovered from the chunks.
    fn rebuild_metadata(&mut self) -> Result<()> {
        self.cluster.kill();
        let context = context(Arc::clone(&self.store), Arc::new(Memory::new()));
        self.cluster.run(prepare(&context, Stop::Fresh))?;
        self.cluster.start(&context, 1)?;
        self.client = self.cluster.client()?;
        self.client.recover(RecoverRequest { dataset: None, since: None }, &mut |_| ())?;
        Ok(())
    }

    fn purge(&self, grace: Duration) -> Result<Vec<PurgeProgress>> {
        let dataset = Some(name()?);
        let request = PurgeRequest { dataset, grace, dry_run: false, force: false };
        Ok(self.client.purge(request, &mut |_| ())?)
    }
}

/// A server process, and a working folder for dlcmd.
struct Workplace {
    server: Server,
    folder: tempfile::TempDir,
}

impl Workplace {
    fn start() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        Ok(Self { server: Server::start(&folder.path().join("data"))?, folder })
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn command(&self, mut command: Command, words: &[&str]) -> Result<Ended> {
        let cache = self.path().join("cache");
        run(command.current_dir(self.path()).env("XDG_CACHE_HOME", cache).args(words))
    }

    fn dl(&self, words: &[&str]) -> Result<Ended> {
        self.command(self.server.dlcmd()?, words)
    }
}

fn name() -> Result<DatasetName> {
    Ok(DatasetName::new("ds")?)
}

fn path(text: &str) -> Result<FilePath> {
    Ok(FilePath::new(text.as_bytes().to_vec())?)
}

fn put(dataset: &Dataset, files: &[(&str, &[u8])]) -> Result<()> {
    for (file, data) in files {
        dataset.put(&path(file)?, Attributes { mode: 0o644, mtime: 7 }, data)?;
    }
    let _ = dataset.flush()?.check()?;
    Ok(())
}

fn listed(dataset: &Dataset) -> Result<Vec<String>> {
    let entries = dataset.list(&libdiesel::DirPath::ROOT, true, true)?;
    entries
        .map(|entry| match entry? {
            libdiesel::ListEntry::File(path, _) => Ok(path.to_string()),
            libdiesel::ListEntry::Folder(path) => anyhow::bail!("{path} is a folder"),
        })
        .collect()
}

/// The results of `work` in `count` threads, each with its number.
fn at_once<T: Send>(count: usize, work: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count).map(|number| scope.spawn(move || work(number))).collect();
        let ended = threads.into_iter().map(|thread| thread.join());
        ended.map(|ended| ended.map_err(|_| anyhow::anyhow!("a thread panicked"))?).collect()
    })
}

fn files_in(folder: &Path, ending: &str) -> Result<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir(folder)? {
        count += usize::from(entry?.path().extension().is_some_and(|found| found == ending));
    }
    Ok(count)
}
