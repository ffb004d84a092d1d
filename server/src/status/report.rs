//! The answer about servers, jobs and datasets, for its caller.
//!
//! Must hold: a caller learns names of datasets that it may read, and of jobs on them. A caller without a key, on
//! servers with users, learns ids and totals. Failed requests are for admins of all datasets.

use std::cmp::Reverse;
use std::time::Duration;

use dl_format::{DatasetName, Stamp};
use dl_meta::DatasetState;
use dl_proto::{DatasetStatus, JobStatus, Kind, Role, StatusReply, StatusRequest};

use super::jobs::{self, JobName};
use super::{Board, State};
use crate::auth::Caller;
use crate::error::Error;

/// The time of the series for a caller that has none yet.
const FIRST: Duration = Duration::from_secs(15 * 60);

/// Most datasets, members and failures of an answer.
const DATASETS_MAX: usize = 1_000;
const MEMBERS_MAX: usize = 512;
const FAILURES_MAX: usize = 50;

/// The caller of a status.
#[derive(Debug, Clone)]
pub(crate) enum Viewer {
    /// A caller without a key, on servers with users.
    Unknown,
    Known(Caller),
}

impl Viewer {
    fn has_names(&self) -> bool {
        matches!(self, Self::Known(_))
    }

    fn may_read(&self, name: &DatasetName) -> bool {
        matches!(self, Self::Known(caller) if caller.may(Role::Read, name))
    }

    fn sees(&self, job: &JobName) -> bool {
        match self {
            Self::Unknown => true,
            Self::Known(Caller::Everybody) => true,
            Self::Known(_) => {
                DatasetName::new(job.dataset.clone()).is_ok_and(|name| self.may_read(&name))
            }
        }
    }

    /// Whether a caller may know the nodes of a job: its own, or as an admin of its dataset.
    fn knows_nodes(&self, job: &JobName) -> bool {
        match self {
            Self::Unknown => false,
            Self::Known(Caller::Everybody) => true,
            Self::Known(caller) => {
                let name = DatasetName::new(job.dataset.clone());
                caller.user() == job.user || name.is_ok_and(|name| caller.may(Role::Admin, &name))
            }
        }
    }

    fn is_admin(&self) -> bool {
        matches!(self, Self::Known(caller) if caller.may_all(Role::Admin))
    }
}

impl Board {
    /// The status of servers, jobs and datasets, a second old at most while the metadata store answers.
    pub(crate) async fn status(
        &self,
        viewer: &Viewer,
        request: &StatusRequest,
    ) -> Result<StatusReply, Error> {
        self.refresh().await;
        let now = self.now();
        let window = match request.window {
            0 => FIRST,
            seconds => Duration::from_secs(seconds.into()),
        };
        let window = u64::try_from(window.as_micros()).unwrap_or(u64::MAX);
        let since = match request.since {
            0 => Stamp::new(now.get().saturating_sub(window)),
            since => Stamp::new(since),
        };
        let state = self.state();
        let mut reply = StatusReply {
            now: now.get(),
            user: match viewer {
                Viewer::Unknown => String::new(),
                Viewer::Known(caller) => caller.user().to_owned(),
            },
            is_limited: !viewer.has_names(),
            servers: state.servers.statuses(self.me, viewer.has_names()),
            jobs: Vec::new(),
            answered: state.answered.get(),
            datasets: state.dataset_statuses(viewer),
            members: Vec::new(),
            series: Some(state.servers.history.after(since, request.step)),
            failures: Vec::new(),
        };
        if viewer.is_admin() {
            reply.failures = state.servers.failures(FAILURES_MAX);
        }
        if request.job.is_empty() {
            reply.jobs = state.job_statuses(viewer);
        } else {
            let key = jobs::key_of(&request.job);
            let job = key.and_then(|key| state.jobs.get(&key));
            let job = job.filter(|job| viewer.sees(&job.name)).ok_or_else(|| {
                let why = "no such job in the last day, as far as this server knows";
                Error::new(Kind::NotFound, "find", "the job", why)
            })?;
            if viewer.has_names() {
                reply.members = job.members(MEMBERS_MAX, viewer.knows_nodes(&job.name));
            }
            reply.series = Some(job.history().after(since, request.step));
            reply.jobs.extend(key.map(|key| job.status(&key, viewer.has_names())));
        }
        Ok(reply)
    }
}

impl State {
    /// Living jobs, then jobs that ended, the last first.
    fn job_statuses(&self, viewer: &Viewer) -> Vec<JobStatus> {
        let seen = self.jobs.iter().filter(|(_, job)| viewer.sees(&job.name));
        let mut jobs: Vec<_> = seen.map(|(key, job)| job.status(key, viewer.has_names())).collect();
        jobs.sort_by(|a, b| match (a.is_living, b.is_living) {
            (true, true) => (&a.task, &a.dataset, &a.id).cmp(&(&b.task, &b.dataset, &b.id)),
            (false, false) => Reverse(a.heard).cmp(&Reverse(b.heard)),
            (one, other) => other.cmp(&one),
        });
        jobs
    }

    fn dataset_statuses(&self, viewer: &Viewer) -> Vec<DatasetStatus> {
        let seen = self.datasets.iter().filter(|record| viewer.may_read(&record.name));
        let statuses = seen.take(DATASETS_MAX).map(|record| DatasetStatus {
            name: record.name.to_string(),
            id: record.id.to_string(),
            problem: match record.state {
                DatasetState::Live | DatasetState::Ending => String::new(),
                DatasetState::Recovering => {
                    format!("refused until its recovery: dlcmd recover dl://{}", record.name)
                }
            },
        });
        statuses.collect()
    }
}
