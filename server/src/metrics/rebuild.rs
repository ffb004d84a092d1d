//! Progress of the rebuild that this server runs after a loss of metadata.
//!
//! Must hold: a rebuild that makes progress changes its counts; between rebuilds all counts are zero.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use dl_proto::RecoverProgress;
use dl_runtime::locked;

use super::text::{Kind, Text};

/// Objects of the running rebuild.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Objects {
    /// Objects listed so far.
    pub(crate) found: u64,
    /// Objects whose headers were read and appended.
    pub(crate) done: u64,
}

/// The progress of the running rebuild, none between rebuilds.
#[derive(Debug, Default)]
pub(crate) struct RebuildMetrics(Mutex<Option<HashMap<String, Objects>>>);

impl RebuildMetrics {
    fn running(&self) -> MutexGuard<'_, Option<HashMap<String, Objects>>> {
        locked(&self.0)
    }

    pub(crate) fn begin(&self) {
        *self.running() = Some(HashMap::new());
    }

    pub(crate) fn end(&self) {
        *self.running() = None;
    }

    /// Records the progress of a dataset.
    pub(crate) fn report(&self, report: &RecoverProgress) {
        if let Some(datasets) = &mut *self.running() {
            let objects = Objects { found: report.listed, done: report.checked };
            datasets.insert(report.dataset.clone(), objects);
        }
    }

    /// The sum over all datasets; none between rebuilds.
    pub(crate) fn objects(&self) -> Option<Objects> {
        let running = self.running();
        let datasets = running.as_ref()?.values();
        Some(datasets.fold(Objects::default(), |sum, one| Objects {
            found: sum.found + one.found,
            done: sum.done + one.done,
        }))
    }

    pub(crate) fn write(&self, text: &mut Text) {
        let running = self.objects();
        let Objects { found, done } = running.unwrap_or_default();
        let help = "Whether this server rebuilds the metadata after a loss.";
        text.metric("diesel_rebuild_running", Kind::Gauge, help);
        text.sample(&[], u8::from(running.is_some()));
        let help = "Objects of the running rebuild.";
        text.metric("diesel_rebuild_objects", Kind::Gauge, help);
        text.sample(&[("state", "found")], found);
        text.sample(&[("state", "done")], done);
    }
}
