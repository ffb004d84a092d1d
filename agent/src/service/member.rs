//! The agent as a member of its training job. A single call registers the agent, reports its
//! counts, and leases the version read by the job.
//!
//! Must hold: the task's version is requested before a dataset is opened. No read waits long for
//! this call. While no server answers, the agent continues with its data.

use std::future::ready;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use dl_format::{MemberId, TaskName};
use dl_proto::{JoinTask, TaskCounters, TaskMember, TaskMembership};
use dl_runtime::{OsRandom, Random, Shutdown, blocking, spawn};
use libdiesel::Dataset;
use libdiesel::agent::join_task;
use tokio::sync::OnceCell;

use super::peers::PeerListener;
use crate::cache::Cache;
use crate::dataset::{Open, Refusal, chain, unblocked};
use crate::descriptors::Descriptors;
use crate::peers::{Identity, LocalAgent, PeerConfig, Peers};
use crate::registration::{Record, Records, Terms};
use crate::status::{self, About};

/// Interval between two calls while no server answers.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Number of calls at a fifth of the usual interval after a change of the member list. The members
/// of a job start together; larger jobs keep the usual interval.
const QUICK_CALLS: u32 = 3;
const QUICK_PART: u32 = 5;
const QUICK_MEMBERS_MAX: usize = 64;

/// Interval between two records of an unchanged registration.
const RECORD_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Minimal interval between two calls.
const PAUSE_MIN: Duration = Duration::from_millis(200);

/// How long the first reads wait for the registration, which names the version of the task.
const JOIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Prefix of the names of jobs on a single machine.
const OF_SESSION: &str = "session:";

/// The agent's identity towards the servers and the other agents.
#[derive(Debug)]
pub(crate) struct Member {
    task: TaskName,
    id: MemberId,
    config: PeerConfig,
    records: Option<Arc<Records>>,
    about: About,
    /// For connections to other agents.
    descriptors: Descriptors,
    endpoint: OnceCell<Endpoint>,
}

/// The endpoint for other agents.
#[derive(Debug, Default)]
struct Endpoint {
    /// Empty if closed to other agents.
    address: String,
    identity: Option<Arc<Identity>>,
}

impl Member {
    /// A new member of a task.
    pub(crate) fn of(
        task: TaskName,
        config: PeerConfig,
        records: Option<Records>,
        about: About,
    ) -> Self {
        let mut id = [0; 16];
        OsRandom.fill(&mut id);
        let (id, records) = (MemberId::from_bytes(id), records.map(Arc::new));
        let descriptors = Descriptors::for_one_direction();
        Self { task, id, config, records, about, descriptors, endpoint: OnceCell::new() }
    }

    /// The records of earlier registrations.
    pub(crate) fn records(&self) -> Option<&Arc<Records>> {
        self.records.as_ref()
    }

    /// Opens the endpoint for other agents, unless already open.
    pub(crate) async fn open_endpoint(
        &self,
        cache: &Arc<Cache>,
        servers: &[String],
        shutdown: &Shutdown,
    ) {
        let open = async || {
            let endpoint = self.open(cache, servers, shutdown).await;
            endpoint.inspect_err(|why| {
                tracing::warn!(%why, "listen for other agents of the task: none can reach this agent");
            })
        };
        // A failed attempt is repeated with the next dataset.
        let _ = self.endpoint.get_or_try_init(open).await;
    }

    async fn open(
        &self,
        cache: &Arc<Cache>,
        servers: &[String],
        shutdown: &Shutdown,
    ) -> io::Result<Endpoint> {
        let door = match self.task.as_str().starts_with(OF_SESSION) {
            true => None,
            false => PeerListener::open(&self.config.address, servers).await?,
        };
        let Some(door) = door else { return Ok(Endpoint::default()) };
        let identity =
            self.config.tls.is_on(servers).then(Identity::new).transpose()?.map(Arc::new);
        let address = door.address.clone();
        spawn(door.serve(Arc::clone(cache), self.id, shutdown.clone()));
        Ok(Endpoint { address, identity })
    }

    /// The address for other agents; empty if closed to them.
    pub(crate) fn address(&self) -> &str {
        self.endpoint.get().map_or("", |endpoint| &endpoint.address)
    }

    /// The other agents of a dataset, with an empty member list.
    pub(crate) fn peers(&self, cache: &Cache) -> Peers {
        let identity = self.endpoint.get().and_then(|endpoint| endpoint.identity.clone());
        let (is_open, descriptors) = (!self.address().is_empty(), self.descriptors.clone());
        let (clock, events) = (Arc::clone(&cache.clock), Arc::clone(&cache.link_events));
        Peers::new(LocalAgent { me: self.id, is_open, identity, descriptors, clock, events })
    }

    fn request(&self, cache: &Cache, dataset: usize, open: &Open, leaving: bool) -> JoinTask {
        let (version, terms) = (open.snapshot.version(), open.terms());
        let (counters, chunks) = {
            let mut state = cache.state();
            (status::counters(&state, dataset), state.capacity(dataset))
        };
        JoinTask {
            dataset: open.dataset.info().id,
            version: terms.version(version),
            task: terms.name(&self.task, version),
            member: self.me(cache, chunks),
            leaving,
            counters,
        }
    }

    /// The agent, for others. `chunks`: how many chunks it can keep, if known.
    pub(crate) fn me(&self, cache: &Cache, chunks: Option<u32>) -> TaskMember {
        let identity = self.endpoint.get().and_then(|endpoint| endpoint.identity.as_ref());
        TaskMember {
            id: self.id,
            address: self.address().to_owned(),
            key_fingerprint: identity.map(|identity| identity.fingerprint),
            memory: cache.budget(),
            chunks,
        }
    }

    /// The request of a member before the version is known.
    fn first_request(&self, cache: &Cache, dataset: &Dataset) -> JoinTask {
        JoinTask {
            dataset: dataset.info().id,
            version: None,
            task: self.task.clone(),
            member: self.me(cache, None),
            leaving: false,
            counters: TaskCounters::default(),
        }
    }

    /// Facts about the agent.
    pub(crate) fn about(&self) -> &About {
        &self.about
    }

    /// The task.
    pub(crate) fn task(&self) -> &TaskName {
        &self.task
    }

    /// Registers for a dataset and opens it at the version read by the task: the version of other
    /// members, else the version leased before, else the newest. If the servers don't answer the
    /// registration in time, the newest version is opened, and stays open.
    pub(crate) async fn join(
        &self,
        cache: &Cache,
        name: &str,
        dataset: Dataset,
    ) -> Result<Open, Refusal> {
        let clock = &cache.clock;
        let mut joining = pin!(join_task(&dataset, self.first_request(cache, &dataset)));
        let joined = tokio::select! {
            joined = &mut joining => Some(joined),
            () = clock.sleep(JOIN_TIMEOUT) => None,
        };
        let is_pending = joined.is_none();
        let why = match joined {
            Some(Ok(joined)) => return self.open_at(cache, name, &dataset, joined).await,
            Some(Err(why)) => chain(&why),
            None => format!("no answer within {} s", JOIN_TIMEOUT.as_secs()),
        };
        tracing::warn!(name, why, "register for a dataset: the version of the task is unknown");
        let (of_name, newest, peers) = (name.to_owned(), dataset.clone(), self.peers(cache));
        let open = unblocked(move || Open::new(&of_name, &newest, None, peers)).await?;
        open.registration.began_late(&why);
        // Until now no process reads the newest version.
        tokio::select! {
            biased;
            Ok(joined) = joining, if is_pending => self.open_at(cache, name, &dataset, joined).await,
            () = ready(()) => Ok(open),
        }
    }

    /// Opens a dataset at the version of an answer of the servers.
    async fn open_at(
        &self,
        cache: &Cache,
        name: &str,
        dataset: &Dataset,
        joined: TaskMembership,
    ) -> Result<Open, Refusal> {
        let (of_name, of_task, peers) = (name.to_owned(), dataset.clone(), self.peers(cache));
        let open = unblocked(move || Open::new(&of_name, &of_task, joined.version, peers)).await?;
        open.registration.began(&joined, dataset.info().version);
        open.apply_membership(&joined);
        let (version, members) = (open.snapshot.version(), joined.members.len());
        tracing::info!(name, %version, members, "opened a dataset");
        for note in open.notes(&self.task) {
            tracing::warn!("{note}");
        }
        Ok(open)
    }

    /// Registers for a dataset repeatedly, and signs off at the end of the agent or of the dataset. The
    /// farewell is the last call: a later registration would lease the version for a day.
    pub(crate) async fn stay(
        self: Arc<Self>,
        cache: Arc<Cache>,
        dataset: usize,
        open: Arc<Open>,
        shutdown: Shutdown,
    ) {
        let clock = Arc::clone(&cache.clock);
        let (mut is_known, mut quick_calls) = (true, QUICK_CALLS);
        let mut record_after = Duration::ZERO;
        while !shutdown.is_requested() && !open.closed.is_requested() {
            let request = self.request(&cache, dataset, &open, false);
            let answer = join_task(&open.dataset, request).await;
            if self.change_terms(&cache, dataset, &open, &answer).await {
                continue;
            }
            let pause = match answer {
                Ok(joined) => {
                    is_known = true;
                    let has_changed = open.apply_membership(&joined);
                    if has_changed || clock.monotonic() >= record_after {
                        self.record(&open, &joined).await;
                        record_after = clock.monotonic().saturating_add(RECORD_INTERVAL);
                    }
                    if has_changed {
                        quick_calls = QUICK_CALLS;
                        let members = joined.members.len();
                        tracing::info!(
                            dataset = open.name,
                            members,
                            "the agents of the task changed"
                        );
                    }
                    let is_quick = quick_calls > 0 && joined.members.len() <= QUICK_MEMBERS_MAX;
                    quick_calls = quick_calls.saturating_sub(1);
                    joined.call_again / if is_quick { QUICK_PART } else { 1 }
                }
                Err(why) => {
                    let why = chain(&why);
                    open.registration.failed(&why);
                    if std::mem::take(&mut is_known) {
                        tracing::warn!(dataset = open.name, why, "register for a dataset again");
                    }
                    RETRY_DELAY
                }
            };
            let pausing = async {
                clock.sleep(PAUSE_MIN).await;
                tokio::select! {
                    () = clock.sleep(pause.saturating_sub(PAUSE_MIN)) => {}
                    () = open.peers.changed.notified() => {}
                }
            };
            tokio::select! {
                () = pausing => {}
                () = shutdown.requested() => {}
                () = open.closed.requested() => {}
            }
        }
        self.leave(&cache, dataset, &open).await;
    }

    /// Whether another version of the task, or a missing snapshot, changes the terms of a dataset.
    async fn change_terms(
        &self,
        cache: &Cache,
        dataset: usize,
        open: &Open,
        answer: &Result<TaskMembership, libdiesel::Error>,
    ) -> bool {
        let version = open.snapshot.version();
        let Some(terms) = open.terms().after(version, answer.as_ref().map_err(|why| why.kind()))
        else {
            return false;
        };
        let is_of_task = |(_, other): (usize, &Arc<Open>)| {
            let is_same = other.snapshot.dataset() == open.snapshot.dataset();
            is_same && other.snapshot.version() != version && other.terms() == Terms::OfTask
        };
        if answer.is_ok() && !cache.state().opens.iter().any(is_of_task) {
            // The other agents of the task must not look for chunks of their version here.
            let _ = join_task(&open.dataset, self.request(cache, dataset, open, true)).await;
        }
        tracing::info!(dataset = open.name, %version, ?terms, "register for a version");
        open.set_terms(terms);
        true
    }

    /// Records a registration for a new agent.
    async fn record(&self, open: &Open, joined: &TaskMembership) {
        let Some(records) = self.records.clone() else { return };
        let (ids, is_of_task) = (open.ids(), open.terms() == Terms::OfTask);
        let (found, joined) = (open.found.get().cloned(), joined.clone());
        let save = move || {
            // An agent opened by a worker's snapshot keeps the name known to an earlier agent.
            let found = found.or_else(|| records.of_version(ids).and_then(Record::found));
            records.save(&Record::new(found, ids, is_of_task, &joined))
        };
        if let Ok(Err(why)) = blocking::run(save).await {
            tracing::debug!(%why, "record a registration");
        }
    }

    /// Signs off from a dataset. Without the lease, no new agent may read the version by its record.
    async fn leave(&self, cache: &Cache, dataset: usize, open: &Open) {
        let request = self.request(cache, dataset, open, true);
        // Without the farewell, servers wait for three missing calls.
        if join_task(&open.dataset, request).await.is_err() {
            return;
        }
        let Some(records) = self.records.clone() else { return };
        let ids = open.ids();
        if let Ok(Err(why)) = blocking::run(move || records.remove(ids)).await {
            tracing::debug!(%why, "remove the record of a registration");
        }
    }
}
