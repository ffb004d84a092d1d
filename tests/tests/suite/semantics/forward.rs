//! The roll-forward after an unclean stop, when the chunk store fails in the middle of it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dl_format::{ChunkIdMaker, DatasetId};
use dl_meta::{Embedded, EmbeddedOptions, Kind, Memory, MetaStore, Stop};
use dl_runtime::SeededRandom;
use dl_runtime::fault::{CutPoint, Fault, Faults};
use dl_server::prepare;
use dl_store::{FaultStore, Store};
use dl_tests::cluster::{Running, clock, parts};
use dl_tests::wire::{Wire, chunk};
use tonic::{Code, Status};

use super::{id, serve_with};

/// How a start went whose nth read of the chunk store was refused.
#[derive(Debug, PartialEq, Eq)]
enum Start {
    /// It failed: what it read says whose metadata this is.
    Refused,
    /// It served so many datasets.
    Serves(usize),
    /// There are fewer reads.
    Beyond,
}

/// Keeps S-14 and S-01.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_cannot_be_read_costs_its_dataset_and_not_the_start() -> Result<()> {
    let (mut lacking, mut refused) = (0, 0);
    for read in 0..100 {
        match start(read).await.with_context(|| format!("read {read}"))? {
            Start::Refused => refused += 1,
            Start::Serves(2) => {}
            Start::Serves(count) => {
                ensure!(count == 1, "read {read} cost more than its dataset");
                lacking += 1;
            }
            Start::Beyond => {
                // The name and the chunk of each dataset; the identity, at the start and at the end.
                ensure!(lacking >= 4, "only {lacking} objects were ever read");
                ensure!(refused == 2, "{refused} reads end the start");
                return Ok(());
            }
        }
    }
    anyhow::bail!("it reads for ever")
}

async fn start(read: usize) -> Result<Start> {
    let folder = tempfile::tempdir()?;
    let faults = Faults::new(Arc::new(SeededRandom::new(0)));
    let memory = dl_store::open("memory:").await?;
    let store = FaultStore::new(memory, clock(), faults.clone(), CutPoint::new());
    let store: Arc<dyn Store> = Arc::new(store);
    let names = ["one", "two"];
    {
        let (meta, _) = open(folder.path()).await?;
        let (_server, client) = serve_with(&store, meta).await?;
        for name in names {
            client.create(name).await?;
        }
    }
    let mut datasets = Vec::new();
    {
        // Committed, and as good as lost from the end of the logs of the first metadata.
        let (_server, client) = serve_with(&store, Arc::new(Memory::new())).await?;
        client.recover().await?;
        let mut ids = ChunkIdMaker::new([9; 9]);
        for name in names {
            let dataset = client.dataset(name).await?.context("it was created")?;
            let object = chunk(id(&mut ids, 0), dataset, [(&b"path"[..], name.as_bytes())])?;
            client.put(dataset, &object).await?;
            datasets.push(dataset);
        }
    }
    let (meta, stop) = open(folder.path()).await?;
    ensure!(stop == Stop::Unclean, "{stop:?}");
    let parts = parts(Arc::clone(&store), meta);
    let refusal = Some(Fault::Before(dl_store::Kind::Denied));
    faults.script("read", std::iter::repeat_n(None, read).chain([refusal]));
    let started = prepare(&parts, stop).await;
    // Drops what the start did not use.
    let is_beyond = (0..=read).any(|_| faults.next("read").is_some());
    if let Err(error) = started {
        let text = format!("{:#}", anyhow::Error::from(error));
        ensure!(text.contains("object identity"), "{text}");
        ensure!(text.contains("make that object readable, then start again"), "{text}");
        return Ok(Start::Refused);
    }
    let server = Running::start(parts).await?;
    let client = Wire::connect(server.address()).await?;
    let served = check(&client, &datasets, names).await?;
    client.recover().await?;
    ensure!(check(&client, &datasets, names).await? == 2, "recover does not bring it back");
    Ok(if is_beyond { Start::Beyond } else { Start::Serves(served) })
}

/// How many datasets are served, each whole; the others are refused.
async fn check(client: &Wire, datasets: &[DatasetId], names: [&str; 2]) -> Result<usize> {
    let mut served = 0;
    for (dataset, name) in datasets.iter().zip(names) {
        let answer = match client.dataset(name).await {
            Ok(found) => {
                ensure!(found == Some(*dataset), "{name} is {found:?}");
                client.files(*dataset).await
            }
            Err(refused) => Err(refused.into()),
        };
        match answer {
            Ok(files) => {
                ensure!(files.len() == 1, "{name} is taken for whole");
                served += 1;
            }
            Err(error) => {
                let refused: Status = error.downcast()?;
                ensure!(refused.code() == Code::FailedPrecondition, "{refused}");
                ensure!(refused.message().contains("dlcmd recover"), "{refused}");
            }
        }
    }
    Ok(served)
}

/// Opens metadata, once the server before has let go of it.
async fn open(folder: &Path) -> Result<(Arc<dyn MetaStore>, Stop)> {
    loop {
        match Embedded::open(folder, EmbeddedOptions::default(), clock()).await {
            Ok((meta, stop)) => return Ok((Arc::new(meta), stop)),
            Err(error) if error.kind == Kind::InUse => {
                clock().sleep(Duration::from_millis(1)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}
