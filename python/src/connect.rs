//! The way to a dataset: arguments, the environment where arguments are silent, and the way back from
//! a pickle.
//!
//! Must hold: a handle that comes out of a pickle answers from the version that the first one had; no
//! text shows a key.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use libdiesel::{
    ChunkShape, Client, ClientCertificate, ConnectOptions, DatasetName, Error, SnapshotCache,
    TaskOptions, agent,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::dataset::{Dataset, Open};
use crate::errors::{Raise, invalid, named};
use crate::wait::wait;

/// Bytes that a file with a key or with certificates has at most.
const FILE_MAX: u64 = 1 << 20;

/// What a handle was opened with, so that another process can do the same.
#[derive(Clone)]
pub(crate) struct Target {
    name: DatasetName,
    servers: Vec<String>,
    user: String,
    key: Option<String>,
    ca: Option<PathBuf>,
    client_cert: Option<PathBuf>,
    client_key: Option<PathBuf>,
    plain_text_key: bool,
    snapshot: Option<PathBuf>,
    task: Option<TaskOptions>,
    timeout: Duration,
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

    /// The same dataset by a snapshot in a file, which no agent shares.
    pub(crate) fn with_snapshot(&self, file: PathBuf) -> Self {
        Self { snapshot: Some(file), task: None, ..self.clone() }
    }

    /// What `libdiesel.connect` is given to open it again.
    pub(crate) fn arguments<'py>(
        &self,
        py: Python<'py>,
        version: Option<String>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let Self { servers, user, key, ca, client_cert, client_key, .. } = self;
        let arguments = PyDict::new(py);
        arguments.set_item("dataset", self.address())?;
        arguments.set_item("server", servers)?;
        arguments.set_item("user", user)?;
        arguments.set_item("key", key.as_deref())?;
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

    fn options(&self, py: Python<'_>) -> PyResult<ConnectOptions> {
        let read = |file: &Option<PathBuf>| file.as_ref().map(|file| read(py, file)).transpose();
        let certificate = match (read(&self.client_cert)?, read(&self.client_key)?) {
            (Some(certificate), Some(key)) => Some(ClientCertificate { certificate, key }),
            (None, None) => None,
            _ => return Err(invalid(py, "client_cert and client_key go together")),
        };
        Ok(ConnectOptions {
            user: self.user.clone(),
            key: self.key.clone(),
            servers: self.servers.clone(),
            ca: read(&self.ca)?,
            certificate,
            plain_text_key: self.plain_text_key,
            request_timeout: self.timeout,
            snapshots: SnapshotCache::of_user(),
            task: self.task.clone(),
            ..ConnectOptions::default()
        })
    }
}

/// The Python half calls it, with every argument.
#[pyfunction]
#[pyo3(signature = (dataset, *, server, user, key, key_file, ca, client_cert, client_key,
                    plain_text_key, snapshot, task, timeout, create, chunk_size, version))]
#[expect(clippy::too_many_arguments, reason = "each is a keyword of Python's, with a default")]
pub(crate) fn connect(
    py: Python<'_>,
    dataset: &str,
    server: Vec<String>,
    user: Option<String>,
    key: Option<String>,
    key_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    client_cert: Option<PathBuf>,
    client_key: Option<PathBuf>,
    plain_text_key: bool,
    snapshot: Option<PathBuf>,
    task: Option<String>,
    timeout: f64,
    create: bool,
    chunk_size: Option<u32>,
    version: Option<String>,
) -> PyResult<Dataset> {
    let key = match key_file {
        Some(file) => Some(key_of(py, &file)?),
        None => key.or_else(|| env::var("DIESEL_KEY").ok()),
    };
    let file = |given: Option<PathBuf>, variable| {
        given.or_else(|| env::var_os(variable).filter(|file| !file.is_empty()).map(PathBuf::from))
    };
    let target = Target {
        name: name_of(py, dataset)?,
        servers: servers(server),
        user: user.or_else(|| env::var("DIESEL_USER").ok()).unwrap_or_default(),
        key,
        ca: file(ca, "DIESEL_CA"),
        client_cert: file(client_cert, "DIESEL_CLIENT_CERT"),
        client_key: file(client_key, "DIESEL_CLIENT_KEY"),
        plain_text_key,
        task: task.map(|name| task_of(py, &name)).transpose()?,
        snapshot,
        timeout: Duration::try_from_secs_f64(timeout)
            .map_err(|why| invalid(py, format!("timeout={timeout}: {why}")))?,
    };
    let options = target.options(py)?;
    let shape = match chunk_size {
        Some(size) => ChunkShape::new(size, ChunkShape::default().alignment())
            .map_err(|why| invalid(py, format!("chunk_size={size}: {why}")))?,
        None => ChunkShape::default(),
    };
    let wanted = target.clone();
    let opened = wait(py, move || {
        let client = Client::connect(options)?;
        let dataset = open(&client, &wanted, create.then_some(shape), version.as_deref())?;
        Ok::<_, Error>(Open { client, dataset })
    })?;
    Ok(Dataset::new(opened.or_raise(py)?, target))
}

fn open(
    client: &Client,
    target: &Target,
    create: Option<ChunkShape>,
    version: Option<&str>,
) -> Result<libdiesel::Dataset, Error> {
    let cache = SnapshotCache::of_user();
    if let Some(file) = &target.snapshot {
        return client.by_snapshot(&target.name, file, cache.as_ref());
    }
    if let Some(shape) = create {
        return client.create_dataset(&target.name, shape);
    }
    let dataset = client.dataset(&target.name)?;
    let has = dataset.snapshot().map(|snapshot| snapshot.version().to_string());
    match version.filter(|version| has.as_deref() != Some(*version)) {
        None => Ok(dataset),
        // The dataset has changed since the first handle was opened.
        Some(version) => match version.parse() {
            Ok(version) => agent::at_version(&dataset, version, cache.as_ref()),
            Err(_) => Ok(dataset),
        },
    }
}

fn name_of(py: Python<'_>, dataset: &str) -> PyResult<DatasetName> {
    let name = dataset.strip_prefix("dl://").unwrap_or(dataset);
    let name = name.strip_suffix('/').unwrap_or(name);
    DatasetName::new(name).map_err(|why| {
        let text = format!("{dataset:?} is no dataset: {why}; name it as dl://NAME");
        invalid(py, text)
    })
}

/// Those that are given, else those of the environment, else the one on this machine.
fn servers(given: Vec<String>) -> Vec<String> {
    if !given.is_empty() {
        return given;
    }
    match env::var("DIESEL_SERVER") {
        Ok(servers) if !servers.is_empty() => servers.split(',').map(str::to_owned).collect(),
        _ => ConnectOptions::default().servers,
    }
}

fn task_of(py: Python<'_>, name: &str) -> PyResult<TaskOptions> {
    let task = match name {
        "" => TaskOptions::of_process(),
        name => TaskOptions::named(name),
    };
    let task = task.ok_or_else(|| {
        let text = format!(
            "task={name:?}: a name has at most 128 of the characters A-Z a-z 0-9 . _ : -"
        );
        invalid(py, text)
    })?;
    // The program comes with this package.
    let beside = || {
        let program = py.import("sysconfig")?.call_method1("get_path", ("scripts",))?;
        let program = program.extract::<PathBuf>()?.join("dlcmd");
        Ok::<_, PyErr>(program.is_file().then_some(program))
    };
    let program = match task.program {
        Some(program) => Some(program),
        None => beside().unwrap_or_default(),
    };
    Ok(TaskOptions { program, ..task })
}

fn key_of(py: Python<'_>, file: &PathBuf) -> PyResult<String> {
    let text = String::from_utf8(read(py, file)?).ok();
    let key = text.map(|text| text.trim_end_matches(['\r', '\n']).to_owned());
    key.filter(|key| !key.is_empty())
        .ok_or_else(|| invalid(py, format!("key_file={}: the file holds no key", file.display())))
}

fn read(py: Python<'_>, file: &PathBuf) -> PyResult<Vec<u8>> {
    let failed =
        |why: String| named(py, "LocalError", format!("read {}: {why}", file.display()));
    let length = fs::metadata(file).map_err(|why| failed(why.to_string()))?.len();
    if length > FILE_MAX {
        return Err(failed(format!("it has {length} bytes, which no key or certificate has")));
    }
    fs::read(file).map_err(|why| failed(why.to_string()))
}
