//! Entries of folders, and lists of them.
//!
//! Must hold: an entry is valid until the next call for its list.
#![expect(non_camel_case_types, reason = "names of the C library")]
#![expect(unsafe_code, reason = "functions for C")]

use std::ffi::{CString, c_char};
use std::fmt;

use libdiesel::{FileRecord, ListEntry};

use crate::arguments::{Output, check_flags, text};
use crate::context::DL_context;
use crate::failure::{DL_status, Failure};
use crate::status::call;

/// Lists all files below the folder.
pub const DL_RECURSIVE: u32 = 1;

/// The number of a file without a number.
pub const DL_NO_NUMBER: u32 = u32::MAX;

/// A file or folder.
#[repr(C)]
#[derive(Debug)]
pub struct DL_entry {
    /// The path in the dataset, with NUL at its end.
    pub path: *const c_char,
    /// Bytes of a file.
    pub size: u64,
    /// Time of its last change, as put, in nanoseconds since 1970.
    pub mtime_ns: i64,
    /// Time of its upload, in microseconds since 1970.
    pub uploaded_us: u64,
    /// Permission bits.
    pub mode: u32,
    /// CRC-32C of its bytes.
    pub crc32c: u32,
    /// Its number in the snapshot of the handle, from DL_stat; else DL_NO_NUMBER.
    pub number: u32,
    /// 1 for a folder, whose other fields are 0.
    pub is_folder: u32,
}

pub(crate) fn entry_of(
    path: *const c_char,
    file: Option<&FileRecord>,
    number: Option<u32>,
) -> DL_entry {
    DL_entry {
        path,
        size: file.map_or(0, |file| file.length),
        mtime_ns: file.map_or(0, |file| file.attributes.mtime),
        uploaded_us: file.map_or(0, |file| file.version.stamp.get()),
        mode: file.map_or(0, |file| file.attributes.mode.into()),
        crc32c: file.map_or(0, |file| file.crc.value()),
        number: number.unwrap_or(DL_NO_NUMBER),
        is_folder: file.is_none().into(),
    }
}

/// A list of entries, for one thread at a time.
pub struct DL_list {
    entries: Box<dyn Iterator<Item = Result<ListEntry, Failure>> + Send>,
    path: CString,
}

/// Entries would fill screens.
impl fmt::Debug for DL_list {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DL_list").finish_non_exhaustive()
    }
}

impl DL_list {
    /// A list for C.
    pub(crate) fn new(
        entries: impl Iterator<Item = Result<ListEntry, Failure>> + Send + 'static,
    ) -> *mut Self {
        Box::into_raw(Box::new(Self { entries: Box::new(entries), path: CString::default() }))
    }
}

/// Lists the files and folders in a folder (paper, DL_ls), "" for the whole dataset, in the order of
/// their paths; with DL_RECURSIVE all files below it. Close with DL_ls_close.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_ls(
    context: *const DL_context,
    folder: *const c_char,
    flags: u32,
    list: *mut *mut DL_list,
) -> DL_status {
    // SAFETY: the caller gives a handle, a text and room for a list.
    call(|| unsafe {
        let (context, folder) = (DL_context::of(context)?, text(folder, "folder")?);
        let list = Output::needed(list, "list")?;
        list.set(std::ptr::null_mut());
        check_flags(flags, DL_RECURSIVE, "flags")?;
        let folder = folder.strip_suffix(b"/").unwrap_or(folder);
        let entries = context.dataset().list(folder, flags & DL_RECURSIVE != 0, false)?;
        list.set(DL_list::new(entries.map(|entry| entry.map_err(Failure::from))));
        Ok(())
    })
}

/// The next entry; DL_END after the last.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_ls_next(list: *mut DL_list, entry: *mut DL_entry) -> DL_status {
    // SAFETY: the caller gives a list that no other thread uses, and room for an entry.
    call(|| unsafe {
        let place = Output::needed(entry, "entry")?;
        let Some(list) = list.as_mut() else {
            return Err(Failure::invalid("the argument list is NULL"));
        };
        let entry = list.entries.next().ok_or_else(Failure::end)??;
        let (path, record) = match &entry {
            ListEntry::File(path, record) => (path.as_bytes(), record.as_ref()),
            ListEntry::Folder(path) => (path.as_bytes(), None),
        };
        // Paths have no NUL.
        list.path = CString::new(path).unwrap_or_default();
        place.set(entry_of(list.path.as_ptr(), record, None));
        Ok(())
    })
}

/// Frees a list. NULL is no error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_ls_close(list: *mut DL_list) {
    call(|| {
        if !list.is_null() {
            // SAFETY: the caller gives a list for the last time.
            drop(unsafe { Box::from_raw(list) });
        }
        Ok(())
    });
}
