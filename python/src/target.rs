//! The arguments of a handle, and the client and dataset of an open handle.
//!
//! Must hold: another process can open the same dataset from a pickle, which has a key only if the
//! caller gave it as text. No displayed text has a key.

use std::path::PathBuf;
use std::time::Duration;

use libdiesel::{Access, Client, ConnectOptions, DatasetName, SnapshotCache, TaskOptions};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::Raise;

/// The arguments of a handle, for opening the same dataset in another process.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) name: DatasetName,
    pub(crate) access: Access,
    pub(crate) snapshot: Option<PathBuf>,
    pub(crate) task: Option<TaskOptions>,
    pub(crate) tiers: Option<String>,
    pub(crate) timeout: Duration,
}

impl Target {
    pub(crate) fn address(&self) -> String {
        format!("dl://{}", self.name)
    }

    pub(crate) fn name(&self) -> &str {
        self.name.as_str()
    }

    pub(crate) fn task(&self) -> Option<&str> {
        self.task.as_ref().map(|task| task.name.as_str())
    }

    pub(crate) fn has_task(&self) -> bool {
        self.task.is_some()
    }

    /// The same dataset with a snapshot file.
    pub(crate) fn with_snapshot(&self, file: PathBuf) -> Self {
        Self { snapshot: Some(absolute(file)), ..self.clone() }
    }

    /// The arguments of `libdiesel.connect` to open the dataset again.
    pub(crate) fn arguments<'py>(
        &self,
        py: Python<'py>,
        version: Option<String>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let Access { servers, user, key, key_file, ca, client_cert, client_key, plain_text_key } =
            &self.access;
        let arguments = PyDict::new(py);
        arguments.set_item("dataset", self.address())?;
        arguments.set_item("server", servers)?;
        arguments.set_item("user", user)?;
        arguments.set_item("key", key.as_deref())?;
        arguments.set_item("key_file", key_file.as_ref())?;
        arguments.set_item("ca", ca.as_ref())?;
        arguments.set_item("client_cert", client_cert.as_ref())?;
        arguments.set_item("client_key", client_key.as_ref())?;
        arguments.set_item("plain_text_key", plain_text_key)?;
        arguments.set_item("snapshot", self.snapshot.as_ref())?;
        match self.task() {
            Some(task) => arguments.set_item("task", task)?,
            None => arguments.set_item("task", false)?,
        }
        arguments.set_item("tiers", self.tiers.as_deref())?;
        arguments.set_item("timeout", self.timeout.as_secs_f64())?;
        arguments.set_item("version", version)?;
        Ok(arguments)
    }

    pub(crate) fn options(&self, py: Python<'_>) -> PyResult<ConnectOptions> {
        let options = options_of(py, &self.access, self.timeout)?;
        Ok(ConnectOptions { task: self.task.clone(), ..options })
    }
}

/// The settings of a client.
pub(crate) fn options_of(
    py: Python<'_>,
    access: &Access,
    timeout: Duration,
) -> PyResult<ConnectOptions> {
    Ok(ConnectOptions {
        request_timeout: timeout,
        snapshots: SnapshotCache::of_user(),
        on_retry: Some(libdiesel::log::of_retries()),
        ..access.options().or_raise(py)?
    })
}

/// The client and dataset of an open handle.
pub(crate) struct Open {
    pub(crate) client: Client,
    pub(crate) dataset: libdiesel::Dataset,
}

/// An absolute path, valid in other working directories.
pub(crate) fn absolute(file: PathBuf) -> PathBuf {
    std::path::absolute(&file).unwrap_or(file)
}
