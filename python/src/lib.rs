//! The native half of the Python package `libdiesel`: datasets, views, epochs and folders. The
//! Python half (`python/libdiesel`) has the exceptions, the ranks and the classes for PyTorch.
//!
//! Must hold: no waiting call holds the interpreter's lock, and Ctrl-C ends each call within 100
//! ms. Memory visible to Python stays valid as long as a Python object refers to it.

mod classes;
mod connect;
mod dataset;
mod entry;
mod epoch;
mod errors;
mod files;
mod log;
mod many;
mod node;
mod output;
mod target;
mod view;
mod wait;
mod walk;
mod write;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use super::classes::Classes;
    #[pymodule_export]
    use super::connect::{connect, datasets, delete_dataset};
    #[pymodule_export]
    use super::dataset::Dataset;
    #[pymodule_export]
    use super::entry::Entry;
    #[pymodule_export]
    use super::epoch::{Epoch, token_after};
    #[pymodule_export]
    use super::log::deliver_notes;
    #[pymodule_export]
    use super::view::{Batch, View};

    use super::{Bound, PyModule, PyModuleMethods, PyResult, keep_freed_memory, log};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        keep_freed_memory();
        log::listen();
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

/// Makes glibc keep up to 64 MiB of freed memory for the next batch, where glibc gives all but
/// 128 KiB back to the kernel by default. glibc learns from a large block that is freed: the block
/// has the largest size from which glibc learns, and costs no memory, as no byte is touched.
fn keep_freed_memory() {
    const LARGEST_LESSON: usize = (32 << 20) - (8 << 10);
    drop(std::hint::black_box(Vec::<u8>::with_capacity(LARGEST_LESSON)));
}
