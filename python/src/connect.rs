//! Opening a dataset, and calls about all datasets of the servers.
//!
//! Must hold: a handle from a pickle answers from the version of the first handle.

use std::path::PathBuf;
use std::time::Duration;

use libdiesel::{
    Access, ChunkShape, Client, DatasetName, Error, SnapshotCache, TaskOptions, agent,
};
use pyo3::prelude::*;

use crate::dataset::Dataset;
use crate::errors::{Raise, invalid, named};
use crate::target::{Open, Target, absolute, options_of};
use crate::wait::wait;

/// The keyword arguments about servers and user.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Given {
    server: Vec<String>,
    user: Option<String>,
    key: Option<String>,
    key_file: Option<PathBuf>,
    ca: Option<PathBuf>,
    client_cert: Option<PathBuf>,
    client_key: Option<PathBuf>,
    plain_text_key: bool,
    timeout: f64,
}

impl Given {
    fn access(self, py: Python<'_>) -> PyResult<(Access, Duration)> {
        let timeout = Duration::try_from_secs_f64(self.timeout)
            .map_err(|why| invalid(py, format!("timeout={}: {why}", self.timeout)))?;
        let access = Access {
            servers: self.server,
            user: self.user.unwrap_or_default(),
            key: self.key,
            key_file: self.key_file,
            ca: self.ca,
            client_cert: self.client_cert,
            client_key: self.client_key,
            plain_text_key: self.plain_text_key,
        };
        Ok((access.completed(), timeout))
    }
}

/// The names of all datasets that the user may read.
#[pyfunction]
pub(crate) fn datasets(py: Python<'_>, given: Given) -> PyResult<Vec<String>> {
    let (access, timeout) = given.access(py)?;
    let options = options_of(py, &access, timeout)?;
    let listed = wait(py, move || Client::connect(options)?.dataset_names())?.or_raise(py)?;
    let unread = listed.unread.iter().map(|unread| unread.name.to_string());
    let mut names: Vec<_> = listed.found.iter().map(ToString::to_string).chain(unread).collect();
    names.sort_unstable();
    Ok(names)
}

/// Deletes a dataset; gives the number of objects that are removed so far.
#[pyfunction]
pub(crate) fn delete_dataset(py: Python<'_>, dataset: &str, given: Given) -> PyResult<u64> {
    let (name, (access, timeout)) = (name_of(py, dataset)?, given.access(py)?);
    let options = options_of(py, &access, timeout)?;
    let deleted = wait(py, move || Client::connect(options)?.delete_dataset(&name))?;
    Ok(deleted.or_raise(py)?.removed)
}

/// Called by the Python half, with every argument.
#[pyfunction]
#[pyo3(signature = (dataset, given, *, snapshot, task, tiers, create, chunk_size, version))]
#[expect(clippy::too_many_arguments, reason = "each is a keyword of Python's, with a default")]
pub(crate) fn connect(
    py: Python<'_>,
    dataset: &str,
    given: Given,
    snapshot: Option<PathBuf>,
    task: Option<String>,
    tiers: Option<String>,
    create: bool,
    chunk_size: Option<u32>,
    version: Option<String>,
) -> PyResult<Dataset> {
    let (access, timeout) = given.access(py)?;
    let mut task = task.map(|name| task_of(py, &name)).transpose()?;
    if let Some(tiers) = &tiers {
        check_tiers(py, tiers)?;
        if let Some(task) = &mut task {
            // Memory named here comes before that of the environment.
            if tiers.trim_start().starts_with("memory:") {
                task.arguments.clear();
            }
            task.arguments.extend(["--tiers".to_owned(), tiers.clone()]);
        }
    }
    let target = Target {
        name: name_of(py, dataset)?,
        access,
        task,
        tiers,
        snapshot: snapshot.map(absolute),
        timeout,
    };
    let options = target.options(py)?;
    let shape = shape_of(py, chunk_size)?;
    let (wanted, pinned) = (target.clone(), version.clone());
    let opened = wait(py, move || {
        let client = Client::connect(options)?;
        let dataset = open(&client, &wanted, create.then_some(shape), version.as_deref())?;
        Ok::<_, Error>(Open { client, dataset })
    })?;
    let opened = opened.or_raise(py)?;
    check_version(py, &target, &opened.dataset, pinned)?;
    Ok(Dataset::new(opened, target))
}

/// Fails for tiers that the agent would refuse: it starts out of sight.
fn check_tiers(py: Python<'_>, tiers: &str) -> PyResult<()> {
    for tier in tiers.split(',') {
        let (name, size) = tier.trim().rsplit_once(':').unwrap_or_default();
        let has_size = size.trim().starts_with(|digit: char| digit.is_ascii_digit());
        let is_there = name == "memory" || name.starts_with('/') && PathBuf::from(name).is_dir();
        if !has_size || !is_there {
            let why = "type memory and folders that exist, such as memory:8GiB,/nvme/diesel:200GiB";
            return Err(invalid(py, format!("tiers={tiers:?}: {tier:?} is no tier: {why}")));
        }
    }
    Ok(())
}

fn shape_of(py: Python<'_>, chunk_size: Option<u32>) -> PyResult<ChunkShape> {
    let Some(size) = chunk_size else { return Ok(ChunkShape::default()) };
    ChunkShape::new(size, ChunkShape::default().alignment())
        .map_err(|why| invalid(py, format!("chunk_size={size}: {why}")))
}

/// Fails for a dataset of another version than the pinned one.
fn check_version(
    py: Python<'_>,
    target: &Target,
    dataset: &libdiesel::Dataset,
    pinned: Option<String>,
) -> PyResult<()> {
    let has = dataset.snapshot().map(|snapshot| snapshot.version().to_string());
    let Some(pinned) = pinned.filter(|pinned| has.as_ref() != Some(pinned)) else { return Ok(()) };
    let why = "the snapshot file, or the dataset, has changed since";
    let text = format!("open {} at version {pinned}: {why}", target.address());
    Err(named(py, "ConflictError", text))
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

fn task_of(py: Python<'_>, name: &str) -> PyResult<TaskOptions> {
    let task = match name {
        "" => TaskOptions::of_process(),
        name => TaskOptions::named(name),
    };
    let task = task.ok_or_else(|| {
        let text =
            format!("task={name:?}: a name has at most 128 of the characters A-Z a-z 0-9 . _ : -");
        invalid(py, text)
    })?;
    // The program is installed with this package.
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
