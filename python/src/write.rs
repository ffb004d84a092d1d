//! Writes, deletions and purges through a handle.
//!
//! Must hold: every file acknowledged by `flush` is durable; a failed write is raised by the next
//! call.

use std::path::PathBuf;
use std::time::Duration;

use dl_runtime::{Clock, SystemClock};
use libdiesel::admin::PurgeRequest;
use libdiesel::{Attributes, Flushed};
use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::dataset::Dataset;
use crate::errors::{Raise, invalid, named, not_found};
use crate::files::{bytes_of, file_path};
use crate::wait::{wait, wait_or};

/// Smaller files are put directly while there is room.
const AT_ONCE: usize = 1 << 20;

#[pymethods]
impl Dataset {
    /// Writes a file from memory. The file is durable after the next :meth:`flush`.
    ///
    /// ``mtime`` is in seconds since 1970, by default the current time.
    #[pyo3(signature = (path, data, *, mode=0o644, mtime=None))]
    fn put(
        &self,
        py: Python<'_>,
        path: &Bound<'_, PyAny>,
        data: &Bound<'_, PyAny>,
        mode: u16,
        mtime: Option<f64>,
    ) -> PyResult<()> {
        let path = file_path(py, bytes_of(path)?)?;
        let attributes = attributes(py, mode, mtime)?;
        self.raise_lost(py)?;
        let open = self.open(py)?;
        if let Ok(data) = data.extract::<&[u8]>()
            && data.len() < AT_ONCE
            && open.dataset.has_room()
        {
            py.detach(|| open.dataset.put(path, attributes, data)).or_raise(py)?;
        } else {
            let data = PyBuffer::<u8>::get(data)?.to_vec(py)?;
            wait(py, move || open.dataset.put(path, attributes, &data))?.or_raise(py)?;
        }
        self.count_puts(1);
        Ok(())
    }

    /// Writes a local file, with its modification time and permissions; returns its length.
    fn put_file(&self, py: Python<'_>, path: &Bound<'_, PyAny>, source: PathBuf) -> PyResult<u64> {
        let path = file_path(py, bytes_of(path)?)?;
        let open = self.open(py)?;
        let length = wait(py, move || open.dataset.put_file(path, &source))?.or_raise(py)?;
        self.count_puts(1);
        Ok(length)
    }

    /// Waits until all written files are durable; returns their number.
    ///
    /// :raises DieselError: the error of the first failed file
    pub(crate) fn flush(&self, py: Python<'_>) -> PyResult<u64> {
        self.raise_lost(py)?;
        let (open, keep) = (self.open(py)?, self.lost_error());
        let flush = move || open.dataset.flush().and_then(Flushed::check);
        let flushed = wait_or(py, flush, move |flushed| keep(flushed.err()))?;
        self.count_flush();
        Ok(flushed.or_raise(py)?.files)
    }

    /// Deletes files by their paths; returns the number of deleted files.
    ///
    /// :raises NotFoundError: with ``missing_ok=False``, if a file does not exist
    #[pyo3(signature = (*paths, missing_ok=false))]
    fn delete(
        &self,
        py: Python<'_>,
        paths: Vec<Bound<'_, PyAny>>,
        missing_ok: bool,
    ) -> PyResult<u64> {
        let path = |path: &Bound<'_, PyAny>| file_path(py, bytes_of(path)?);
        let paths = paths.iter().map(path).collect::<PyResult<Vec<_>>>()?;
        let open = self.open(py)?;
        let deleted = wait(py, move || open.dataset.delete(&paths))?.or_raise(py)?;
        match deleted.missing.first().filter(|_| !missing_ok) {
            None => Ok(deleted.deleted),
            Some(path) => {
                let file = format!("{}/{path}", self.address());
                let text = format!("delete {file}: there is no file; missing_ok=True allows that");
                Err(not_found(py, &file, text))
            }
        }
    }

    /// Reclaims the space of deleted and overwritten files not needed for ``grace`` seconds. Returns a
    /// :class:`Purged`: counts of removed and waiting objects.
    #[pyo3(signature = (*, grace=86_400.0, dry_run=false, force=false))]
    fn purge<'py>(
        &self,
        py: Python<'py>,
        grace: f64,
        dry_run: bool,
        force: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        let open = self.open(py)?;
        let grace = Duration::try_from_secs_f64(grace)
            .map_err(|why| invalid(py, format!("grace={grace}: {why}")))?;
        let dataset = Some(open.dataset.info().name.clone());
        let request = PurgeRequest { dataset, grace, dry_run, force };
        let purged = wait(py, move || open.client.purge(request, &mut |_| {}))?.or_raise(py)?;
        let Some(purged) = purged.into_iter().next() else {
            return Err(named(py, "InternalError", "no dataset was purged".to_owned()));
        };
        let fields = PyDict::new(py);
        fields.set_item("removed", purged.removed)?;
        fields.set_item("removed_bytes", purged.removed_bytes)?;
        fields.set_item("rewritten", purged.rewritten)?;
        fields.set_item("waiting", purged.waiting)?;
        fields.set_item("waiting_bytes", purged.waiting_bytes)?;
        fields.set_item("reclaimable_bytes", purged.reclaimable_bytes)?;
        fields.set_item("leased_by", purged.leased_by)?;
        fields.set_item("problems", purged.problems)?;
        py.import("libdiesel._results")?.getattr("Purged")?.call((), Some(&fields))
    }
}

fn attributes(py: Python<'_>, mode: u16, mtime: Option<f64>) -> PyResult<Attributes> {
    let Some(mtime) = mtime else {
        return Ok(Attributes { mode, ..Attributes::at(SystemClock::new().now()) });
    };
    let (seconds, part) = (mtime.floor(), mtime - mtime.floor());
    if !seconds.is_finite() || seconds.abs() >= i64::MAX as f64 / 1e9 - 1.0 {
        return Err(invalid(py, format!("mtime={mtime} is no time in seconds since 1970")));
    }
    // The product of the whole number would lose nanoseconds.
    Ok(Attributes { mode, mtime: seconds as i64 * 1_000_000_000 + (part * 1e9).round() as i64 })
}
