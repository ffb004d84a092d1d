//! The arguments of a handle, and the client and dataset of an open handle.
//!
//! Must hold: another process can open the same dataset from a pickle, which has a key only if the
//! caller gave it as text. No displayed text has a key.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use libdiesel::{
    Client, ClientCertificate, ConnectOptions, DatasetName, SnapshotCache, TaskOptions,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::{invalid, named};
use crate::log;

/// Most bytes of a file with a key or certificates.
const FILE_MAX: u64 = 1 << 20;

/// The arguments of a handle, for opening the same dataset in another process.
#[derive(Clone)]
pub(crate) struct Target {
    pub(crate) name: DatasetName,
    pub(crate) servers: Vec<String>,
    pub(crate) user: String,
    pub(crate) key: Option<String>,
    /// The file with the key; pickled instead of the key.
    pub(crate) key_file: Option<PathBuf>,
    pub(crate) ca: Option<PathBuf>,
    pub(crate) client_cert: Option<PathBuf>,
    pub(crate) client_key: Option<PathBuf>,
    pub(crate) plain_text_key: bool,
    pub(crate) snapshot: Option<PathBuf>,
    pub(crate) task: Option<TaskOptions>,
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
        let Self { servers, user, key, key_file, ca, client_cert, client_key, .. } = self;
        let arguments = PyDict::new(py);
        arguments.set_item("dataset", self.address())?;
        arguments.set_item("server", servers)?;
        arguments.set_item("user", user)?;
        arguments.set_item("key", key.as_deref())?;
        arguments.set_item("key_file", key_file.as_ref())?;
        arguments.set_item("ca", ca.as_ref())?;
        arguments.set_item("client_cert", client_cert.as_ref())?;
        arguments.set_item("client_key", client_key.as_ref())?;
        arguments.set_item("plain_text_key", self.plain_text_key)?;
        arguments.set_item("snapshot", self.snapshot.as_ref())?;
        match self.task() {
            Some(task) => arguments.set_item("task", task)?,
            None => arguments.set_item("task", false)?,
        }
        arguments.set_item("timeout", self.timeout.as_secs_f64())?;
        arguments.set_item("version", version)?;
        Ok(arguments)
    }

    /// The key of the arguments, else of the key file, else of the environment.
    fn key_of(&self, py: Python<'_>) -> PyResult<Option<String>> {
        let Some(file) = &self.key_file else {
            return Ok(self.key.clone().or_else(|| env::var("DIESEL_KEY").ok()));
        };
        let text = String::from_utf8(read(py, file)?).ok();
        let key = text.map(|text| text.trim_end_matches(['\r', '\n']).to_owned());
        let none = || invalid(py, format!("key_file={}: the file holds no key", file.display()));
        key.filter(|key| !key.is_empty()).ok_or_else(none).map(Some)
    }

    pub(crate) fn options(&self, py: Python<'_>) -> PyResult<ConnectOptions> {
        let read = |file: &Option<PathBuf>| file.as_ref().map(|file| read(py, file)).transpose();
        let certificate = match (read(&self.client_cert)?, read(&self.client_key)?) {
            (Some(certificate), Some(key)) => Some(ClientCertificate { certificate, key }),
            (None, None) => None,
            _ => return Err(invalid(py, "client_cert and client_key go together")),
        };
        Ok(ConnectOptions {
            user: self.user.clone(),
            key: self.key_of(py)?,
            servers: self.servers.clone(),
            ca: read(&self.ca)?,
            certificate,
            plain_text_key: self.plain_text_key,
            request_timeout: self.timeout,
            snapshots: SnapshotCache::of_user(),
            task: self.task.clone(),
            on_retry: Some(log::of_retries()),
            ..ConnectOptions::default()
        })
    }
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

/// The contents of a small file: a key or certificates.
fn read(py: Python<'_>, file: &PathBuf) -> PyResult<Vec<u8>> {
    let failed = |why: String| named(py, "LocalError", format!("read {}: {why}", file.display()));
    let length = fs::metadata(file).map_err(|why| failed(why.to_string()))?.len();
    if length > FILE_MAX {
        return Err(failed(format!("it has {length} bytes, which no key or certificate has")));
    }
    fs::read(file).map_err(|why| failed(why.to_string()))
}
