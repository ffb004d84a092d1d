//! The handle of a dataset.
//!
//! Must hold: a handle and what it gave out work after a fork, and until they are closed.
#![expect(non_camel_case_types, reason = "names of the C library")]
#![expect(unsafe_code, reason = "functions for C")]

use std::ffi::c_char;
use std::sync::Arc;

use arc_swap::ArcSwap;
use libdiesel::{ChunkShape, Client, ConnectOptions, Dataset, SnapshotCache};

use crate::arguments::{Output, local, value};
use crate::failure::{DL_status, Failure};
use crate::options::{DL_options, Settings, address};
use crate::status::call;

/// A handle of a dataset, for any number of threads.
#[derive(Debug)]
pub struct DL_context {
    pub(crate) client: Client,
    dataset: ArcSwap<Dataset>,
}

impl DL_context {
    /// The dataset of a handle.
    ///
    /// # Safety
    /// A pointer other than NULL is a handle that is not closed.
    pub(crate) unsafe fn of<'a>(context: *const Self) -> Result<&'a Self, Failure> {
        // SAFETY: as above.
        unsafe { value(context, "context") }
    }

    /// The dataset.
    pub(crate) fn dataset(&self) -> Arc<Dataset> {
        self.dataset.load_full()
    }

    /// Calls with the dataset, without a count of references.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&Dataset) -> T) -> T {
        work(&self.dataset.load())
    }
}

/// Opens the dataset of an address.
///
/// # Safety
/// As for [`Settings::of`] and [`address`].
pub(crate) unsafe fn open(name: *const c_char, settings: &Settings) -> Result<DL_context, Failure> {
    // SAFETY: as above.
    let (name, folder) = unsafe { address(name, "address") }?;
    if !folder.is_root() {
        return Err(Failure::invalid(format!("{name}/{folder} is a folder; name the dataset")));
    }
    let client = Client::connect(ConnectOptions { task: settings.task()?, ..settings.client()? })?;
    let dataset = match &settings.snapshot {
        Some(file) => client.by_snapshot(&name, file, SnapshotCache::of_user().as_ref())?,
        None if settings.creates() => client.create_dataset(&name, ChunkShape::default())?,
        None => client.dataset(&name)?,
    };
    Ok(DL_context { client, dataset: ArcSwap::from_pointee(dataset) })
}

/// Opens an existing dataset (paper, Table 3): as DL_open with the options user, key and servers, each
/// of which may be NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_connect(
    user: *const c_char,
    key: *const c_char,
    dataset: *const c_char,
    servers: *const c_char,
    context: *mut *mut DL_context,
) -> DL_status {
    let none = std::ptr::null();
    let options = DL_options {
        size: size_of::<DL_options>(),
        servers,
        user,
        key,
        key_file: none,
        ca: none,
        client_cert: none,
        client_key: none,
        snapshot: none,
        task: none,
        timeout_ms: 0,
        flags: 0,
    };
    // SAFETY: the arguments are those of the caller.
    unsafe { DL_open(dataset, &raw const options, context) }
}

/// Opens the dataset at an address, dl://NAME or NAME, with options or NULL. The handle reads from a
/// snapshot of the dataset as of now, in a task from the cache of the node. Close with DL_close.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_open(
    address: *const c_char,
    options: *const DL_options,
    context: *mut *mut DL_context,
) -> DL_status {
    // SAFETY: the caller gives texts, options and room for a handle.
    call(|| unsafe {
        let place = Output::needed(context, "context")?;
        place.set(std::ptr::null_mut());
        let opened = open(address, &Settings::of(options)?)?;
        place.set(Box::into_raw(Box::new(opened)));
        Ok(())
    })
}

/// Closes a handle: makes files that were put durable, and frees the handle in any case. Bytes and
/// epochs of the handle stay valid. No other call may use the handle now or later. NULL is no error.
/// Gives the error of the first file that could not be stored since the last flush.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_close(context: *mut DL_context) -> DL_status {
    call(|| {
        if context.is_null() {
            return Ok(());
        }
        // SAFETY: the caller gives a handle of DL_open for the last time.
        let context = unsafe { Box::from_raw(context) };
        let dataset = Dataset::clone(&context.dataset());
        Ok(dataset.close()?)
    })
}

/// Writes a snapshot of the dataset to a file (paper, DL_save_meta), for DL_load_meta and
/// `dlcmd --snapshot`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_save_meta(
    context: *const DL_context,
    file: *const c_char,
) -> DL_status {
    // SAFETY: the caller gives a handle and a text.
    call(|| unsafe {
        let (context, file) = (DL_context::of(context)?, local(file, "file")?);
        context.with(|dataset| dataset.save_meta(file))?;
        Ok(())
    })
}

/// Lets the handle read the version of a snapshot file (paper, DL_load_meta).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_load_meta(
    context: *const DL_context,
    file: *const c_char,
) -> DL_status {
    // SAFETY: the caller gives a handle and a text.
    call(|| unsafe {
        let (context, file) = (DL_context::of(context)?, local(file, "file")?);
        let cache = SnapshotCache::of_user();
        let loaded = context.with(|dataset| dataset.load_meta(file, cache.as_ref()))?;
        context.dataset.store(Arc::new(loaded));
        Ok(())
    })
}
