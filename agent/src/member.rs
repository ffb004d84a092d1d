//! The agent as a member of its training job: one call registers it, tells the servers its counts, and
//! keeps the version that the job reads.
//!
//! Must hold: a task's version is asked for before a dataset is opened; reads never wait for this later;
//! while no server answers, the agent goes on with what it has.

use std::sync::Arc;
use std::time::Duration;

use dl_runtime::{Clock, OsRandom, Random, SystemClock};
use libdiesel::Dataset;
use libdiesel::agent::{
    JoinTask, MemberId, TaskCounters, TaskMember, TaskName, Version, join_task,
};

use crate::cache::Cache;
use crate::dataset::{Open, chain};
use crate::status;

/// Between two calls while no server answers.
const AGAIN: Duration = Duration::from_secs(5);

/// How long an agent that ends tries to say so.
const FAREWELL: Duration = Duration::from_secs(2);

/// The agent, as the servers know it.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    task: TaskName,
    id: MemberId,
}

impl Member {
    /// A new member of a task.
    pub(crate) fn of(task: TaskName) -> Self {
        let mut id = [0; 16];
        OsRandom.fill(&mut id);
        Self { task, id: MemberId::from_bytes(id) }
    }

    fn request(&self, cache: &Cache, dataset: usize, open: &Open, leaving: bool) -> JoinTask {
        JoinTask {
            version: Some(open.snapshot.version()),
            leaving,
            counters: status::counters(&cache.state(), dataset),
            ..self.first_request(cache, &open.dataset)
        }
    }

    /// Of a member that does not know the version.
    fn first_request(&self, cache: &Cache, dataset: &Dataset) -> JoinTask {
        let member = TaskMember {
            id: self.id,
            address: String::new(),
            key_fingerprint: None,
            memory: cache.budget(),
        };
        JoinTask {
            dataset: dataset.info().id,
            version: None,
            task: self.task.clone(),
            member,
            leaving: false,
            counters: TaskCounters::default(),
        }
    }

    /// Registers for a dataset, and gives the version of it that the task reads: that of other members,
    /// else the one that the task leased before, else the newest. None when no server says so.
    pub(crate) async fn version(&self, cache: &Cache, dataset: &Dataset) -> Option<Version> {
        match join_task(dataset, self.first_request(cache, dataset)).await {
            Ok(joined) => joined.version,
            Err(why) => {
                let why = chain(&why);
                tracing::warn!(dataset = %dataset.info().name, why, "the servers tell no version of the task");
                None
            }
        }
    }

    /// Registers for a dataset, again and again.
    pub(crate) async fn stay(self, cache: Arc<Cache>, dataset: usize, open: Arc<Open>) {
        let clock = SystemClock::new();
        let mut is_known = true;
        loop {
            let request = self.request(&cache, dataset, &open, false);
            let pause = match join_task(&open.dataset, request).await {
                Ok(joined) => {
                    is_known = true;
                    if joined.version != Some(open.snapshot.version()) {
                        let version = joined.version.map(|version| version.to_string());
                        tracing::warn!(
                            dataset = open.name,
                            ?version,
                            "the task reads another version"
                        );
                    }
                    joined.call_again
                }
                Err(why) => {
                    if std::mem::take(&mut is_known) {
                        tracing::warn!(dataset = open.name, %why, "the servers don't know of the task");
                    }
                    AGAIN
                }
            };
            clock.sleep(pause).await;
        }
    }

    /// Takes leave of all datasets.
    pub(crate) async fn leave(&self, cache: &Cache) {
        let opens: Vec<Arc<Open>> = cache.state().datasets.clone();
        let clock = SystemClock::new();
        let leaving = async {
            for (dataset, open) in opens.iter().enumerate() {
                let request = self.request(cache, dataset, open, true);
                // Without it the servers wait for three calls that don't come.
                let _ = join_task(&open.dataset, request).await;
            }
        };
        tokio::select! {
            () = leaving => {}
            () = clock.sleep(FAREWELL) => {}
        }
    }
}
