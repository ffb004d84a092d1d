//! Opening datasets for workers: each version of a dataset once, for all workers.
//!
//! Must hold: only workers of the agent's user and key open anything. A dataset that is open needs no
//! server. A snapshot handed over by a worker answers only workers with the same snapshot.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use dl_format::DatasetName;
use dl_runtime::{Shutdown, spawn};
use libdiesel::agent::{DatasetId, Hello, Owner, Servers, Version};
use libdiesel::{Error, Kind};
use tokio::sync::OnceCell;

use crate::Policy;
use crate::cache::Cache;
use crate::counts::Counts;
use crate::dataset::{Open, Refusal, chain, unblocked};
use crate::member::Member;

/// Opens datasets, and finds open datasets.
#[derive(Debug)]
pub(crate) struct Opener {
    cache: Arc<Cache>,
    shutdown: Shutdown,
    pub(crate) member: Arc<Member>,
    owner: Owner,
    attempts: Mutex<Vec<Attempt>>,
}

/// A dataset requested by workers.
#[derive(Debug)]
struct Attempt {
    wanted: Wanted,
    /// The number of the dataset, once open.
    number: Arc<OnceCell<usize>>,
}

/// The identity of a dataset in the request of a worker.
#[derive(Debug)]
enum Wanted {
    /// The version of the task, by the name at one of these servers.
    OfTask { name: DatasetName, hosts: BTreeSet<String> },
    /// A version that the worker already has.
    Version(DatasetId, Version),
}

impl Wanted {
    fn of(hello: &Hello) -> Result<Self, Refusal> {
        match hello.version {
            Some(version) => {
                let (dataset, version) = version.ids().map_err(|why| Refusal::because(&why))?;
                Ok(Self::Version(dataset, version))
            }
            None => Ok(Self::OfTask { name: name_of(hello)?, hosts: hosts(&hello.servers) }),
        }
    }

    fn ids(&self) -> Option<(DatasetId, Version)> {
        match *self {
            Self::Version(dataset, version) => Some((dataset, version)),
            Self::OfTask { .. } => None,
        }
    }

    /// Whether another request means the same dataset and version. All servers of a worker serve the
    /// same datasets, so a common server suffices.
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::OfTask { name, hosts }, Self::OfTask { name: of_other, hosts: others }) => {
                name == of_other && !hosts.is_disjoint(others)
            }
            (Self::Version(dataset, version), Self::Version(of_other, other)) => {
                (dataset, version) == (of_other, other)
            }
            _ => false,
        }
    }

    /// Adds the servers of another request for the same dataset.
    fn add(&mut self, other: Self) {
        if let (Self::OfTask { hosts, .. }, Self::OfTask { hosts: others, .. }) = (self, other) {
            hosts.extend(others);
        }
    }
}

impl Opener {
    pub(crate) fn new(
        cache: Arc<Cache>,
        shutdown: Shutdown,
        member: Arc<Member>,
        owner: Owner,
    ) -> Self {
        Self { cache, shutdown, member, owner, attempts: Mutex::default() }
    }

    /// The number of a dataset, which is opened unless already open. `handed` is the file of the
    /// worker's snapshot.
    pub(crate) async fn open(
        &self,
        hello: Hello,
        handed: Option<OwnedFd>,
    ) -> Result<usize, Refusal> {
        if !self.owner.owns(&hello.servers) {
            let reason = "the agent belongs to another user or key".to_owned();
            return Err(Refusal { is_missing: false, reason });
        }
        let wanted = Wanted::of(&hello)?;
        let ids = wanted.ids();
        let number = self.attempt(wanted);
        let open = async || match ids {
            Some(ids) => self.open_version(&hello, ids, handed).await,
            None => self.open_of_task(&hello).await,
        };
        let opened = number.get_or_try_init(open).await.copied();
        if opened.is_err() {
            // Names of missing datasets must not accumulate.
            let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
            attempts.retain(|one| one.number.initialized() || Arc::strong_count(&one.number) > 2);
        }
        opened
    }

    /// The common attempt of all workers that want the same version.
    fn attempt(&self, wanted: Wanted) -> Arc<OnceCell<usize>> {
        let mut attempts = self.attempts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = attempts.iter_mut().find(|one| one.wanted.is_same(&wanted)) {
            same.wanted.add(wanted);
            return Arc::clone(&same.number);
        }
        let number = Arc::default();
        attempts.push(Attempt { wanted, number: Arc::clone(&number) });
        number
    }

    /// Opens the version of the task.
    async fn open_of_task(&self, hello: &Hello) -> Result<usize, Refusal> {
        let (name, servers) = (name_of(hello)?, hello.servers.clone());
        let dataset = match unblocked(move || Ok(Open::find(&name, &servers))).await? {
            Ok(dataset) => dataset,
            Err(error) => return self.open_recorded(hello, error).await,
        };
        self.member.open_endpoint(&self.cache, &hello.servers.addresses, &self.shutdown).await;
        let open = self.member.join(&self.cache, &hello.dataset, dataset).await?;
        self.add(open, hello)
    }

    /// Opens the last known version of the task if no server answers.
    async fn open_recorded(&self, hello: &Hello, error: Error) -> Result<usize, Refusal> {
        let is_away = error.kind().is_retryable() || error.kind() == Kind::NeedsRecovery;
        let records = self.member.records().filter(|_| is_away);
        let hosts = hosts(&hello.servers);
        let recorded = async {
            let records = Arc::clone(records?);
            let dataset = hello.dataset.clone();
            let find = move || Ok(records.of_task(&dataset, &hosts).and_then(|found| found.ids()));
            unblocked(find).await.ok()?
        };
        let Some((dataset, version)) = recorded.await else { return Err(error.into()) };
        let why = chain(&error);
        tracing::warn!(name = hello.dataset, %version, why, "open the last known version of the task");
        self.open_version(hello, (dataset, version), None).await.map_err(|_| error.into())
    }

    /// Opens a version whose snapshot is in the user's cache, or was handed over. No server is asked.
    async fn open_version(
        &self,
        hello: &Hello,
        ids: (DatasetId, Version),
        handed: Option<OwnedFd>,
    ) -> Result<usize, Refusal> {
        if let Some(number) = self.find(|open| open.ids() == ids) {
            return Ok(number);
        }
        let (name, servers) = (name_of(hello)?, hello.servers.clone());
        let found = unblocked(move || Open::handed(&name, &servers, ids, handed)).await?;
        self.member.open_endpoint(&self.cache, &hello.servers.addresses, &self.shutdown).await;
        let (name, peers) = (hello.dataset.clone(), self.member.peers());
        let records = self.member.records().cloned();
        let open = move || {
            let record = records.and_then(|records| records.of_version(ids));
            Ok((Open::of(&name, found, peers)?, record))
        };
        let (open, record) = unblocked(open).await?;
        // Until the servers answer, the members of the last registration may have chunks.
        if let Some(record) = record {
            let _ = open.apply_membership(&record.membership(self.member.me(&self.cache)));
        }
        self.add(open, hello)
    }

    /// The number of an open dataset.
    fn find(&self, is_same: impl Fn(&Open) -> bool) -> Option<usize> {
        self.cache.state().datasets.iter().position(|open| is_same(open))
    }

    /// Serves a dataset from now on, unless another worker has opened the same snapshot. Returns the
    /// number of the dataset.
    fn add(&self, open: Open, hello: &Hello) -> Result<usize, Refusal> {
        let mut state = self.cache.state();
        let is_same = |other: &Arc<Open>| open.snapshot.is_same(&other.snapshot);
        if let Some(number) = state.datasets.iter().position(is_same) {
            return Ok(number);
        }
        let chunk = open.snapshot.shape().size();
        state
            .arena_for(chunk, self.cache.budget())
            .map_err(|reason| Refusal { is_missing: false, reason })?;
        state.orders.slots = state.slots();
        let (open, number) = (Arc::new(open), state.datasets.len());
        state.datasets.push(Arc::clone(&open));
        state.counts.push(Counts::default());
        if self.cache.policy == Policy::OneShot {
            state.backlog.add_all(number, open.snapshot.holders());
        }
        state.beat();
        drop(state);
        let (cache, hosts) = (Arc::clone(&self.cache), hosts(&hello.servers));
        spawn(Arc::clone(&self.member).stay(cache, number, open, hosts));
        Ok(number)
    }
}

fn name_of(hello: &Hello) -> Result<DatasetName, Refusal> {
    DatasetName::new(&hello.dataset).map_err(|why| Refusal::because(&why))
}

/// The servers of a worker, without schemes and logins.
fn hosts(servers: &Servers) -> BTreeSet<String> {
    let host = |address: &String| {
        let host = address.split_once("://").map_or(address.as_str(), |(_, host)| host);
        host.rsplit_once('@').map_or(host, |(_, host)| host).trim_end_matches('/').to_lowercase()
    };
    servers.addresses.iter().map(host).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_task(name: &str, addresses: &[&str]) -> Wanted {
        let name = DatasetName::new(name).unwrap();
        let servers = Servers {
            user: String::new(),
            key: None,
            addresses: addresses.iter().map(|address| (*address).to_owned()).collect(),
            ca: None,
            certificate: None,
            plain_text_key: false,
            connect_timeout: 0,
            request_timeout: 0,
        };
        Wanted::OfTask { name, hosts: hosts(&servers) }
    }

    #[test]
    fn a_common_server_makes_the_same_dataset() {
        let wanted = of_task("ds", &["a:1", "b:1"]);
        for (same, name, addresses) in [
            (true, "ds", &["b:1", "c:1"][..]),
            (true, "ds", &["https://B:1/"]),
            (true, "ds", &["http://ann@a:1"]),
            (false, "ds", &["c:1", "a:2"]),
            (false, "other", &["a:1", "b:1"]),
        ] {
            assert_eq!(wanted.is_same(&of_task(name, addresses)), same, "{name} {addresses:?}");
        }
        let version = |byte| Wanted::Version(DatasetId::from_bytes([byte; 16]), Version::default());
        assert!(version(1).is_same(&version(1)));
        assert!(!version(1).is_same(&version(2)) && !version(1).is_same(&wanted));
    }
}
