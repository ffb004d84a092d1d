//! The roll-forward after an unclean stop, with a failing read of the chunk store.

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
use dl_tests::cluster::{Running, clock, context};
use dl_tests::wire::{Wire, chunk};
use tonic::{Code, Status};

use super::{id, serve_with};

/// The result of a start whose nth read of the chunk store fails.
#[derive(Debug, PartialEq, Eq)]
enum Start {
    /// The start failed: the identity of the store was unreadable.
    Refused,
    /// The start succeeded and serves this count of datasets.
    Serves(usize),
    /// The start makes fewer reads.
    Beyond,
}

/// Keeps S-14 and S-01.
#[tokio::test(flavor = "multi_thread")]
async fn an_unreadable_object_costs_its_dataset_only() -> Result<()> {
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
                // The name and the chunk of each dataset. The identity is read at the start and at
                // the end.
                ensure!(lacking >= 4, "only {lacking} reads cost a dataset");
                ensure!(refused == 2, "{refused} reads end the start");
                return Ok(());
            }
        }
    }
    anyhow::bail!("a start makes more than 100 reads")
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
        // Commits chunks with other metadata, as if the first metadata had lost the end of their
        // logs.
        let (_server, client) = serve_with(&store, Arc::new(Memory::new())).await?;
        client.recover().await?;
        let mut ids = ChunkIdMaker::new([9; 9]);
        for name in names {
            let dataset = client.dataset(name).await?.context("the dataset exists")?;
            let object = chunk(id(&mut ids, 0), dataset, [(&b"path"[..], name.as_bytes())])?;
            client.put(dataset, &object).await?;
            datasets.push(dataset);
        }
    }
    let (meta, stop) = open(folder.path()).await?;
    ensure!(stop == Stop::Unclean, "{stop:?}");
    let context = context(Arc::clone(&store), meta);
    let refusal = Some(Fault::Before(Kind::Denied));
    faults.script("read", std::iter::repeat_n(None, read).chain([refusal]));
    let started = prepare(&context, stop).await;
    // Removes unused faults from the script.
    let is_beyond = (0..=read).any(|_| faults.next("read").is_some());
    if let Err(error) = started {
        let text = format!("{:#}", anyhow::Error::from(error));
        ensure!(text.contains("object identity"), "{text}");
        ensure!(text.contains("make that object readable, then start again"), "{text}");
        return Ok(Start::Refused);
    }
    let server = Running::start(context).await?;
    let client = Wire::connect(server.address()).await?;
    let served = check(&client, &datasets, names).await?;
    client.recover().await?;
    ensure!(check(&client, &datasets, names).await? == 2, "recover does not restore both datasets");
    Ok(if is_beyond { Start::Beyond } else { Start::Serves(served) })
}

/// The count of served datasets, each complete; all other datasets must be refused.
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

/// Opens the metadata after the previous server has closed them.
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
