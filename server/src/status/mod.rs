//! What happens on all servers and in all training jobs: each server announces itself in the metadata store, and
//! reads the records of the others and of the members of jobs.
//!
//! Must hold: any server alone knows all servers and jobs, a few seconds late. Nothing here is asked by a request
//! for files. Questions of many callers are a single question to the metadata store. Memory is bounded.

pub(crate) mod health;
mod history;
mod jobs;
mod report;
mod servers;

use std::collections::HashMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use dl_format::{DatasetId, MemberId, Stamp, TaskId, Version};
use dl_meta::{DatasetRecord, DatasetState, Heartbeat, TaskGroup, TaskKey, TaskTerms};
use dl_proto::{DepartedMember, ServerRecord, TaskCounters, pb};
use dl_runtime::{Deadline, locked};
use futures::{StreamExt, stream};
use prost::Message;
use tokio::sync::Semaphore;

use self::health::HealthProbe;
pub(crate) use self::jobs::JobName;
use self::jobs::Jobs;
pub(crate) use self::report::Viewer;
use self::servers::{SERVERS_MAX, Servers};
use crate::memory;
use crate::metrics::{Gauges, Metrics};
use crate::net::connections::ConnectionLimiter;
use crate::shared::context::ServerContext;

/// Time between two announcements, and between two points of a series.
const PERIOD: Duration = Duration::from_secs(5);

/// Silence after which the metadata store forgets a server.
const DEAD_AFTER: Duration = Duration::from_secs(15);

/// Silence after which a server or a member is shown as dead: two heartbeats, and some time for the third.
const SILENT_AFTER: Duration = Duration::from_secs(12);

/// Limit for an answer of the metadata store.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Time for which an answer of the metadata store is reused, so that many callers are no load.
const HOLDS: Duration = Duration::from_secs(1);

/// The longest wait of a caller for another that asks.
const TURN: Duration = Duration::from_secs(1);

/// Most jobs with heartbeats to this server that are announced, in all and of a user.
const JOBS_MAX: usize = 100;
const JOBS_OF_USER_MAX: usize = 50;

/// Most departed members that are announced.
const DEPARTED_MAX: usize = 1_000;

/// Most characters of a text, and most methods and failures, in the record of another server.
const TEXT_CHARS: usize = 300;
const LIST_MAX: usize = 64;

/// Jobs that are asked for at once.
const AT_ONCE: usize = 8;

/// Most bytes of the record of a server: its own would be shorter.
const RECORD_BYTES_MAX: usize = 1 << 20;

/// What this server knows of all servers and jobs.
#[derive(Debug)]
pub(crate) struct Board {
    context: ServerContext,
    me: MemberId,
    state: Mutex<State>,
    /// A single caller at a time asks the metadata store; other callers take the answer.
    turn: Semaphore,
}

#[derive(Debug)]
struct State {
    servers: Servers,
    jobs: Jobs,
    datasets: Vec<DatasetRecord>,
    /// Jobs with heartbeats to this server, and the time of the last.
    heard: HashMap<TaskKey, (JobName, Duration)>,
    departed: Vec<(Duration, DepartedMember)>,
    /// The last look at the metadata store, and the last with an answer.
    looked: Option<Duration>,
    answered: Stamp,
    /// The server stops, and announces itself no more.
    has_left: bool,
}

/// Sources of the own record.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) gauges: Gauges,
    pub(crate) connections: ConnectionLimiter,
    pub(crate) health: Arc<HealthProbe>,
    /// The addresses for gRPC and HTTP.
    pub(crate) grpc: String,
    pub(crate) http: String,
}

impl Board {
    pub(crate) fn new(context: ServerContext) -> Self {
        let mut me = [0; 16];
        context.random.fill(&mut me);
        let state = State {
            servers: Servers::new(),
            jobs: Jobs::default(),
            datasets: Vec::new(),
            heard: HashMap::new(),
            departed: Vec::new(),
            looked: None,
            answered: Stamp::default(),
            has_left: false,
        };
        let (me, state) = (MemberId::from_bytes(me), Mutex::new(state));
        Self { context, me, state, turn: Semaphore::new(1) }
    }

    /// Notes a heartbeat to this server.
    pub(crate) fn heard(&self, key: TaskKey, name: JobName) {
        let now = self.context.clock.monotonic();
        let mut state = self.state();
        let of_user = state.heard.values().filter(|(other, _)| other.user == name.user).count();
        let most = if name.user.is_empty() { JOBS_MAX } else { JOBS_OF_USER_MAX };
        let has_room = of_user < most && state.heard.len() < JOBS_MAX;
        if has_room || state.heard.contains_key(&key) {
            state.heard.insert(key, (name, now));
        }
    }

    /// Notes a member that leaves through this server.
    pub(crate) fn left(&self, key: TaskKey, member: MemberId, counters: TaskCounters) {
        let now = self.context.clock.monotonic();
        let mut state = self.state();
        state.jobs.left(&key, member, counters);
        if state.departed.len() < DEPARTED_MAX {
            let TaskKey { dataset, task } = key;
            let departed = DepartedMember {
                dataset: Bytes::copy_from_slice(dataset.as_bytes()),
                task_id: Bytes::copy_from_slice(task.as_bytes()),
                member: Bytes::copy_from_slice(member.as_bytes()),
                counters: Some(counters),
            };
            state.departed.push((now, departed));
        }
    }

    /// Announces this server until it stops, and collects the points of all series.
    pub(crate) async fn watch(&self, sources: &Sources) -> Infallible {
        let started = self.now();
        loop {
            self.announce(sources, started).await;
            let (monotonic, now) = (self.context.clock.monotonic(), self.now());
            {
                let mut state = self.state();
                state.servers.point(now);
                state.jobs.point(monotonic, now);
            }
            // Points lie at multiples of the period.
            let period = u64::try_from(PERIOD.as_micros()).unwrap_or(u64::MAX);
            let left = period - self.now().get() % period;
            self.context.clock.sleep(Duration::from_micros(left)).await;
        }
    }

    /// Takes this server out of the sight of others.
    pub(crate) async fn leave(&self) {
        self.state().has_left = true;
        let clock = &*self.context.clock;
        let left = async {
            // Behind an announcement under way.
            let _turn = self.turn.acquire().await;
            self.context.meta.leave(&self.beat(Bytes::new())).await
        };
        if let Ok(Err(error)) = Deadline::after(clock, TIMEOUT).bound(clock, Box::pin(left)).await {
            tracing::debug!(%error, "other servers will see this server as silent");
        }
    }

    async fn announce(&self, sources: &Sources, started: Stamp) {
        let record = self.own(sources, started).await;
        let _turn = self.turn.acquire().await;
        if self.state().has_left {
            return;
        }
        let clock = &*self.context.clock;
        let beat = self.beat(record.encode_to_vec().into());
        // The group needs no version, no secret and no lease.
        let terms = TaskTerms {
            version: Version::default(),
            secret: Default::default(),
            leased_until: Stamp::default(),
        };
        let joined = self.context.meta.join(&beat, Some(&terms));
        let joined = Deadline::after(clock, TIMEOUT).bound(clock, joined).await;
        let group = match joined {
            Ok(Ok(group)) => group,
            Ok(Err(error)) => {
                tracing::debug!(%error, "announce this server");
                None
            }
            Err(_) => None,
        };
        match group {
            Some(group) => self.look(records(group), true).await,
            // Without the metadata store, this server still knows itself.
            None => self.look(vec![(self.me, record)], false).await,
        }
    }

    /// Asks the metadata store, unless someone has just asked, or takes long to ask.
    async fn refresh(&self) {
        let clock = &*self.context.clock;
        let turn = Deadline::after(clock, TURN).bound(clock, Box::pin(self.turn.acquire())).await;
        let Ok(_turn) = turn else { return };
        let looked = self.state().looked;
        if looked.is_some_and(|at| clock.monotonic() < at + HOLDS) {
            return;
        }
        let servers = self.context.meta.group(&TaskKey::SERVERS, self.now(), DEAD_AFTER);
        let servers = Deadline::after(clock, TIMEOUT).bound(clock, servers).await;
        match servers {
            Ok(Ok(Some(group))) => self.look(records(group), true).await,
            // The next caller must not wait as long.
            _ => self.state().looked = Some(clock.monotonic()),
        }
    }

    /// Takes records of servers, all with `is_all`, and asks for the members of the jobs that they know.
    async fn look(&self, servers: Vec<(MemberId, ServerRecord)>, is_all: bool) {
        let (clock, now) = (&*self.context.clock, self.context.clock.monotonic());
        let names = {
            let mut state = self.state();
            state.servers.see(now, servers, is_all);
            state.looked = Some(now);
            if !is_all {
                return;
            }
            state.known_jobs()
        };
        let deadline = Deadline::after(clock, TIMEOUT);
        let groups = stream::iter(names.keys().copied()).map(async |key| {
            // At the time of its last heartbeat: the clocks of servers differ.
            let group = self.context.meta.group(&key, Stamp::default(), DEAD_AFTER);
            (key, deadline.bound(clock, group).await)
        });
        let groups: Vec<_> = groups.buffer_unordered(AT_ONCE).collect().await;
        let datasets = deadline.bound(clock, self.context.meta.records()).await;
        let datasets = datasets.ok().and_then(Result::ok).map(|mut datasets| {
            datasets.retain(|record| record.state != DatasetState::Ending);
            datasets.sort_by(|a, b| a.name.cmp(&b.name));
            datasets
        });
        let (now, stamp) = (clock.monotonic(), self.now());
        let mut state = self.state();
        for (key, group) in groups {
            match (group, names.get(&key)) {
                (Ok(Ok(Some(group))), Some(name)) => state.jobs.see(now, key, name, group),
                (Ok(Ok(None)), _) => state.jobs.ended(&key),
                // Without an answer all stays as it was.
                _ => {}
            }
        }
        state.take_departed();
        state.jobs.forget_old(now);
        if let Some(datasets) = datasets {
            (state.datasets, state.answered) = (datasets, stamp);
        }
        state.looked = Some(now);
    }

    fn beat(&self, record: Bytes) -> Heartbeat {
        Heartbeat {
            task: TaskKey::SERVERS,
            member: self.me,
            record,
            now: self.now(),
            dead_after: DEAD_AFTER,
            most: SERVERS_MAX,
        }
    }

    async fn own(&self, sources: &Sources, started: Stamp) -> ServerRecord {
        let clock = &*self.context.clock;
        let resident = Deadline::after(clock, TIMEOUT).bound(clock, memory::resident()).await;
        let problem = sources.health.problem().await.unwrap_or_default();
        let Sources { metrics, gauges, connections, grpc, http, .. } = sources;
        let counters = metrics.counters(gauges, connections, resident.ok().flatten());
        let failures = metrics.failures();
        let mut state = self.state();
        let now = clock.monotonic();
        let is_fresh = |at: Duration| now.saturating_sub(at) < DEAD_AFTER;
        state.heard.retain(|_, (_, at)| is_fresh(*at));
        state.departed.retain(|(at, _)| is_fresh(*at));
        ServerRecord {
            address: grpc.clone(),
            http_address: http.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: started.get(),
            heard: self.now().get(),
            problem,
            counters: Some(counters),
            jobs: state.heard.iter().map(|(key, (name, _))| wire_name(key, name)).collect(),
            departed: state.departed.iter().map(|(_, member)| member.clone()).collect(),
            failures,
        }
    }

    fn now(&self) -> Stamp {
        Stamp::at(self.context.clock.now())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }
}

impl State {
    /// The jobs that live as far as any server knows.
    fn known_jobs(&self) -> HashMap<TaskKey, JobName> {
        let own = self.heard.iter().map(|(key, (name, _))| (*key, name.clone()));
        let seen = self.jobs.living().map(|(key, name)| (*key, name.clone()));
        let told = self.servers.records().flat_map(|record| &record.jobs).filter_map(|job| {
            let name = JobName {
                dataset: job.dataset_name.clone(),
                task: job.task.clone(),
                user: job.user.clone(),
            };
            Some((task_key(&job.dataset, &job.task_id)?, name))
        });
        seen.chain(told).chain(own).collect()
    }

    /// Takes the last counts of members that left through any server.
    fn take_departed(&mut self) {
        let Self { servers, jobs, .. } = self;
        for departed in servers.records().flat_map(|record| &record.departed) {
            let key = task_key(&departed.dataset, &departed.task_id);
            let member = <[u8; 16]>::try_from(&departed.member[..]).ok();
            if let (Some(key), Some(member), Some(counters)) = (key, member, departed.counters) {
                jobs.left(&key, MemberId::from_bytes(member), counters);
            }
        }
    }
}

/// The readable records of servers.
fn records(group: TaskGroup) -> Vec<(MemberId, ServerRecord)> {
    let records = group.members.into_iter().filter_map(|(id, record)| {
        let record = (record.len() <= RECORD_BYTES_MAX).then_some(record)?;
        Some((id, bounded(ServerRecord::decode(record).ok()?)))
    });
    records.collect()
}

/// A record of another server, or of another program, within the bounds of an own record.
fn bounded(mut record: ServerRecord) -> ServerRecord {
    let texts =
        [&mut record.address, &mut record.http_address, &mut record.version, &mut record.problem];
    texts.into_iter().for_each(cut);
    record.jobs.truncate(JOBS_MAX);
    record.jobs.retain(|job| {
        let is_short = |text: &str| text.len() <= TEXT_CHARS;
        is_short(&job.dataset_name) && is_short(&job.task) && is_short(&job.user)
    });
    record.departed.truncate(DEPARTED_MAX);
    record.failures.truncate(LIST_MAX);
    for failure in &mut record.failures {
        [&mut failure.method, &mut failure.code, &mut failure.why].into_iter().for_each(cut);
    }
    let counters = record.counters.get_or_insert_default();
    counters.methods.truncate(LIST_MAX);
    for method in &mut counters.methods {
        cut(&mut method.method);
        method.up_to.truncate(LIST_MAX);
    }
    record
}

fn cut(text: &mut String) {
    if let Some((end, _)) = text.char_indices().nth(TEXT_CHARS) {
        text.truncate(end);
    }
}

fn task_key(dataset: &[u8], task: &[u8]) -> Option<TaskKey> {
    let dataset = DatasetId::from_bytes(dataset.try_into().ok()?);
    Some(TaskKey { dataset, task: TaskId::from_bytes(task.try_into().ok()?) })
}

fn wire_name(key: &TaskKey, name: &JobName) -> pb::JobName {
    let TaskKey { dataset, task } = key;
    pb::JobName {
        dataset: Bytes::copy_from_slice(dataset.as_bytes()),
        task_id: Bytes::copy_from_slice(task.as_bytes()),
        dataset_name: name.dataset.clone(),
        task: name.task.clone(),
        user: name.user.clone(),
    }
}

/// The address of a listener as others may know it: the name of the machine for a listener on all addresses.
pub(crate) fn shown_address(address: SocketAddr) -> String {
    match rustix::system::uname().nodename().to_str() {
        Ok(host) if address.ip().is_unspecified() => format!("{host}:{}", address.port()),
        _ => address.to_string(),
    }
}

/// Seconds between two times in microseconds, by clocks of servers that may differ: then the time between the two
/// sights counts, at least a second.
fn seconds_between(from: u64, to: u64, seen: Duration) -> f64 {
    let seconds = to.saturating_sub(from) as f64 / 1e6;
    if (1.0..=60.0).contains(&seconds) { seconds } else { seen.as_secs_f64().max(1.0) }
}

fn per_second(before: u64, now: u64, seconds: f64) -> f64 {
    now.saturating_sub(before) as f64 / seconds
}

#[cfg(test)]
mod tests;
