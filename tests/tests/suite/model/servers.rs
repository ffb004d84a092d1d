//! Two servers over a chunk store and a metadata store.
//!
//! Must hold: the servers share nothing else. Each has its own handle to the metadata store where
//! separate processes would have one.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use dl_meta::redis_testing::Server as RedisServer;
use dl_meta::{Embedded, EmbeddedOptions, Memory, MetaStore, Redis, RedisOptions, Stop};
use dl_server::{Limits, ServerContext, prepare};
use dl_store::Store;
use dl_tests::cluster::{Cluster, clock, context};
use dl_tests::http::get;
use libdiesel::Client;
use tempfile::TempDir;

const COUNT: usize = 2;

/// The permitted clock difference of ids, and the age of objects that a purge may remove, for
/// servers without faults.
const SKEW: Duration = Duration::from_secs(3);
pub(super) const SETTLED: Duration = Duration::from_secs(15);

/// Faulty stores and their switch.
pub(super) struct Chaos {
    pub(super) wrap: Wrap,
    pub(super) set: Box<dyn Fn(bool)>,
}

/// Builds parts with faulty stores from healthy stores.
type Wrap = Box<dyn Fn(Arc<dyn Store>, Arc<dyn MetaStore>) -> ServerContext>;

/// The metadata store of the servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Metadata {
    Memory,
    Embedded,
    Redis,
}

/// The servers and their stores.
pub(super) struct Servers {
    cluster: Cluster,
    store: Arc<dyn Store>,
    metadata: Metadata,
    /// The folder of embedded metadata.
    folder: TempDir,
    /// The Redis server, for metadata in Redis.
    redis: Option<RedisServer>,
    chaos: Option<Chaos>,
}

impl Servers {
    pub(super) fn start(metadata: Metadata, chaos: Option<Chaos>) -> Result<Self> {
        let cluster = Cluster::new()?;
        let store = cluster.run(dl_store::open("memory:"))?;
        let redis = match metadata {
            Metadata::Memory | Metadata::Embedded => None,
            Metadata::Redis => Some(cluster.run(RedisServer::start(&[]))),
        };
        let folder = tempfile::tempdir()?;
        let mut servers = Self { cluster, store, metadata, folder, redis, chaos };
        servers.serve()?;
        Ok(servers)
    }

    /// Kills all servers, removes the metadata, and starts new servers.
    pub(super) fn begin_anew(&mut self) -> Result<()> {
        self.cluster.kill();
        self.folder = tempfile::tempdir()?;
        if let Some(redis) = &self.redis {
            self.cluster.run(redis.ask(&["FLUSHALL"]));
        }
        self.serve()
    }

    fn serve(&mut self) -> Result<()> {
        for meta in self.handles()? {
            let working = context(Arc::clone(&self.store), Arc::clone(&meta));
            self.cluster.run(prepare(&working, Stop::Fresh))?;
            let context = match &self.chaos {
                Some(chaos) => (chaos.wrap)(Arc::clone(&self.store), meta),
                None => {
                    let limits = Limits { clock_skew: SKEW, ..working.limits };
                    ServerContext { limits, ..working }
                }
            };
            self.cluster.start(&context, 1)?;
        }
        Ok(())
    }

    /// A handle to the metadata store for each server.
    fn handles(&self) -> Result<Vec<Arc<dyn MetaStore>>> {
        let shared: Arc<dyn MetaStore> = match (self.metadata, &self.redis) {
            (Metadata::Memory, _) => Arc::new(Memory::new()),
            (Metadata::Embedded, _) => {
                let options = EmbeddedOptions::default();
                let opened = Embedded::open(self.folder.path(), options, clock());
                Arc::new(self.cluster.run(opened)?.0)
            }
            (Metadata::Redis, redis) => {
                let url = redis.as_ref().context("Redis runs")?.url();
                let open = |_| -> Result<Arc<dyn MetaStore>> {
                    let opened = Redis::open(&url, RedisOptions::default(), clock());
                    Ok(Arc::new(self.cluster.run(opened)?))
                };
                return (0..COUNT).map(open).collect();
            }
        };
        Ok(vec![shared; COUNT])
    }

    /// A client of all servers: each request goes to the next server.
    pub(super) fn client(&self) -> Result<Client> {
        self.cluster.client()
    }

    /// Whether the stores fail at times.
    pub(super) fn fail(&self) -> bool {
        self.chaos.is_some()
    }

    pub(super) fn set_chaos(&self, is_on: bool) {
        if let Some(chaos) = &self.chaos {
            (chaos.set)(is_on);
        }
    }

    /// The count of answered requests of each server.
    pub(super) fn answered(&self) -> Result<Vec<u64>> {
        let answered = |address: &String| -> Result<u64> {
            let (_, text) = get(address, "/metrics")?;
            let requests = text.lines().filter(|line| line.starts_with("diesel_requests_total{"));
            let count = |line: &str| -> Result<u64> {
                Ok(line.rsplit_once(' ').context("a sample")?.1.parse()?)
            };
            requests.map(count).sum()
        };
        self.cluster.http().iter().map(answered).collect()
    }
}
