//! How fast pre-packed chunks of 4 KiB files are committed into a Redis Cluster of three primaries
//! on this machine, beside what redis-benchmark reaches with SET on one; and what a file costs
//! there. `cargo run --release -p dl-meta --features conformance --example commit_to_redis [CHUNKS]`

use std::io::{self, Write as _};
use std::process::Command;
use std::sync::Arc;

use bytes::Bytes;
use dl_format::{
    Attributes, ChunkId, ChunkShape, ChunkWriter, Committed, DatasetId, DatasetName, FilePath,
    Header, Stamp, StoreId, Verified,
};
use dl_meta::redis_testing::{Cluster, Server};
use dl_meta::{DatasetRecord, DatasetState, Found, MetaStore, Redis, RedisOptions};
use dl_runtime::{Clock, SystemClock};
use tokio::task::JoinSet;

const FILES: usize = 1_000;
const IN_FLIGHT: usize = 16;
const RUNS: usize = 3;

fn file(number: usize) -> FilePath {
    let class = number / 1_281;
    let path = format!(
        "train/n{:08}/n{:08}_{}.JPEG",
        1_440_764 + class * 17,
        1_440_764 + class * 17,
        number % 1_281
    );
    FilePath::new(path.into_bytes()).expect("a path")
}

fn chunk(dataset: DatasetId, number: usize) -> Committed {
    let mut writer = ChunkWriter::new(ChunkShape::default(), Vec::new());
    for file_number in number * FILES..(number + 1) * FILES {
        let attributes = Attributes { mode: 0o644, mtime: 1_600_000_000_000_000_000 };
        writer.append(&file(file_number), attributes, &[7; 4_000]).expect("it fits");
    }
    let mut id = [3; 16];
    for (byte, value) in id.iter_mut().zip((number as u64).to_le_bytes()) {
        *byte = value;
    }
    let sealed = writer.seal(ChunkId::from_bytes(id), dataset);
    let verified = Verified::check(sealed.as_slice().to_vec()).expect("whole");
    let (committed, _) = verified.commit(Stamp::new(1_000 + number as u64)).expect("new");
    let raw = Bytes::copy_from_slice(committed.header().raw());
    Header::decode(&raw).and_then(Header::committed).expect("committed")
}

/// SETs a second of one node, as redis-benchmark counts them.
fn benchmark(server: &Server) -> f64 {
    let out = Command::new("redis-benchmark")
        .args(["-p", &server.port().to_string(), "-t", "set", "-P", "64", "-n", "1000000"])
        .args(["-r", "1000000", "-q", "--csv"])
        .output()
        .expect("redis-benchmark runs");
    let text = String::from_utf8_lossy(&out.stdout);
    let line = text.lines().find(|line| line.starts_with("\"SET\"")).unwrap_or_default();
    line.split(',').nth(1).and_then(|rate| rate.trim_matches('"').parse().ok()).unwrap_or(f64::NAN)
}

async fn used(cluster: &Cluster) -> u64 {
    let mut used = 0;
    for server in cluster.servers() {
        let info = server.text(&["INFO", "memory"]).await;
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        used += line.and_then(|line| line.trim().parse::<u64>().ok()).unwrap_or(0);
    }
    used
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let chunks: usize = std::env::args().nth(1).and_then(|n| n.parse().ok()).unwrap_or(400);
    let clock = Arc::new(SystemClock::new());
    let dataset = DatasetId::from_bytes([5; 16]);
    let objects: Vec<_> = (0..chunks).map(|number| Arc::new(chunk(dataset, number))).collect();
    let files = chunks * FILES;
    let mut out = io::stdout();
    writeln!(out, "{files} files in {chunks} chunks, {IN_FLIGHT} appends in flight, 3 primaries")?;
    for run in 0..RUNS {
        let single = Server::start(&[]).await;
        let sets = benchmark(&single);
        drop(single);
        let cluster = Cluster::start(3, 0).await;
        let empty = used(&cluster).await;
        let open =
            Redis::open(&cluster.url(), RedisOptions::default(), Arc::<SystemClock>::clone(&clock))
                .await;
        let store = Arc::new(open.expect("open"));
        store.bind(StoreId::from_bytes([1; 16])).await.expect("bind");
        let record = DatasetRecord {
            name: DatasetName::new("imagenet").expect("a name"),
            generation: 1,
            id: dataset,
            shape: ChunkShape::default(),
            created: Stamp::new(1),
            state: DatasetState::Live,
        };
        store.put_dataset(&record).await.expect("put");
        let start = clock.monotonic();
        let mut tasks = JoinSet::new();
        for part in 0..IN_FLIGHT {
            let mine: Vec<_> = objects.iter().skip(part).step_by(IN_FLIGHT).cloned().collect();
            let store = Arc::clone(&store);
            tasks.spawn(async move {
                for object in mine {
                    store.append(&object).await.expect("append");
                }
            });
        }
        tasks.join_all().await;
        let rate = files as f64 / (clock.monotonic() - start).as_secs_f64();
        let bytes = (used(&cluster).await - empty) as f64 / files as f64;
        let start = clock.monotonic();
        let mut tasks = JoinSet::new();
        for task in 0..64 {
            let store = Arc::clone(&store);
            tasks.spawn(async move {
                for step in 0..500 {
                    let path = file((task * 7_919 + step * 104_729) % files);
                    let found = store.lookup(dataset, &[path]).await.expect("look up");
                    assert!(matches!(found.as_slice(), [Found::File(_)]));
                }
            });
        }
        tasks.join_all().await;
        let lookups = 32_000.0 / (clock.monotonic() - start).as_secs_f64();
        let start = clock.monotonic();
        let info = store.dataset(dataset).await.expect("count").expect("it is there");
        let counted = files as f64 / (clock.monotonic() - start).as_secs_f64();
        assert_eq!(info.files, files as u64);
        writeln!(
            out,
            "run {run}: commit {rate:.0} files/s beside SET {sets:.0}/s: {:.2}; {bytes:.0} bytes a \
             file; {lookups:.0} lookups/s, 64 in flight; counted {counted:.0} files/s",
            rate / sets
        )?;
    }
    Ok(())
}
