//! Puts and deletions.
//!
//! Must hold: every file acknowledged by DL_flush is durable.
#![expect(unsafe_code, reason = "functions for C")]

use std::ffi::{c_char, c_void};

use dl_runtime::{Clock, SystemClock};
use libdiesel::{Attributes, FilePath};

use crate::arguments::{Output, array, local, text};
use crate::context::DL_context;
use crate::failure::{DL_status, Failure};
use crate::status::call;

/// Puts a file from memory (paper, DL_put), with the current time and the permissions 0644. The bytes
/// are copied. The file is durable after the next DL_flush. From now on the handle asks the servers
/// instead of its snapshot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_put(
    context: *const DL_context,
    path: *const c_char,
    data: *const c_void,
    length: usize,
) -> DL_status {
    // SAFETY: the caller gives a handle, a text and its bytes.
    call(|| unsafe {
        let (context, path) = (DL_context::of(context)?, text(path, "path")?);
        let data = array(data.cast::<u8>(), length, "data")?;
        let attributes = Attributes::at(SystemClock::new().now());
        Ok(context.with(|dataset| dataset.put(path, attributes, data))?)
    })
}

/// Puts a local file, with its modification time and permissions: as DL_put.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_put_file(
    context: *const DL_context,
    path: *const c_char,
    file: *const c_char,
) -> DL_status {
    // SAFETY: the caller gives a handle and two texts.
    call(|| unsafe {
        let (context, path) = (DL_context::of(context)?, text(path, "path")?);
        let file = local(file, "file")?;
        context.with(|dataset| dataset.put_file(path, file))?;
        Ok(())
    })
}

/// Waits until all files that were put are durable and visible (paper, DL_flush), and stores their
/// number where files is not NULL. Gives the error of the first file that could not be stored.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_flush(context: *const DL_context, files: *mut u64) -> DL_status {
    // SAFETY: the caller gives a handle and room for a number.
    call(|| unsafe {
        let context = DL_context::of(context)?;
        let flushed = context.with(|dataset| dataset.flush())?.check()?;
        Output::optional(files).set(flushed.files);
        Ok(())
    })
}

/// Deletes n files by their paths (paper, DL_delete), and stores the number of those that were there
/// where deleted is not NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_delete(
    context: *const DL_context,
    paths: *const *const c_char,
    n: usize,
    deleted: *mut u64,
) -> DL_status {
    // SAFETY: the caller gives a handle, an array of texts and room for a number.
    call(|| unsafe {
        let context = DL_context::of(context)?;
        let path = |path: &*const c_char| {
            let path = text(*path, "paths[i]")?;
            let shown = String::from_utf8_lossy(path);
            let wrong = |why| Failure::invalid(format!("delete {}: {why}", shown.escape_debug()));
            FilePath::new(path.to_vec()).map_err(wrong)
        };
        let paths = array(paths, n, "paths")?.iter().map(path).collect::<Result<Vec<_>, _>>()?;
        let done = context.with(|dataset| dataset.delete(&paths))?;
        Output::optional(deleted).set(done.deleted);
        Ok(())
    })
}
