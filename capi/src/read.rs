//! Reads by path and by number.
//!
//! Must hold: one bad file of a batch costs no other file. A short buffer gets the needed length.
#![expect(unsafe_code, reason = "functions for C")]

use std::ffi::c_char;

use libdiesel::{Counts, Dataset, Error, FilePath, Kind, StatItem};

use crate::arguments::{Output, array, buffer as buffer_of, store_text, text, too_short};
use crate::bytes::{DL_bytes, clear, mark, store};
use crate::context::DL_context;
use crate::failure::{DL_status, Failure};
use crate::list::{DL_entry, entry_of};
use crate::status::call;

/// Borrows a file (paper, DL_get). Release with DL_release(bytes, 1).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_get(
    context: *const DL_context,
    path: *const c_char,
    bytes: *mut DL_bytes,
) -> DL_status {
    // SAFETY: the caller gives a handle, a text and room for a file.
    call(|| unsafe {
        let bytes = Output::needed(bytes, "bytes")?;
        clear(bytes, 1);
        let (context, path) = (DL_context::of(context)?, text(path, "path")?);
        match context.with(|dataset| dataset.view(path)) {
            Ok(view) => store(bytes, std::iter::once(Ok(view))),
            Err(error) => {
                mark(bytes, error.kind().into());
                Err(error.into())
            }
        }
    })
}

/// Reads a file into a buffer, and stores its length; of a buffer that is too short, the needed length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_get_into(
    context: *const DL_context,
    path: *const c_char,
    buffer: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> DL_status {
    // SAFETY: the caller gives a handle, a text, a buffer and room for a number.
    call(|| unsafe {
        let (context, path) = (DL_context::of(context)?, text(path, "path")?);
        let length = Output::needed(length, "length")?;
        let room = buffer_of(buffer, capacity, "buffer")?;
        let read = context.with(|dataset| match dataset.snapshot() {
            Some(snapshot) => match snapshot.number_at(path)? {
                Some(number) => dataset.get_into(number, room),
                None => dataset.get_into(path, room),
            },
            None => dataset.get_into(path, room),
        });
        match read {
            Ok(read) => length.set(read),
            Err(error) if error.kind() == Kind::Invalid => {
                let needed = context.with(|dataset| length_of(dataset, path))?;
                let is_short = needed > capacity as u64;
                return Err(if is_short {
                    too_short(needed as usize, length)
                } else {
                    error.into()
                });
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    })
}

/// The length of a file; 0 for none.
fn length_of(dataset: &Dataset, path: &[u8]) -> Result<u64, Error> {
    Ok(match dataset.stat(path)? {
        StatItem::File(record) => record.length,
        StatItem::Folder | StatItem::Missing => 0,
    })
}

/// Reads up to capacity bytes of a file from an offset on, and stores their number: fewer at the end of
/// the file. Of a large file only the parts with these bytes are read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_get_range(
    context: *const DL_context,
    path: *const c_char,
    offset: u64,
    buffer: *mut u8,
    capacity: usize,
    length: *mut usize,
) -> DL_status {
    // SAFETY: the caller gives a handle, a text, a buffer and room for a number.
    call(|| unsafe {
        let (context, path) = (DL_context::of(context)?, text(path, "path")?);
        let length = Output::needed(length, "length")?;
        let room = buffer_of(buffer, capacity, "buffer")?;
        let dataset = context.dataset();
        let number = match (dataset.snapshot(), FilePath::new(path.to_vec())) {
            (Some(snapshot), Ok(path)) => snapshot.number(&path)?,
            _ => None,
        };
        length.set(match number {
            Some(number) => dataset.read_range(number, offset, room)?,
            None => {
                let bytes = dataset.get_range(path, offset, capacity as u64)?;
                let read = bytes.len().min(capacity);
                for (to, from) in room.iter_mut().zip(bytes.iter()) {
                    *to = *from;
                }
                read
            }
        });
        Ok(())
    })
}

/// Borrows n files by their paths, in few requests. Release with DL_release(bytes, n) after any status.
/// DL_PARTLY if files failed, each with its status in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_get_many(
    context: *const DL_context,
    paths: *const *const c_char,
    n: usize,
    bytes: *mut DL_bytes,
) -> DL_status {
    // SAFETY: the caller gives a handle, an array of texts and room for files.
    call(|| unsafe {
        let bytes = Output::many(bytes, n, "bytes")?;
        clear(bytes, n);
        let context = DL_context::of(context)?;
        let paths = array(paths, n, "paths")?.iter().map(|path| text(*path, "paths[i]"));
        let paths = paths.collect::<Result<Vec<_>, _>>()?;
        store(bytes, context.with(|dataset| dataset.view_each(&paths))?.into_iter())
    })
}

/// Borrows n files by their numbers in the snapshot of the handle: as DL_get_many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_read(
    context: *const DL_context,
    numbers: *const u32,
    n: usize,
    bytes: *mut DL_bytes,
) -> DL_status {
    // SAFETY: the caller gives a handle, an array and room for files.
    call(|| unsafe {
        let bytes = Output::many(bytes, n, "bytes")?;
        clear(bytes, n);
        let (context, numbers) = (DL_context::of(context)?, array(numbers, n, "numbers")?);
        store(bytes, context.with(|dataset| dataset.view_each(numbers))?.into_iter())
    })
}

/// Reads n files by their numbers into a buffer, one behind the other, and stores where each ends. A
/// buffer that is too short gets the ends that the files would have.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_read_into(
    context: *const DL_context,
    numbers: *const u32,
    n: usize,
    buffer: *mut u8,
    capacity: usize,
    ends: *mut usize,
) -> DL_status {
    // SAFETY: the caller gives a handle, an array, a buffer and room for numbers.
    call(|| unsafe {
        let (context, numbers) = (DL_context::of(context)?, array(numbers, n, "numbers")?);
        let ends = Output::many(ends, n, "ends")?;
        let room = buffer_of(buffer, capacity, "buffer")?;
        let dataset = context.dataset();
        let places = match dataset.get_many_into(numbers, room) {
            Ok(places) => places,
            Err(error) => return Err(shortage(&dataset, numbers, capacity, ends, error)),
        };
        places.iter().enumerate().for_each(|(index, place)| ends.set_at(index, place.end));
        Ok(())
    })
}

/// The failure of a read into a buffer: whether it is too short.
fn shortage(
    dataset: &Dataset,
    numbers: &[u32],
    capacity: usize,
    ends: Output<usize>,
    error: Error,
) -> Failure {
    let Some(snapshot) = dataset.snapshot().filter(|_| error.kind() == Kind::Invalid) else {
        return error.into();
    };
    let mut end = 0_usize;
    for (index, number) in numbers.iter().enumerate() {
        let Ok(place) = snapshot.place(*number) else { return error.into() };
        end = end.saturating_add(place.length as usize);
        ends.set_at(index, end);
    }
    if end <= capacity { error.into() } else { too_short(end, unused()) }
}

/// No place: the ends tell the needed length.
fn unused() -> Output<usize> {
    // SAFETY: nothing is stored at NULL.
    unsafe { Output::optional(std::ptr::null_mut()) }
}

/// Describes the file or folder at a path (paper, DL_stat): its entry, with the given path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_stat(
    context: *const DL_context,
    path: *const c_char,
    entry: *mut DL_entry,
) -> DL_status {
    // SAFETY: the caller gives a handle, a text and room for an entry.
    call(|| unsafe {
        let (context, bytes) = (DL_context::of(context)?, text(path, "path")?);
        let entry = Output::needed(entry, "entry")?;
        let dataset = context.dataset();
        let found = match dataset.stat(bytes)? {
            StatItem::File(record) => entry_of(path, Some(&record), number_of(&dataset, bytes)?),
            StatItem::Folder => entry_of(path, None, None),
            StatItem::Missing => return Err(missing(&dataset, bytes)),
        };
        entry.set(found);
        Ok(())
    })
}

fn missing(dataset: &Dataset, path: &[u8]) -> Failure {
    let (name, path) = (&dataset.info().name, String::from_utf8_lossy(path));
    Failure::new(DL_status::DL_NOT_FOUND, format!("there is nothing at dl://{name}/{path}"))
}

/// The number of a file in the snapshot of a handle; none without a snapshot.
fn number_of(dataset: &Dataset, path: &[u8]) -> Result<Option<u32>, Failure> {
    let Some(snapshot) = dataset.snapshot() else { return Ok(None) };
    let path = FilePath::new(path.to_vec()).map_err(|why| Failure::invalid(why.to_string()))?;
    Ok(snapshot.number(&path)?)
}

/// The number of a file in the snapshot of the handle. Numbers run from 0 to DL_count() - 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_number(
    context: *const DL_context,
    path: *const c_char,
    number: *mut u32,
) -> DL_status {
    // SAFETY: the caller gives a handle, a text and room for a number.
    call(|| unsafe {
        let (context, path) = (DL_context::of(context)?, text(path, "path")?);
        let number = Output::needed(number, "number")?;
        let dataset = context.dataset();
        snapshot_of(&dataset)?;
        number.set(number_of(&dataset, path)?.ok_or_else(|| missing(&dataset, path))?);
        Ok(())
    })
}

/// The path of a file by its number, with NUL at its end, and its length without the NUL; of a buffer
/// that is too short, the needed capacity.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_path(
    context: *const DL_context,
    number: u32,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> DL_status {
    // SAFETY: the caller gives a handle, a buffer and room for a number.
    call(|| unsafe {
        let context = DL_context::of(context)?;
        let length = Output::needed(length, "length")?;
        let room = buffer_of(buffer.cast(), capacity, "buffer")?;
        let dataset = context.dataset();
        let path = snapshot_of(&dataset)?.path(number)?;
        store_text(path.as_bytes(), room, length)
    })
}

fn snapshot_of(dataset: &Dataset) -> Result<&libdiesel::Snapshot, Failure> {
    let none = || {
        let text = "files have numbers in a snapshot, and this handle has none: open the dataset                     without DL_CREATE, and again after its last write";
        Failure::invalid(text)
    };
    dataset.snapshot().map(|snapshot| &**snapshot).ok_or_else(none)
}

/// The number of files of the dataset: in the snapshot of the handle, or at the servers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn DL_count(context: *const DL_context, files: *mut u64) -> DL_status {
    // SAFETY: the caller gives a handle and room for a number.
    call(|| unsafe {
        let (context, count) = (DL_context::of(context)?, Output::needed(files, "files")?);
        let dataset = context.dataset();
        if let Some(snapshot) = dataset.snapshot() {
            count.set(snapshot.files().into());
            return Ok(());
        }
        match dataset.count()?.counts {
            Counts::Known { files, .. } => count.set(files),
            Counts::Unknown(why) => return Err(Failure::new(DL_status::DL_NEEDS_RECOVERY, why)),
            Counts::Unasked => return Err(Failure::new(DL_status::DL_INTERNAL, "nobody counted")),
        }
        Ok(())
    })
}
