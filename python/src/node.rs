//! The cache of the node: fetching ahead, and its state.
//!
//! Must hold: a wait ends when no more chunks arrive, even if not all chunks fit.

use std::thread;
use std::time::Duration;

use libdiesel::{Presence, Selection, agent};
use pyo3::prelude::*;

use crate::dataset::{Dataset, is_all};
use crate::errors::{Raise, invalid};
use crate::files::folder_path;
use crate::wait::wait as wait_for;

/// Interval between two checks of the chunks in memory.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// How long fetches may make no progress before the wait ends.
const STILL_MAX: Duration = Duration::from_secs(10);

#[pymethods]
impl Dataset {
    /// Asks the agent of this node to fetch the files at some paths into memory, or all files, as far as
    /// memory goes. Returns the numbers of chunks in memory and of all chunks.
    ///
    /// With ``wait`` the call returns when all are in memory, or no more arrive. ``progress`` is called
    /// with both numbers meanwhile.
    #[pyo3(signature = (*paths, wait=false, progress=None))]
    fn prefetch(
        &self,
        py: Python<'_>,
        paths: Vec<Bound<'_, PyAny>>,
        wait: bool,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(u64, u64)> {
        let selection = self.selection(py, &paths)?;
        let open = self.open(py)?;
        let asked = selection.clone();
        let begun = wait_for(py, move || {
            open.dataset.prefetch(&asked)?;
            open.dataset.presence(&asked)
        })?;
        let mut presence = begun.or_raise(py)?;
        let mut still = Duration::ZERO;
        while wait && presence.present < presence.chunks {
            if let Some(progress) = progress {
                progress.call1((presence.present, presence.chunks))?;
            }
            let (before, open, asked) = (presence, self.open(py)?, selection.clone());
            let looked = wait_for(py, move || {
                thread::sleep(POLL_INTERVAL);
                open.dataset.presence(&asked)
            })?;
            presence = looked.or_raise(py)?;
            let status = self.status(py)?;
            let number = |name: &str| status.get_item(name)?.extract::<u64>();
            if number("prefetch_waiting")? > 0 && !status.get_item("prefetch_stuck")?.is_truthy()? {
                continue;
            }
            still = if presence == before { still + POLL_INTERVAL } else { Duration::ZERO };
            if number("fetches")? == 0 || still >= STILL_MAX {
                break;
            }
        }
        let Presence { chunks, present } = presence;
        if let Some(progress) = progress {
            progress.call1((present, chunks))?;
        }
        Ok((present, chunks))
    }

    /// The state of the agent of this node, as ``dlcmd --json agent status`` shows it: memory, hits,
    /// misses, chunks from servers and from other nodes.
    ///
    /// :raises NotFoundError: if no agent runs
    fn status<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let options = self.target().options(py)?;
        let Some(task) = options.task.clone() else {
            return Err(invalid(py, "status needs a handle with a task: connect(..., task=NAME)"));
        };
        let told = wait_for(py, move || agent::status(&options, &task))?.or_raise(py)?;
        py.import("json")?.call_method1("loads", (told,))
    }
}

impl Dataset {
    /// The files at and below some paths; all files without paths.
    fn selection(&self, py: Python<'_>, paths: &[Bound<'_, PyAny>]) -> PyResult<Selection> {
        let open = self.open(py)?;
        let folders = paths.iter().map(folder_path).collect::<PyResult<Vec<_>>>()?;
        let Some(snapshot) = open.dataset.snapshot() else {
            let text = "prefetch needs a handle with a task: connect(..., task=NAME)";
            return Err(invalid(py, text));
        };
        match folders.is_empty() || is_all(&folders) {
            true => Ok(Selection::all(snapshot.files())),
            false => snapshot.select(&folders).or_raise(py),
        }
    }
}
