//! Bytes of files, lent to C.
//!
//! Must hold: lent bytes stay in place until their release, also after the end of the handle, of the
//! agent and of their place in the cache.
#![expect(non_camel_case_types, reason = "names of the C library")]
#![expect(unsafe_code, reason = "functions for C")]

use std::ptr;

use libdiesel::{Error, View};

use crate::arguments::Output;
use crate::failure::{DL_status, Failure};
use crate::status::call;

/// The owner of lent bytes.
#[derive(Debug)]
pub struct DL_owner {
    /// Keeps the bytes in place.
    _view: View,
}

/// The bytes of a file, lent until DL_release. Never write to them. Where status is not DL_OK, there
/// are no bytes.
#[repr(C)]
#[derive(Debug)]
pub struct DL_bytes {
    /// The first byte.
    pub data: *const u8,
    /// The number of bytes.
    pub length: usize,
    /// The owner of the bytes; NULL without bytes.
    pub owner: *mut DL_owner,
    /// The result for this file.
    pub status: DL_status,
}

impl DL_bytes {
    fn none(status: DL_status) -> Self {
        Self { data: ptr::null(), length: 0, owner: ptr::null_mut(), status }
    }

    fn of(view: View) -> Self {
        // The bytes of a view do not move with it.
        let (data, length) = (view.as_ptr(), view.len());
        let owner = Box::into_raw(Box::new(DL_owner { _view: view }));
        Self { data, length, owner, status: DL_status::DL_OK }
    }
}

/// Marks files as not read, until they are.
pub(crate) fn clear(bytes: Output<DL_bytes>, files: usize) {
    (0..files).for_each(|index| bytes.set_at(index, DL_bytes::none(DL_status::DL_CANCELLED)));
}

/// Marks a file as failed.
pub(crate) fn mark(bytes: Output<DL_bytes>, status: DL_status) {
    bytes.set(DL_bytes::none(status));
}

/// Stores files; fails with the first failure among them.
pub(crate) fn store(
    bytes: Output<DL_bytes>,
    files: impl Iterator<Item = Result<View, Error>>,
) -> Result<(), Failure> {
    let mut first = None;
    for (index, file) in files.enumerate() {
        let stored = file.map(DL_bytes::of).unwrap_or_else(|error| {
            let status = DL_status::from(error.kind());
            first.get_or_insert_with(|| Failure::partly(&error));
            DL_bytes::none(status)
        });
        bytes.set_at(index, stored);
    }
    first.map_or(Ok(()), Err)
}

/// Gives bytes back, and empties the array. Without bytes an element stays as it is, so a second
/// release of the same array is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_release(bytes: *mut DL_bytes, n: usize) {
    call(|| {
        for index in 0..if bytes.is_null() { 0 } else { n } {
            // SAFETY: the caller gives an array of n elements.
            let one = unsafe { &mut *bytes.add(index) };
            if !one.owner.is_null() {
                // SAFETY: the owner is of `DL_bytes::of`, and is taken once.
                drop(unsafe { Box::from_raw(one.owner) });
                *one = DL_bytes::none(one.status);
            }
        }
        Ok(())
    });
}
