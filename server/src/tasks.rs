//! Training jobs: their members, the version they read, and its lease.
//!
//! Must hold: a job gets a version only while a lease on it is stored. The end of the valid lease is in the
//! metadata store; the lease ends with the last member.

use std::time::Duration;

use bytes::Bytes;
use dl_format::{Lease, Stamp, TaskId, TaskName, Version};
use dl_meta::{DatasetRecord, Heartbeat, TaskGroup, TaskKey, TaskTerms};
use dl_proto::{
    JoinTask, Kind, MemberRecord, Role, TASK_MEMBERS_MAX, TaskLease, TaskMembership, task_id,
};
use dl_runtime::Deadline;

use crate::auth::Caller;
use crate::error::{Doing, Error};
use crate::metrics::TaskMetrics;
use crate::shared::context::ServerContext;
use crate::snapshot::Snapshots;
use crate::snapshot::leases::{self, LEASE, Leased};
use crate::status::{Board, JobName};

/// Time between two heartbeats of a member.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Silence after which a member is dead: three heartbeats.
const DEAD_AFTER: Duration = Duration::from_secs(15);

/// Part of a server's patience for builds of snapshots: the client must get the timeout as an answer.
const BUILD_WAIT_PART: u32 = 3;

const ACTION: &str = "join task";

/// Registers a member of a job, records its heartbeat, or removes it.
pub(crate) async fn join(
    context: &ServerContext,
    snapshots: &Snapshots,
    (metrics, board): (&TaskMetrics, &Board),
    caller: &Caller,
    record: &DatasetRecord,
    request: JoinTask,
) -> Result<TaskMembership, Error> {
    let JoinTask { dataset, version, task: name, member, leaving, counters } = request;
    let key = TaskKey { dataset, task: task_id(caller.user(), &name) };
    let (id, now) = (member.id, Stamp::at(context.clock.now()));
    let heartbeat = Heartbeat {
        task: key,
        member: id,
        record: MemberRecord { member, counters, heard: now }.to_bytes().into(),
        now,
        dead_after: DEAD_AFTER,
        most: TASK_MEMBERS_MAX,
    };
    let job = Job { context, snapshots, name: &name, user: caller.user(), heartbeat: &heartbeat };
    if leaving {
        metrics.left(&key, id, counters);
        board.left(key, id, counters);
        job.leave().await?;
        let (members, secret, leased_until) = (Vec::new(), Bytes::new(), Stamp::default());
        let call_again = HEARTBEAT;
        return Ok(TaskMembership { version, members, secret, call_again, leased_until });
    }
    let group = match job.beat(None).await? {
        Some(group) if job.is_fresh(group.terms.leased_until) => group,
        Some(group) => job.renew(group).await?,
        None => job.begin(version).await?,
    };
    // The page of metrics needs no key, so users' names are replaced by ids.
    let labels = match caller {
        Caller::Everybody => [name.to_string(), record.name.to_string()],
        Caller::Known(_) => [key.task.to_string(), dataset.to_string()],
    };
    metrics.heard(key, labels, id, counters);
    let (dataset, task) = (record.name.to_string(), name.to_string());
    board.heard(key, JobName { dataset, task, user: caller.user().to_owned() });
    Ok(job.membership(group))
}

/// The leases on a dataset: all for its admins, else the caller's own.
pub(crate) async fn leases(
    context: &ServerContext,
    caller: &Caller,
    record: &DatasetRecord,
) -> Result<Vec<TaskLease>, Error> {
    let mut found = Vec::new();
    for (task, leased) in leases::last_of_each(leases::living(context, record.id).await?) {
        let Some(lease) = leases::read(context, record.id, leased).await? else { continue };
        let (task_name, user) = match lease {
            Ok(lease) => (Some(lease.task), lease.user),
            Err(_) => (None, String::new()),
        };
        let Leased { version, until, .. } = leased;
        let in_use = has_members(context, TaskKey { dataset: record.id, task }).await?;
        let lease = TaskLease { id: task, task: task_name, user, version, until, in_use };
        if is_own(caller, &lease) || caller.may(Role::Admin, &record.name) {
            found.push(lease);
        }
    }
    Ok(found)
}

/// Ends the leases of a job without living members; returns their number.
pub(crate) async fn end_leases(
    context: &ServerContext,
    caller: &Caller,
    record: &DatasetRecord,
    task: TaskId,
) -> Result<u64, Error> {
    let visible = leases(context, caller, record).await?;
    let failed = |kind, why| Error::new(kind, "end the lease of", task, why);
    let Some(lease) = visible.into_iter().find(|lease| lease.id == task) else {
        let why = "the task leases no version of the dataset, or belongs to another user";
        return Err(failed(Kind::NotFound, why));
    };
    if lease.in_use {
        let why = "the task has living agents; stop them with `dlcmd agent stop`: the last one ends the lease";
        return Err(failed(Kind::Conflict, why));
    }
    let mut ended = 0;
    for leased in leases::living(context, record.id).await? {
        // A later lease belongs to a job of the same name that has begun meanwhile.
        if leased.task == task && leased.until <= lease.until {
            leases::remove(context, record.id, leased).await?;
            ended += 1;
        }
    }
    tracing::info!(%task, %caller, dataset = %record.name, "the lease of a training job was ended");
    Ok(ended)
}

fn is_own(caller: &Caller, lease: &TaskLease) -> bool {
    lease.task.as_ref().is_some_and(|task| task_id(caller.user(), task) == lease.id)
}

/// Whether a job has living members.
async fn has_members(context: &ServerContext, task: TaskKey) -> Result<bool, Error> {
    let group = context.meta.group(&task, Stamp::at(context.clock.now()), DEAD_AFTER).await;
    Ok(group.doing("find the members of task", task.task)?.is_some())
}

#[derive(Clone, Copy)]
struct Job<'a> {
    context: &'a ServerContext,
    snapshots: &'a Snapshots,
    name: &'a TaskName,
    user: &'a str,
    heartbeat: &'a Heartbeat,
}

impl Job<'_> {
    async fn beat(&self, terms: Option<&TaskTerms>) -> Result<Option<TaskGroup>, Error> {
        self.context.meta.join(self.heartbeat, terms).await.doing(ACTION, self.name)
    }

    async fn leave(&self) -> Result<(), Error> {
        let ended = self.context.meta.leave(self.heartbeat).await.doing("leave task", self.name)?;
        let Some(terms) = ended else { return Ok(()) };
        tracing::info!(task = %self.name, user = self.user, "the last member of a training job left");
        self.remove(self.leased(&terms)).await
    }

    /// Fixes the version of a job, unless another member was first.
    async fn begin(&self, wanted: Option<Version>) -> Result<TaskGroup, Error> {
        let version = self.version(wanted).await?;
        let mut secret = [0; 32];
        self.context.random.fill(&mut secret);
        let terms = TaskTerms { version, secret, leased_until: self.end() };
        self.lease(&terms).await?;
        // The version may have been swept before the lease.
        if let Err(error) = self.find(Some(version)).await {
            self.remove(self.leased(&terms)).await?;
            return Err(error);
        }
        let group = self.beat(Some(&terms)).await?.ok_or_else(|| {
            let why = "the metadata store began no task";
            Error::new(Kind::Internal, ACTION, self.name, why)
        })?;
        // The lease may have been ended before the job had a member.
        self.lease(&group.terms).await?;
        self.tidy(&terms, &group.terms).await?;
        let (dataset, id) = (self.heartbeat.task.dataset, self.heartbeat.task.task);
        tracing::info!(task = %self.name, user = self.user, %id, %dataset, %version, "a training job began");
        Ok(group)
    }

    /// The wanted version; else the leased version, if members were silent or metadata was lost; else the
    /// newest.
    async fn version(&self, wanted: Option<Version>) -> Result<Version, Error> {
        if wanted.is_some() {
            return self.find(wanted).await;
        }
        let leased = self.leases().await?.into_iter().max_by_key(|leased| leased.until);
        match self.find(leased.map(|leased| leased.version)).await {
            Err(error) if error.kind == Kind::NotFound && leased.is_some() => self.find(None).await,
            found => found,
        }
    }

    /// A version with a snapshot; the newest version's snapshot is built.
    async fn find(&self, wanted: Option<Version>) -> Result<Version, Error> {
        let (clock, dataset) = (&*self.context.clock, self.heartbeat.task.dataset);
        let limit = self.context.limits.patience / BUILD_WAIT_PART;
        let found = Box::pin(self.snapshots.find(self.context, dataset, wanted));
        match Deadline::after(clock, limit).bound(clock, found).await {
            Ok(found) => Ok(found?.version),
            Err(_) => {
                let why = "the snapshot of its version is being built; try again";
                Err(Error::new(Kind::Unavailable, ACTION, self.name, why))
            }
        }
    }

    /// Renews the lease. A failure is an error only after the old lease ended.
    async fn renew(&self, group: TaskGroup) -> Result<TaskGroup, Error> {
        let terms = TaskTerms { leased_until: self.end(), ..group.terms.clone() };
        let renewed = async {
            self.lease(&terms).await?;
            let renewed = self.beat(Some(&terms)).await?;
            if let Some(renewed) = &renewed {
                self.tidy(&terms, &renewed.terms).await?;
            }
            Ok(renewed)
        };
        match renewed.await {
            Ok(renewed) => Ok(renewed.unwrap_or(group)),
            Err(error) if group.terms.leased_until > self.heartbeat.now => {
                let why = Error::chain(&error);
                tracing::warn!(task = %self.name, why, "the lease of a training job can't be renewed yet");
                Ok(group)
            }
            Err(error) => Err(error),
        }
    }

    /// Removes leases older than the valid lease, and the `offered` lease if another is valid.
    async fn tidy(&self, offered: &TaskTerms, holds: &TaskTerms) -> Result<(), Error> {
        let (offered, holds) = (self.leased(offered), self.leased(holds));
        for leased in self.leases().await? {
            if leased != holds && (leased == offered || leased.until < holds.until) {
                self.remove(leased).await?;
            }
        }
        Ok(())
    }

    async fn leases(&self) -> Result<Vec<Leased>, Error> {
        let mut leases = leases::living(self.context, self.heartbeat.task.dataset).await?;
        leases.retain(|leased| leased.task == self.heartbeat.task.task);
        Ok(leases)
    }

    fn leased(&self, terms: &TaskTerms) -> Leased {
        let TaskTerms { version, leased_until, .. } = *terms;
        Leased { version, until: leased_until, task: self.heartbeat.task.task }
    }

    async fn lease(&self, terms: &TaskTerms) -> Result<(), Error> {
        let TaskKey { dataset, task } = self.heartbeat.task;
        let TaskTerms { version, leased_until: until, .. } = *terms;
        let (user, name) = (self.user.to_owned(), self.name.clone());
        let lease = Lease { dataset, version, until, user, task: name };
        leases::create(self.context, &lease, task).await
    }

    async fn remove(&self, leased: Leased) -> Result<(), Error> {
        leases::remove(self.context, self.heartbeat.task.dataset, leased).await
    }

    fn end(&self) -> Stamp {
        later(self.heartbeat.now, LEASE)
    }

    fn is_fresh(&self, until: Stamp) -> bool {
        until >= later(self.heartbeat.now, LEASE / 2)
    }

    fn membership(&self, group: TaskGroup) -> TaskMembership {
        let mut members = Vec::with_capacity(group.members.len());
        for record in group.members.values() {
            match MemberRecord::from_bytes(record) {
                Ok(record) => members.push(record.member),
                Err(error) => tracing::warn!(task = %self.name, %error, "a member can't be read"),
            }
        }
        TaskMembership {
            version: Some(group.terms.version),
            members,
            secret: Bytes::copy_from_slice(&group.terms.secret),
            call_again: HEARTBEAT,
            leased_until: group.terms.leased_until,
        }
    }
}

fn later(time: Stamp, by: Duration) -> Stamp {
    let micros = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
    Stamp::new(time.get().saturating_add(micros))
}

#[cfg(test)]
mod tests;
