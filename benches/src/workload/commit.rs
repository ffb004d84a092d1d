//! Commits of packed chunks into a Redis Cluster of three primaries, through a server with chunks in memory,
//! and as metadata alone. The reference is SET of redis-benchmark on one Redis in pipelines of 64.

use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use dl_format::{
    Attributes, ChunkIdMaker, ChunkShape, ChunkWriter, Committed, DatasetId, FilePath, Header,
    Stamp, Verified,
};
use dl_meta::{DatasetRecord, DatasetState, MetaStore, Redis as Metadata, RedisOptions};
use dl_proto::pb;
use dl_proto::pb::diesel_client::DieselClient;
use dl_runtime::{Clock, OsRandom, Random, SystemClock};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

use crate::measure::{Bar, Bench, in_turns, time};
use crate::setup::{Redis, RedisCluster, Server, Settings, bytes, dlcmd, finish};

const LENGTH: usize = 4096;
const PER_FOLDER: u32 = 1_281;
const IN_FLIGHT: usize = 16;
/// Bytes of a chunk in one message.
const PIECE: usize = 128 << 10;

pub(super) fn run(settings: &Settings) -> Result<Vec<Bench>> {
    let (alone, cluster) = (Redis::start()?, RedisCluster::start(3)?);
    let data = settings.on_disk("commit");
    let server = Server::start_on(&data, &["--meta", &cluster.url(), "--store", "memory:"], &[])?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address))?;
    let client = DieselClient::new(runtime.block_on(endpoint.connect())?);
    let (url, clock) = (cluster.url(), Arc::new(SystemClock::new()));
    let open = Metadata::open(&url, RedisOptions::default(), clock);
    let metadata: Arc<dyn MetaStore> = Arc::new(runtime.block_on(open)?);
    let files = settings.scaled(100_000);
    let sets = settings.scaled(1_000_000).to_string();
    let names = [
        "files of chunks committed through one server, 3 primaries",
        "files of chunks appended to the metadata, 3 primaries",
        "redis-benchmark SET -P 64, one Redis",
    ];
    let [whole, rows, theirs] = in_turns(settings.runs(), names, |round| {
        let name = format!("round{round}");
        let dataset = runtime.block_on(create(client.clone(), &name))?;
        let chunks = packed(files, dataset)?;
        let ((), committing) =
            time(|| at_once(&runtime, &chunks, |mine| commit(client.clone(), dataset, mine)))?;
        let setting = alone.rate("SET", &["-P", "64", "-n", &sets, "-r", "1000000"])?;
        alone.execute(&["FLUSHALL"])?;
        let record = runtime.block_on(other(&*metadata, &name))?;
        let objects =
            packed(files, record.id)?.iter().map(header_of).collect::<Result<Vec<_>>>()?;
        let ((), appending) =
            time(|| at_once(&runtime, &objects, |mine| append(Arc::clone(&metadata), mine)))?;
        runtime.block_on(metadata.drop_dataset(&record.name, record.id))?;
        finish(dlcmd(&server)?.args(["delete-dataset", &format!("dl://{name}")]))?;
        Ok([f64::from(files) / committing, f64::from(files) / appending, setting])
    })?;
    let bench = |name: &str, ours, how| {
        let settings =
            format!("{files} files of 4 KiB in packed chunks of 4 MiB, {IN_FLIGHT} in flight{how}");
        Bench::new(name, settings, "files/s", [ours, theirs.clone()], Bar::AtLeastTimes(0.25))
    };
    let checked = ", the chunks checked and kept in memory by one server";
    Ok(vec![
        bench("redis-commit", whole, checked),
        bench("redis-commit, metadata alone", rows, ", from this process"),
    ])
}

/// Distributes `all` over tasks, and waits for the tasks.
fn at_once<T, Task>(runtime: &Runtime, all: &[T], task: impl Fn(Vec<T>) -> Task) -> Result<()>
where
    T: Clone,
    Task: Future<Output = Result<()>> + Send + 'static,
{
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for first in 0..IN_FLIGHT {
            tasks.spawn(task(all.iter().skip(first).step_by(IN_FLIGHT).cloned().collect()));
        }
        tasks.join_all().await.into_iter().collect()
    })
}

/// Registers a dataset unknown to all servers.
async fn other(metadata: &dyn MetaStore, name: &str) -> Result<DatasetRecord> {
    let mut id = [0; 16];
    OsRandom.fill(&mut id);
    let record = DatasetRecord {
        name: format!("alone-{name}").parse()?,
        generation: 1,
        id: DatasetId::from_bytes(id),
        shape: ChunkShape::default(),
        created: Stamp::new(1),
        state: DatasetState::Live,
    };
    metadata.put_dataset(&record).await?;
    Ok(record)
}

fn header_of(chunk: &Bytes) -> Result<Committed> {
    let (committed, _) = Verified::check(chunk.to_vec())?.commit(Stamp::new(1))?;
    let raw = Bytes::copy_from_slice(committed.header().raw());
    Ok(Header::decode(&raw).and_then(Header::committed)?)
}

async fn append(metadata: Arc<dyn MetaStore>, objects: Vec<Committed>) -> Result<()> {
    for object in objects {
        metadata.append(&object).await?;
    }
    Ok(())
}

async fn create(mut client: DieselClient<Channel>, name: &str) -> Result<DatasetId> {
    let request = pb::CreateDatasetRequest { name: name.to_owned(), ..Default::default() };
    let made = client.create_dataset(request).await?.into_inner();
    let id = made.id[..].try_into().context("a dataset's id has 16 bytes")?;
    Ok(DatasetId::from_bytes(id))
}

/// Whole chunks with files named as ImageNet's.
fn packed(files: u32, dataset: DatasetId) -> Result<Vec<Bytes>> {
    let mut origin = [0; 9];
    OsRandom.fill(&mut origin);
    let (mut ids, now) = (ChunkIdMaker::new(origin), SystemClock::new().now());
    let (data, shape, mut chunks) = (bytes(LENGTH), ChunkShape::default(), Vec::new());
    let mut chunk = ChunkWriter::new(shape, Vec::new());
    for file in 0..files {
        let folder = 1_440_764 + file / PER_FOLDER * 17;
        let path = format!("train/n{folder:08}/n{folder:08}_{}.JPEG", file % PER_FOLDER);
        let path = FilePath::new(path)?;
        if !chunk.fits(&path, LENGTH as u64) {
            chunks.push(Bytes::copy_from_slice(chunk.seal(ids.next(now), dataset).as_slice()));
            chunk = ChunkWriter::new(shape, Vec::new());
        }
        chunk.append(&path, Attributes { mode: 0o644, mtime: 1_600_000_000_000_000_000 }, &data)?;
    }
    chunks.push(Bytes::copy_from_slice(chunk.seal(ids.next(now), dataset).as_slice()));
    Ok(chunks)
}

async fn commit(
    mut client: DieselClient<Channel>,
    dataset: DatasetId,
    chunks: Vec<Bytes>,
) -> Result<()> {
    for chunk in chunks {
        let head = pb::PutChunkRequest {
            dataset: Bytes::copy_from_slice(dataset.as_bytes()),
            length: chunk.len() as u64,
            data: Bytes::new(),
        };
        let mut messages = vec![head];
        for start in (0..chunk.len()).step_by(PIECE) {
            let data = chunk.slice(start..chunk.len().min(start + PIECE));
            messages.push(pb::PutChunkRequest { data, ..Default::default() });
        }
        client.put_chunk(tokio_stream::iter(messages)).await?;
    }
    Ok(())
}
