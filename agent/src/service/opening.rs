//! Opening datasets for workers: each version of a dataset once, for all workers.
//!
//! Must hold: only workers of the agent's user and key open anything. A dataset that is open needs no
//! server. A snapshot handed over by a worker answers only workers with the same snapshot.

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dl_format::{DatasetId, DatasetName, Version};
use dl_node::{Hello, Servers};
use dl_runtime::{Shutdown, locked, spawn};
use libdiesel::agent::Owner;
use libdiesel::{Error, Kind};
use tokio::sync::OnceCell;
use tokio::task::JoinHandle;

use super::member::Member;
use crate::cache::Cache;
use crate::dataset::{Open, Refusal, chain, unblocked};
use crate::place::ChunkBits;
use crate::registration::FoundName;

/// Time limit for the farewell of an ending agent.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(2);

/// Opens datasets, and finds open datasets.
#[derive(Debug)]
pub(crate) struct Opener {
    cache: Arc<Cache>,
    shutdown: Shutdown,
    pub(crate) member: Arc<Member>,
    owner: Owner,
    attempts: Mutex<Vec<Attempt>>,
    /// The repeated registrations.
    stays: Mutex<Vec<JoinHandle<()>>>,
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
        let (attempts, stays) = (Mutex::default(), Mutex::default());
        Self { cache, shutdown, member, owner, attempts, stays }
    }

    /// Waits until the member has signed off from all datasets, for a limited time after the request
    /// to stop.
    pub(crate) async fn leave(&self) {
        let stays = std::mem::take(&mut *locked(&self.stays));
        let leaving = async {
            for stay in stays {
                let _ = stay.await;
            }
        };
        tokio::select! {
            () = leaving => {}
            () = self.cache.clock.sleep(FAREWELL_TIMEOUT) => {}
        }
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
            let mut attempts = locked(&self.attempts);
            attempts.retain(|one| one.number.initialized() || Arc::strong_count(&one.number) > 2);
        }
        opened
    }

    /// The common attempt of all workers that want the same version.
    fn attempt(&self, wanted: Wanted) -> Arc<OnceCell<usize>> {
        let mut attempts = locked(&self.attempts);
        let state = self.cache.state();
        let is_open = |number: &usize| state.opens.get(*number).is_some();
        attempts.retain(|one| one.number.get().is_none_or(is_open));
        drop(state);
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
        self.add(open, Some(found_name(hello))).await
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
        let Some(ids) = recorded.await else { return Err(error.into()) };
        // The snapshot of a worker may have the same ids.
        if let Some(number) = self.find(|open| open.ids() == ids && open.found.get().is_some()) {
            return Ok(number);
        }
        let (why, version) = (chain(&error), ids.1);
        tracing::warn!(name = hello.dataset, %version, why, "open the last known version of the task");
        let opened = async {
            let open = self.open_snapshot(hello, ids, None).await?;
            open.registration.began_recorded(&why);
            self.add(open, Some(found_name(hello))).await
        };
        opened.await.map_err(|_: Refusal| error.into())
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
        let open = self.open_snapshot(hello, ids, handed).await?;
        self.add(open, None).await
    }

    /// A dataset by a snapshot in the user's cache, or by a snapshot that was handed over.
    async fn open_snapshot(
        &self,
        hello: &Hello,
        ids: (DatasetId, Version),
        handed: Option<OwnedFd>,
    ) -> Result<Open, Refusal> {
        let (name, servers) = (name_of(hello)?, hello.servers.clone());
        let found = unblocked(move || Open::handed(&name, &servers, ids, handed)).await?;
        self.member.open_endpoint(&self.cache, &hello.servers.addresses, &self.shutdown).await;
        let (name, peers) = (hello.dataset.clone(), self.member.peers(&self.cache));
        let records = self.member.records().cloned();
        let open = move || {
            let record = records.and_then(|records| records.of_version(ids));
            Ok((Open::of(&name, found, peers)?, record))
        };
        let (open, record) = unblocked(open).await?;
        // Until the servers answer, the members of the last registration may have chunks.
        if let Some(record) = record {
            let membership = record.membership(self.member.me(&self.cache, None));
            let _ = open.peers.update(ids.0, ids.1, &membership);
        }
        Ok(open)
    }

    /// The number of an open dataset.
    fn find(&self, is_same: impl Fn(&Open) -> bool) -> Option<usize> {
        let state = self.cache.state();
        let found = state.opens.iter().find(|(_, open)| is_same(open));
        found.map(|(number, _)| number)
    }

    /// Serves a dataset from now on, unless another worker has opened the same snapshot. Returns the
    /// number of the dataset. `found` is set for a dataset found by name.
    async fn add(&self, open: Open, found: Option<FoundName>) -> Result<usize, Refusal> {
        let find_owners = move || {
            open.peers.find_owners(open.snapshot.holders(), |_| ());
            Ok(open)
        };
        let open = unblocked(find_owners).await?;
        let copies = self.cache.first_copies(&open.snapshot, &open.name).await;
        self.add_listed(open, copies, found)
    }

    fn add_listed(
        &self,
        open: Open,
        copies: Option<ChunkBits>,
        found: Option<FoundName>,
    ) -> Result<usize, Refusal> {
        let mut state = self.cache.state();
        let is_same = |(_, other): &(usize, &Arc<Open>)| open.snapshot.is_same(&other.snapshot);
        if let Some((number, other)) = state.opens.iter().find(is_same) {
            if let Some(found) = found {
                let _ = other.found.set(found);
            }
            return Ok(number);
        }
        if let Some(found) = found {
            let _ = open.found.set(found);
        }
        let chunk = open.snapshot.shape().size();
        let fits = state.slots.fit(chunk, self.cache.budget());
        fits.map_err(|reason| Refusal { is_missing: false, reason })?;
        let open = Arc::new(open);
        let number = state.add(Arc::clone(&open), self.cache.policy);
        copies.into_iter().for_each(|copies| state.disk.set(number, copies));
        state.beat(self.cache.now());
        drop(state);
        // Lists of other agents may have come before.
        self.cache.link_events.listed();
        let (cache, shutdown) = (Arc::clone(&self.cache), self.shutdown.clone());
        let stay = spawn(Arc::clone(&self.member).stay(cache, number, open, shutdown));
        let mut stays = locked(&self.stays);
        stays.retain(|stay| !stay.is_finished());
        stays.push(stay);
        Ok(number)
    }
}

fn name_of(hello: &Hello) -> Result<DatasetName, Refusal> {
    DatasetName::new(&hello.dataset).map_err(|why| Refusal::because(&why))
}

fn found_name(hello: &Hello) -> FoundName {
    FoundName { name: hello.dataset.clone(), hosts: hosts(&hello.servers) }
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
