//! Writes of many files in one call.
//!
//! Must hold: memory is bounded for any number of files. Of two files with the same path, the later
//! one stays. After an error no further file is written.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use dl_runtime::{Clock, SystemClock};
use libdiesel::{Attributes, Error, FilePath};
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;

use crate::dataset::Dataset;
use crate::errors::{Raise, invalid};
use crate::files::{bytes_of, file_path};
use crate::target::Open;
use crate::wait::wait;

/// Files written together, at most, and the bytes in memory after which no further file joins them.
const BATCH_SIZE: usize = 1024;
const TOGETHER_BYTES: usize = 16 << 20;

/// Threads of a call, at most.
const WORKERS_MAX: usize = 64;

/// The content of a file.
enum Content {
    Shared(PyBackedBytes),
    Copied(Vec<u8>),
    Local(PathBuf),
}

impl Content {
    /// The bytes in memory.
    fn length(&self) -> usize {
        match self {
            Self::Shared(bytes) => bytes.len(),
            Self::Copied(bytes) => bytes.len(),
            Self::Local(_) => 0,
        }
    }
}

/// Files written together.
#[derive(Default)]
struct Block {
    files: Vec<(FilePath, Content)>,
    /// Bytes of contents in memory.
    bytes: usize,
}

impl Block {
    /// Adds a pair of a path and a content.
    fn add(&mut self, pair: &Bound<'_, PyAny>) -> PyResult<()> {
        let wrong = |_| PyTypeError::new_err("put_many takes pairs of a path and a content");
        let (path, content): (Bound<'_, PyAny>, Bound<'_, PyAny>) =
            pair.extract().map_err(wrong)?;
        let path = file_path(pair.py(), bytes_of(&path)?)?;
        let content = if let Ok(bytes) = content.cast::<PyBytes>() {
            Content::Shared(bytes.clone().into())
        } else if let Ok(buffer) = PyBuffer::<u8>::get(&content) {
            Content::Copied(buffer.to_vec(pair.py())?)
        } else {
            Content::Local(content.extract()?)
        };
        self.bytes += content.length();
        self.files.push((path, content));
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.files.len() >= BATCH_SIZE || self.bytes >= TOGETHER_BYTES
    }

    /// Writes the files by several threads; gives the number of bytes. A path always has the same
    /// thread.
    fn write(&self, open: &Open, workers: usize) -> Result<u64, Error> {
        let attributes = Attributes::at(SystemClock::new().now());
        let mut shares = vec![Vec::new(); workers.min(self.files.len())];
        for file in &self.files {
            let mut hasher = DefaultHasher::new();
            file.0.hash(&mut hasher);
            let share = hasher.finish() % shares.len() as u64;
            shares.get_mut(share as usize).into_iter().for_each(|share| share.push(file));
        }
        let is_over = AtomicBool::new(false);
        let write_all = |share: Vec<&(FilePath, Content)>| {
            let mut bytes = 0;
            for (path, content) in share {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let length = content.length();
                let written = match content {
                    Content::Shared(data) => open.dataset.put(path, attributes, data),
                    Content::Copied(data) => open.dataset.put(path, attributes, data),
                    Content::Local(source) => {
                        open.dataset.put_file(path, source).map(|length| bytes += length)
                    }
                };
                written.inspect_err(|_| is_over.store(true, Ordering::Relaxed))?;
                bytes += length as u64;
            }
            Ok(bytes)
        };
        thread::scope(|scope| {
            let (write_all, mut shares) = (&write_all, shares.into_iter());
            let own = shares.next().unwrap_or_default();
            let others: Vec<_> =
                shares.map(|share| scope.spawn(move || write_all(share))).collect();
            let mut written = vec![write_all(own)];
            let joined = |other: thread::ScopedJoinHandle<'_, _>| {
                other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            written.extend(others.into_iter().map(joined));
            written.into_iter().sum()
        })
    }
}

#[pymethods]
impl Dataset {
    /// Writes many files, and waits until all are durable; returns their number.
    ///
    /// ``files`` gives pairs of a path and a content: ``bytes`` or another buffer, or the path of a
    /// local file (``str`` or ``os.PathLike``), whose modification time and permissions are kept.
    /// ``workers`` threads read the local files. ``progress`` is called now and then with the numbers
    /// of files and bytes so far.
    ///
    /// :raises DieselError: the error of the first failed file; files before it may be stored
    #[pyo3(signature = (files, *, workers=4, progress=None))]
    fn put_many(
        &self,
        py: Python<'_>,
        files: &Bound<'_, PyAny>,
        workers: usize,
        progress: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<u64> {
        if workers == 0 || workers > WORKERS_MAX {
            return Err(invalid(py, format!("workers={workers} is not from 1 to {WORKERS_MAX}")));
        }
        let mut files = files.try_iter()?;
        let (mut count, mut bytes) = (0, 0);
        loop {
            let mut block = Block::default();
            while !block.is_full() {
                let Some(file) = files.next() else { break };
                block.add(&file?)?;
            }
            if block.files.is_empty() {
                break;
            }
            self.raise_lost(py)?;
            let open = self.open(py)?;
            let files = block.files.len() as u64;
            self.count_puts(files);
            bytes += wait(py, move || block.write(&open, workers))?.or_raise(py)?;
            count += files;
            if let Some(progress) = progress {
                progress.call1((count, bytes))?;
            }
        }
        self.flush(py)?;
        Ok(count)
    }
}
