//! The agent as a member of its training job: one call registers it, tells the servers its counts, and
//! keeps the version that the job reads.
//!
//! Must hold: reads never wait for this; while no server answers, the agent goes on with what it has.

use std::sync::Arc;
use std::time::Duration;

use dl_runtime::{Clock, OsRandom, Random, SystemClock};
use libdiesel::agent::{JoinTask, MemberId, TaskMember, TaskName, join_task};

use crate::cache::Cache;
use crate::dataset::Open;
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
        let member = TaskMember {
            id: self.id,
            address: String::new(),
            key_fingerprint: None,
            memory: cache.budget(),
        };
        JoinTask {
            dataset: open.snapshot.dataset(),
            version: Some(open.snapshot.version()),
            task: self.task.clone(),
            member,
            leaving,
            counters: status::counters(&cache.state(), dataset),
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
