//! Disks that survive a server's crash, and checks of their state.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_meta::{self as meta, EmbeddedOptions, FaultMeta, Memory, MetaStore, Stop, VolatileFile};
use dl_runtime::SeededRandom;
use dl_runtime::fault::{CutPoint, Faults};
use dl_server::prepare;
use dl_store::{self as store, FaultStore, VolatileDisk};
use dl_tests::cluster::{Running, clock, context};
use dl_tests::dice::Dice;
use dl_tests::wire::{Files, Wire};

use super::history::{History, Journal, Step};

/// The place of the metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Metadata {
    /// A separate store that survives the server.
    Survives,
    /// The server's disk: a power cut loses unsynced writes.
    OnDisk,
}

/// The surviving disks and clients.
#[derive(Debug)]
pub(super) struct World {
    pub(super) cut: CutPoint,
    pub(super) store_faults: Faults<store::Kind>,
    pub(super) meta_faults: Faults<meta::Kind>,
    /// Whether clients repeat a request after an error.
    pub(super) asks_again: bool,
    disk: VolatileDisk,
    metadata: Metadata,
    memory: Arc<Memory>,
    file: VolatileFile,
}

/// A running server, its client and its metadata.
struct Life {
    server: Running,
    client: Wire,
    meta: Arc<dyn MetaStore>,
}

impl World {
    pub(super) fn new(metadata: Metadata) -> Self {
        let (cut, random) = (CutPoint::new(), Arc::new(SeededRandom::new(0)));
        Self {
            store_faults: Faults::new(Arc::<SeededRandom>::clone(&random)),
            meta_faults: Faults::new(random),
            asks_again: false,
            disk: VolatileDisk::new(cut.clone()),
            metadata,
            memory: Arc::new(Memory::new()),
            file: VolatileFile::new(cut.clone()),
            cut,
        }
    }

    /// Starts a server as a new process does.
    async fn start(&self) -> Result<Life> {
        self.wait_until_dead().await;
        // For embedded metadata, writes of the disk are cut points.
        let (meta, stop, cut): (Arc<dyn MetaStore>, Stop, CutPoint) = match self.metadata {
            Metadata::Survives => {
                (Arc::<Memory>::clone(&self.memory), Stop::Clean, self.cut.clone())
            }
            Metadata::OnDisk => {
                // Batches become durable at different times, so that a cut loses whole batches.
                let options = EmbeddedOptions {
                    sync_interval: Duration::from_millis(3),
                    cache_bytes: 1 << 20,
                    ..EmbeddedOptions::default()
                };
                let (meta, stop) = self.file.open(options, clock()).await?;
                (Arc::new(meta), stop, CutPoint::new())
            }
        };
        let meta = FaultMeta::new(meta, clock(), self.meta_faults.clone(), cut);
        let meta: Arc<dyn MetaStore> = Arc::new(meta);
        let store = self.disk.open()?;
        let store = FaultStore::new(store, clock(), self.store_faults.clone(), CutPoint::new());
        let context = context(Arc::new(store), Arc::clone(&meta));
        prepare(&context, stop).await?;
        let server = Running::start(context).await?;
        let client = Wire::connect(server.address()).await?;
        Ok(Life { server, client, meta })
    }

    /// Stops a server in order.
    async fn stop(&self, life: Life) -> Result<()> {
        let Life { server, client, meta } = life;
        drop(client);
        server.stop().await?;
        meta.close().await?;
        drop(meta);
        self.wait_until_dead().await;
        Ok(())
    }

    /// Waits until the previous server has closed the file.
    async fn wait_until_dead(&self) {
        while self.file.is_open() {
            clock().sleep(Duration::from_millis(1)).await;
        }
    }

    /// Runs the history from the journal's state to its end or to the cut.
    pub(super) async fn live(&mut self, history: &History, journal: &mut Journal) -> Result<()> {
        let mut life = self.start().await?;
        while let Some(step) = journal.step(history) {
            match step {
                Step::Restart => {
                    self.stop(life).await?;
                    journal.done();
                    life = self.start().await?;
                }
                Step::LoseMetadata => {
                    self.stop(life).await?;
                    self.memory = Arc::new(Memory::new());
                    self.file = VolatileFile::new(self.cut.clone());
                    journal.done();
                    life = self.start().await?;
                }
                step => {
                    let answer = journal.send(&life.client, step).await;
                    if answer.is_err() && self.asks_again {
                        compare(&life.client, journal).await.context("before the retry")?;
                        journal.send(&life.client, step).await?;
                    } else {
                        answer?;
                    }
                }
            }
        }
        self.stop(life).await
    }

    /// Cuts the power.
    pub(super) async fn lose_power(&self, dice: &Dice) {
        self.wait_until_dead().await;
        self.disk.lose_power(|| dice.once_in(2));
        self.file.lose_power(dice.random());
        self.cut.disarm();
    }

    /// Starts a server on the remaining state, and compares.
    pub(super) async fn check(&self, journal: &Journal) -> Result<()> {
        let life = self.start().await?;
        compare(&life.client, journal).await?;
        self.stop(life).await
    }

    /// Removes all metadata: the server must refuse until recovered, then agree.
    pub(super) async fn check_without_metadata(&self, journal: &Journal) -> Result<()> {
        let context = context(self.disk.open()?, Arc::new(Memory::new()));
        let (_server, client) = Running::fresh(context).await?;
        for name in journal.acknowledged_names() {
            let refused = client.dataset(name).await.err();
            let refused = refused.with_context(|| format!("{name} is taken for gone or empty"))?;
            ensure!(refused.code() == tonic::Code::FailedPrecondition, "{refused}");
            ensure!(refused.message().contains("recover"), "{refused}");
        }
        let recovered = client.recover().await?;
        ensure!(recovered.iter().all(|one| one.problems.is_empty()), "{recovered:?}");
        compare(&client, journal).await
    }

    /// Repeats every acknowledged request.
    pub(super) async fn retry_all(&self, journal: &Journal) -> Result<()> {
        let life = self.start().await?;
        journal.send_all_again(&life.client).await?;
        self.stop(life).await
    }
}

async fn compare(server: &Wire, journal: &Journal) -> Result<()> {
    let history = History::new();
    let mut found = BTreeMap::<&'static str, Files>::new();
    let mut refused = Vec::new();
    for name in ["a", "b"] {
        match files_of(server, name).await? {
            Ok(files) => found.extend(files.map(|files| (name, files))),
            Err(status) if status.code() == tonic::Code::FailedPrecondition => {
                ensure!(
                    journal.is_recovering(&history) || journal.half_created() == Some(name),
                    "{name}: {status}"
                );
                refused.push(name);
            }
            Err(status) => return Err(status.into()),
        }
    }
    let allowed = journal.allowed(&history);
    let equal = |expected: &BTreeMap<&'static str, Files>| {
        let mut expected = expected.clone();
        expected.retain(|name, _| !refused.contains(name));
        expected == found
    };
    ensure!(
        allowed.iter().any(equal),
        "found {:?}, refused {refused:?}, allowed {:?}",
        brief(&found),
        allowed.iter().map(brief).collect::<Vec<_>>()
    );
    Ok(())
}

/// The files of a dataset, or the server's refusal.
async fn files_of(server: &Wire, name: &str) -> Result<Result<Option<Files>, tonic::Status>> {
    let id = match server.dataset(name).await {
        Ok(Some(id)) => id,
        Ok(None) => return Ok(Ok(None)),
        Err(status) => return Ok(Err(status)),
    };
    match server.files(id).await {
        Ok(files) => Ok(Ok(Some(files))),
        Err(error) => error.downcast().map(Err),
    }
}

/// Names and lengths of files.
fn brief(datasets: &BTreeMap<&'static str, Files>) -> String {
    let mut text = String::new();
    for (name, files) in datasets {
        for (path, data) in files {
            text.push_str(&format!(" {name}/{}:{}", String::from_utf8_lossy(path), data.len()));
        }
        text.push_str(&format!(" ({name})"));
    }
    text
}
