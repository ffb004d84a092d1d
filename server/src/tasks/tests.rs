//! Training jobs: their members, their version, its lease, and purges beside them.

use std::sync::Arc;

use dl_format::{DatasetId, MemberId, SnapshotObject};
use dl_proto::{KeyHash, PurgeProgress, PurgeRequest, TaskCounters, TaskMember, User, Users};
use dl_runtime::{Clock, ManualClock};
use dl_store::StoreExt;

use super::*;
use crate::auth::People;
use crate::datasets::catalog;
use crate::recovery::recover;
use crate::snapshot;
use crate::testing::{self, Rig, rig};

const HOUR: Duration = Duration::from_secs(3_600);

/// A dataset `pets`, and the server that jobs ask.
struct Scene {
    rig: Rig,
    id: DatasetId,
    snapshots: Snapshots,
    metrics: TaskMetrics,
    board: Board,
}

fn user(name: &str) -> Caller {
    user_with(name, "read:*")
}

fn user_with(name: &str, grant: &str) -> Caller {
    let grants = vec![grant.parse().unwrap()];
    let users = [(name.parse().unwrap(), User::new(KeyHash::of_nobody(), grants))];
    let people = People::parse(&Users(users.into_iter().collect()).to_string()).unwrap();
    Caller::Known(people.person(name).unwrap())
}

impl Scene {
    async fn new() -> Self {
        let rig = rig().await;
        let id = rig.create("pets").await;
        let metrics = TaskMetrics::new(Arc::<ManualClock>::clone(&rig.clock));
        let board = Board::new(rig.context.clone());
        Self { rig, id, snapshots: Snapshots::new(Arc::default()), metrics, board }
    }

    /// Adds a file; gives the version with it.
    async fn change(&self, number: u8) -> Version {
        self.rig.store_chunk(self.id, number).await;
        recover::adopt_unlogged(&self.rig.context, &testing::dataset("pets")).await.unwrap();
        self.newest().await
    }

    async fn newest(&self) -> Version {
        self.rig.context.meta.outline(self.id).await.unwrap().unwrap().version
    }

    fn request(&self, member: u8) -> JoinTask {
        JoinTask {
            dataset: self.id,
            version: None,
            task: "train".parse().unwrap(),
            member: TaskMember {
                id: MemberId::from_bytes([member; 16]),
                address: format!("10.0.0.{member}:7000"),
                key_fingerprint: None,
                memory: 7,
                chunks: None,
            },
            leaving: false,
            counters: TaskCounters::default(),
        }
    }

    async fn ask(&self, caller: &Caller, request: JoinTask) -> Result<TaskMembership, Error> {
        let context = &self.rig.context;
        let record = catalog::by_id(context, self.id).await?;
        let watchers = (&self.metrics, &self.board);
        join(context, &self.snapshots, watchers, caller, &record, request).await
    }

    async fn join(&self, member: u8) -> TaskMembership {
        self.ask(&Caller::Everybody, self.request(member)).await.unwrap()
    }

    async fn join_at(&self, member: u8, version: Version) -> Result<TaskMembership, Error> {
        let request = JoinTask { version: Some(version), ..self.request(member) };
        self.ask(&Caller::Everybody, request).await
    }

    async fn leave(&self, member: u8) {
        let request = JoinTask { leaving: true, ..self.request(member) };
        self.ask(&Caller::Everybody, request).await.unwrap();
    }

    /// The users of the jobs whose leases a caller sees.
    async fn seen_by(&self, caller: &Caller) -> Vec<(String, bool)> {
        let record = catalog::by_id(&self.rig.context, self.id).await.unwrap();
        let seen = leases(&self.rig.context, caller, &record).await.unwrap();
        seen.into_iter().map(|lease| (lease.user, lease.in_use)).collect()
    }

    async fn end(&self, caller: &Caller, of: &str) -> Result<u64, Kind> {
        let record = catalog::by_id(&self.rig.context, self.id).await.unwrap();
        let task = task_id(of, &"train".parse().unwrap());
        let ended = end_leases(&self.rig.context, caller, &record, task).await;
        ended.map_err(|error| error.kind)
    }

    async fn leases(&self) -> Vec<Leased> {
        leases::living(&self.rig.context, self.id).await.unwrap()
    }

    /// Versions of which anything is stored, once old ones were swept.
    async fn swept(&self) -> Vec<Version> {
        let newest = self.newest().await;
        let left = snapshot::sweep(&self.rig.context, self.id, newest, false).await.unwrap();
        left.into_iter().map(|older| older.version).collect()
    }

    async fn purge(&self, grace: Duration, force: bool) -> Result<PurgeProgress, Error> {
        let dataset = Some(testing::dataset("pets"));
        let request = PurgeRequest { dataset, grace, dry_run: false, force };
        let (ended, steps) = self.rig.purge(request).await;
        ended.map(|()| steps.last().cloned().unwrap())
    }
}

#[tokio::test]
async fn the_first_member_fixes_the_version_and_later_ones_get_it() {
    let scene = Scene::new().await;
    let first = scene.change(1).await;
    let began = scene.join(1).await;
    assert_eq!((began.version, began.members.len(), began.secret.len()), (Some(first), 1, 32));
    let second = scene.change(2).await;
    let joined = scene.join(2).await;
    assert_eq!((joined.version, joined.members.len()), (Some(first), 2));
    assert_eq!((joined.secret, joined.call_again), (began.secret, HEARTBEAT));
    let joined = scene.join_at(3, second).await.unwrap();
    assert_eq!((joined.version, joined.members.len()), (Some(first), 3));
    assert_eq!(scene.leases().await.len(), 1);
}

#[tokio::test]
async fn a_silent_job_resumes_with_its_leased_version() {
    let scene = Scene::new().await;
    let first = scene.change(1).await;
    let began = scene.join(1).await;
    scene.rig.clock.advance(Duration::from_secs(10));
    assert_eq!(scene.join(2).await.members.len(), 2);
    scene.rig.clock.advance(Duration::from_secs(5));
    assert_eq!(scene.join(2).await.members.len(), 1, "the first one was silent for 15 s");
    scene.rig.clock.advance(DEAD_AFTER);
    let newest = scene.change(2).await;
    let again = scene.join(1).await;
    assert_eq!((again.version, again.members.len()), (Some(first), 1));
    assert_ne!(again.secret, began.secret);
    scene.rig.clock.advance(DEAD_AFTER);
    // A job that wants another one gets it, and the lease on the first one ends.
    assert_eq!(scene.join_at(1, newest).await.unwrap().version, Some(newest));
    let leased: Vec<_> = scene.leases().await.iter().map(|leased| leased.version).collect();
    assert_eq!(leased, [newest]);
}

#[tokio::test]
async fn a_lease_is_renewed_at_half_and_ends_with_the_last_member() {
    let scene = Scene::new().await;
    scene.change(1).await;
    let began = scene.join(1).await;
    let creates = scene.rig.counters.counts().creates;
    let mut joined = began.clone();
    let pause = Duration::from_secs(10);
    let beats = (LEASE / 2).as_secs() / pause.as_secs();
    for _ in 0..beats {
        scene.rig.clock.advance(pause);
        assert_eq!(joined.leased_until, began.leased_until);
        joined = scene.join(1).await;
    }
    assert_eq!(joined.leased_until, began.leased_until, "exactly half is left");
    assert_eq!(scene.rig.counters.counts().creates, creates);
    scene.rig.clock.advance(pause);
    joined = scene.join(1).await;
    assert_eq!(joined.leased_until, later(Stamp::at(scene.rig.clock.now()), LEASE));
    let leases = scene.leases().await;
    assert_eq!((leases.len(), leases[0].until), (1, joined.leased_until));
    scene.join(2).await;
    scene.leave(1).await;
    assert_eq!(scene.leases().await.len(), 1);
    scene.leave(2).await;
    assert_eq!(scene.leases().await, []);
}

#[tokio::test]
async fn a_lease_that_cannot_be_renewed_yet_holds_to_its_end() {
    let scene = Scene::new().await;
    scene.change(1).await;
    let mut joined = scene.join(1).await;
    let until = joined.leased_until;
    let pause = Duration::from_secs(14);
    while scene.rig.clock.now() + pause + LEASE / 2 < until.time() {
        scene.rig.clock.advance(pause);
        joined = scene.join(1).await;
    }
    scene.rig.clock.advance(pause);
    scene
        .rig
        .store
        .script("create", [Some(dl_runtime::fault::Fault::Before(dl_store::Kind::Full))]);
    assert_eq!(scene.join(1).await.leased_until, joined.leased_until);
    assert!(scene.join(1).await.leased_until > until);
}

#[tokio::test]
async fn two_users_with_one_task_name_have_two_tasks() {
    let scene = Scene::new().await;
    scene.change(1).await;
    let [ada, bob] = [user("ada"), user("bob")];
    let first = scene.ask(&ada, scene.request(1)).await.unwrap();
    let second = scene.ask(&bob, scene.request(2)).await.unwrap();
    assert_ne!(first.secret, second.secret);
    assert_eq!((first.members.len(), second.members.len()), (1, 1));
    assert_eq!(
        leases::holders(&scene.rig.context, scene.id).await.unwrap(),
        ["task train of user ada", "task train of user bob"]
    );
}

#[tokio::test]
async fn a_dead_lease_is_ended_by_its_user_or_an_admin() {
    let scene = Scene::new().await;
    scene.change(1).await;
    let [ada, bob, root] = [user("ada"), user("bob"), user_with("root", "admin:pets")];
    for (member, caller) in [(1, &ada), (2, &bob)] {
        scene.ask(caller, scene.request(member)).await.unwrap();
    }
    let ada_in_use = |in_use| ("ada".to_owned(), in_use);
    assert_eq!(scene.seen_by(&ada).await, [ada_in_use(true)]);
    assert_eq!(scene.seen_by(&root).await.len(), 2);
    assert_eq!(scene.end(&ada, "ada").await, Err(Kind::Conflict));
    // The look at the members registers none and removes none.
    let request = JoinTask { version: None, ..scene.request(1) };
    assert_eq!(scene.ask(&ada, request).await.unwrap().members.len(), 1);
    scene.rig.clock.advance(DEAD_AFTER);
    assert_eq!(scene.seen_by(&ada).await, [ada_in_use(false)]);
    assert_eq!(scene.end(&bob, "ada").await, Err(Kind::NotFound));
    assert_eq!(scene.end(&ada, "ada").await, Ok(1));
    assert_eq!(scene.end(&ada, "ada").await, Err(Kind::NotFound));
    assert_eq!(scene.end(&root, "bob").await, Ok(1));
    assert_eq!(scene.leases().await, []);
    // The next job of the name reads the newest version.
    let newest = scene.change(2).await;
    assert_eq!(scene.ask(&ada, scene.request(1)).await.unwrap().version, Some(newest));
}

/// Keeps S-45: the sweep keeps a leased version, and removes a lease that has ended.
#[tokio::test]
async fn a_leased_version_stays_until_its_lease_ends() {
    let scene = Scene::new().await;
    let first = scene.change(1).await;
    scene.join(1).await;
    scene.change(2).await;
    scene.rig.clock.advance(LEASE - HOUR);
    assert_eq!(scene.swept().await, [first]);
    scene.rig.clock.advance(HOUR);
    // The sweep has known for an hour that there is a newer one.
    assert_eq!(scene.swept().await, []);
    let stored = dl_format::snapshots_prefix(scene.id);
    let stored =
        scene.rig.context.store.list_sorted(&crate::shared::context::prefix(stored)).await.unwrap();
    assert_eq!(stored.len(), 0, "{stored:?}");
}

#[tokio::test]
async fn a_damaged_lease_counts_until_it_ends() {
    let scene = Scene::new().await;
    let first = scene.change(1).await;
    scene.join(1).await;
    let leased = scene.leases().await[0];
    let object = SnapshotObject::Lease { until: leased.until, task: leased.task };
    let key = crate::shared::context::key(dl_format::snapshot_key(scene.id, first, object));
    scene.rig.replace(&key, "damaged").await;
    scene.change(2).await;
    scene.rig.clock.advance(2 * HOUR);
    assert_eq!(scene.swept().await, [first]);
    let holders = leases::holders(&scene.rig.context, scene.id).await.unwrap();
    assert!(
        matches!(holders.as_slice(), [one] if one.contains("is damaged, for 22 h")),
        "{holders:?}"
    );
}

/// Keeps S-45.
#[tokio::test]
async fn a_purge_without_grace_needs_force_beside_a_lease() {
    let scene = Scene::new().await;
    scene.change(1).await;
    scene.ask(&user("ada"), scene.request(1)).await.unwrap();
    let refused = scene.purge(Duration::ZERO, false).await.unwrap_err();
    assert_eq!(refused.kind, Kind::Conflict);
    assert!(refused.chain().contains("task train of user ada"), "{}", refused.chain());
    for (grace, force) in [(Duration::ZERO, true), (HOUR, false)] {
        let done = scene.purge(grace, force).await.unwrap();
        assert!(done.done && done.problems.is_empty(), "{done:?}");
        assert_eq!(done.leased_by, ["task train of user ada"]);
    }
    scene.ask(&user("ada"), JoinTask { leaving: true, ..scene.request(1) }).await.unwrap();
    assert_eq!(scene.purge(Duration::ZERO, false).await.unwrap().leased_by, [""; 0]);
}
