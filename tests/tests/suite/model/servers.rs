//! Two servers over one chunk store and one metadata store, and what becomes of them.
//!
//! Must hold: they share nothing else; each has a handle of its own to the metadata store where a
//! process of its own could have one.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use dl_meta::redis_testing::Server as RedisServer;
use dl_meta::{Embedded, EmbeddedOptions, Memory, MetaStore, Redis, RedisOptions, Stop};
use dl_server::{Limits, Parts, prepare};
use dl_store::Store;
use dl_tests::cluster::{Cluster, clock, parts};
use dl_tests::http::get;
use libdiesel::Client;
use tempfile::TempDir;

const COUNT: usize = 2;

/// How far ids may be off the clock of servers that don't fail, and how old they are once a purge
/// may act on them.
const SKEW: Duration = Duration::from_secs(3);
pub(super) const SETTLED: Duration = Duration::from_secs(15);

/// Stores that fail, and the switch for that.
pub(super) struct Chaos {
    pub(super) wrap: Wrap,
    pub(super) set: Box<dyn Fn(bool)>,
}

/// From stores that work to parts with stores that fail.
type Wrap = Box<dyn Fn(Arc<dyn Store>, Arc<dyn MetaStore>) -> Parts>;

/// Which metadata store the servers share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Metadata {
    Memory,
    Embedded,
    Redis,
}

/// The servers, and what outlives them.
pub(super) struct Servers {
    cluster: Cluster,
    store: Arc<dyn Store>,
    metadata: Metadata,
    /// Of embedded metadata.
    folder: TempDir,
    /// Started with the first servers that need it.
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

    /// All of them die, and so does the metadata; others come.
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
            let working = parts(Arc::clone(&self.store), Arc::clone(&meta));
            self.cluster.run(prepare(&working, Stop::Fresh))?;
            let parts = match &self.chaos {
                Some(chaos) => (chaos.wrap)(Arc::clone(&self.store), meta),
                None => {
                    let limits = Limits { clock_skew: SKEW, ..working.limits };
                    Parts { limits, ..working }
                }
            };
            self.cluster.start(&parts, 1)?;
        }
        Ok(())
    }

    /// One for each server.
    fn handles(&self) -> Result<Vec<Arc<dyn MetaStore>>> {
        let shared: Arc<dyn MetaStore> = match (self.metadata, &self.redis) {
            (Metadata::Memory, _) => Arc::new(Memory::new()),
            (Metadata::Embedded, _) => {
                let options = EmbeddedOptions::default();
                let opened = Embedded::open(self.folder.path(), options, clock());
                Arc::new(self.cluster.run(opened)?.0)
            }
            (Metadata::Redis, redis) => {
                let url = redis.as_ref().context("it was started")?.url();
                let open = |_| -> Result<Arc<dyn MetaStore>> {
                    let opened = Redis::open(&url, RedisOptions::default(), clock());
                    Ok(Arc::new(self.cluster.run(opened)?))
                };
                return (0..COUNT).map(open).collect();
            }
        };
        Ok(vec![shared; COUNT])
    }

    /// A client that sends each request to the next of them.
    pub(super) fn client(&self) -> Result<Client> {
        self.cluster.client()
    }

    /// Whether their stores fail at times.
    pub(super) fn fail(&self) -> bool {
        self.chaos.is_some()
    }

    pub(super) fn set_chaos(&self, is_on: bool) {
        if let Some(chaos) = &self.chaos {
            (chaos.set)(is_on);
        }
    }

    /// How many requests each of them has answered.
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
