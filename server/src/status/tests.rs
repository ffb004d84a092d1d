//! Several servers over one metadata store, and the jobs that call only some of them.

use dl_proto::{
    JobStatus, KeyHash, Kind, MemberRecord, StatusReply, StatusRequest, TaskMember, User, Users,
};
use dl_runtime::{Clock, ManualClock};

use super::*;
use crate::api::service::Service;
use crate::auth::{Caller, People};
use crate::error::Error;
use crate::testing::{Rig, rig};

struct Server {
    board: Arc<Board>,
    sources: Sources,
    started: Stamp,
}

impl Server {
    fn new(rig: &Rig, address: &str) -> Self {
        let context = rig.context.clone();
        let clock: Arc<dyn Clock> = Arc::<ManualClock>::clone(&rig.clock);
        let metrics = Arc::new(Metrics::new(Arc::clone(&clock)));
        let board = Arc::new(Board::new(context.clone()));
        let (snapshots, tasks) = (metrics.snapshots(), metrics.tasks());
        let service = Service::new(context.clone(), snapshots, tasks, Arc::clone(&board));
        let sources = Sources {
            metrics,
            gauges: service.gauges(),
            connections: ConnectionLimiter::new(9, PERIOD, Vec::new(), clock),
            health: Arc::new(HealthProbe::new(context)),
            grpc: address.to_owned(),
            http: String::new(),
        };
        let started = board.now();
        Self { board, sources, started }
    }

    async fn announce(&self) {
        self.board.announce(&self.sources, self.started).await;
        let now = self.board.now();
        self.board.state().servers.point(now);
        let monotonic = self.board.context.clock.monotonic();
        self.board.state().jobs.point(monotonic, now);
    }

    async fn status(&self, viewer: &Viewer, job: &str) -> Result<StatusReply, Error> {
        let request = StatusRequest { job: job.to_owned(), ..StatusRequest::default() };
        self.board.status(viewer, &request).await
    }

    async fn jobs(&self) -> Vec<JobStatus> {
        self.status(&Viewer::Known(Caller::Everybody), "").await.unwrap().jobs
    }
}

fn key(rig_dataset: DatasetId) -> TaskKey {
    TaskKey { dataset: rig_dataset, task: TaskId::from_bytes([7; 16]) }
}

fn name() -> JobName {
    JobName { dataset: "pets".to_owned(), task: "train".to_owned(), user: "ann".to_owned() }
}

/// A heartbeat of a member through one of the servers.
async fn beat(rig: &Rig, server: &Server, key: TaskKey, member: u8, counters: TaskCounters) {
    let now = Stamp::at(rig.clock.now());
    let id = MemberId::from_bytes([member; 16]);
    let address = format!("10.0.0.{member}:7000");
    let member = TaskMember { id, address, key_fingerprint: None, memory: 100, chunks: None };
    let heartbeat = Heartbeat {
        task: key,
        member: id,
        record: MemberRecord { member, counters, heard: now }.to_bytes().into(),
        now,
        dead_after: DEAD_AFTER,
        most: 100,
    };
    let terms =
        TaskTerms { version: Version::default(), secret: [1; 32], leased_until: Stamp::default() };
    rig.context.meta.join(&heartbeat, Some(&terms)).await.unwrap();
    server.board.heard(key, name());
}

fn counters(hits: u64, waited_seconds: u64) -> TaskCounters {
    let waited = waited_seconds * 1_000_000;
    TaskCounters { hits, waited, workers: 2, memory_used: 50, ..TaskCounters::default() }
}

#[tokio::test]
async fn any_server_knows_a_job_that_calls_only_one_of_them() {
    let rig = rig().await;
    let id = rig.create("pets").await;
    let servers = ["a:1", "b:1", "c:1"].map(|address| Server::new(&rig, address));
    for (round, hits) in [(0, 0), (1, 500)] {
        beat(&rig, &servers[0], key(id), 1, counters(hits, 2 * round)).await;
        beat(&rig, &servers[0], key(id), 2, counters(2 * hits, 0)).await;
        for server in &servers {
            server.announce().await;
        }
        rig.clock.advance(PERIOD);
    }
    for server in &servers {
        let jobs = server.jobs().await;
        let [job] = &jobs[..] else { panic!("{jobs:?}") };
        let of = job.counters.unwrap();
        assert_eq!((&job.task[..], &job.dataset[..], &job.user[..]), ("train", "pets", "ann"));
        assert_eq!((job.is_living, job.members, job.workers, of.hits), (true, 2, 4, 1_500));
        assert_eq!((of.memory_used, job.memory), (100, 200));
        let rates = job.rates.unwrap();
        assert_eq!((rates.files, rates.waiting), (300.0, 0.1));
        let whole = server.status(&Viewer::Known(Caller::Everybody), &job.id).await.unwrap();
        // The member that waits most is first.
        let first = &whole.members[0];
        assert_eq!((&first.address[..], first.rates.unwrap().waiting), ("10.0.0.1:7000", 0.2));
        let series = whole.series.unwrap();
        let files = series.lines.iter().find(|line| line.name == "files").unwrap();
        assert_eq!(files.points.last(), Some(&300.0));
        assert_eq!(whole.servers.len(), 3);
        assert!(whole.servers.iter().all(|server| server.is_living && server.problem.is_empty()));
    }
    // One member leaves through the first server, with more work; the other is killed.
    servers[0].board.left(key(id), MemberId::from_bytes([1; 16]), counters(600, 4));
    for server in &servers {
        server.announce().await;
        let jobs = server.jobs().await;
        assert_eq!(jobs[0].counters.unwrap().hits, 1_600);
    }
    rig.clock.advance(DEAD_AFTER);
    for server in &servers {
        server.announce().await;
    }
    for server in &servers {
        let jobs = server.jobs().await;
        assert_eq!((jobs[0].is_living, jobs[0].members), (false, 0));
        assert_eq!(jobs[0].counters.unwrap().hits, 1_600, "the last totals stay");
    }
}

#[tokio::test]
async fn a_silent_server_stays_listed_and_a_left_one_does_not() {
    let rig = rig().await;
    let [first, second] = ["a:1", "b:1"].map(|address| Server::new(&rig, address));
    first.announce().await;
    second.announce().await;
    first.announce().await;
    rig.clock.advance(DEAD_AFTER);
    first.announce().await;
    let known = first.status(&Viewer::Known(Caller::Everybody), "").await.unwrap().servers;
    let states: Vec<_> = known.iter().map(|one| (one.is_living, one.is_me)).collect();
    assert_eq!(states, [(true, true), (false, false)]);
    second.announce().await;
    second.board.leave().await;
    first.announce().await;
    let known = first.status(&Viewer::Known(Caller::Everybody), "").await.unwrap().servers;
    assert!(!known[1].is_living);
}

/// Keeps S-87.
#[tokio::test]
async fn a_caller_sees_what_its_roles_allow() {
    let rig = rig().await;
    let (pets, _cars) = (rig.create("pets").await, rig.create("cars").await);
    let server = Server::new(&rig, "a:1");
    beat(&rig, &server, key(pets), 1, counters(5, 0)).await;
    server.announce().await;
    let user = |grant: &str| {
        let grants = vec![grant.parse().unwrap()];
        let users = [("ann".parse().unwrap(), User::new(KeyHash::of_nobody(), grants))];
        let people = People::parse(&Users(users.into_iter().collect()).to_string()).unwrap();
        Viewer::Known(Caller::Known(people.person("ann").unwrap()))
    };
    let seen = async |viewer: Viewer| {
        let status = server.status(&viewer, "").await.unwrap();
        let datasets: Vec<_> = status.datasets.into_iter().map(|dataset| dataset.name).collect();
        let jobs: Vec<_> = status.jobs.into_iter().map(|job| job.task).collect();
        (datasets.join(" "), jobs.join(" "), status.is_limited)
    };
    let text = str::to_owned;
    assert_eq!(seen(user("admin:*")).await, (text("cars pets"), text("train"), false));
    assert_eq!(seen(user("read:pets")).await, (text("pets"), text("train"), false));
    assert_eq!(seen(user("read:cars")).await, (text("cars"), String::new(), false));
    // Ids instead of names.
    let id = TaskId::from_bytes([7; 16]).to_string();
    assert_eq!(seen(Viewer::Unknown).await, (String::new(), id, true));
    let job = jobs::id_of(&key(pets));
    let refused = server.status(&user("read:cars"), &job).await.unwrap_err();
    assert_eq!(refused.kind, Kind::NotFound);
    assert!(server.status(&user("read:cars"), "nonsense").await.is_err());
    assert!(server.status(&user("read:pets"), &job).await.is_ok());
}
