//! Arguments of C: pointers that must not be NULL, texts, and outputs.
//!
//! Must hold: a NULL where a value is needed is an error with the name of the argument.
#![expect(unsafe_code, reason = "pointers of C")]

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::slice;

use crate::failure::{DL_status, Failure};

/// A pointer of the caller, which takes care of its use by several threads.
#[derive(Debug)]
pub(crate) struct Pointer<T>(pub(crate) *mut T);

impl<T> Clone for Pointer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Pointer<T> {}

// SAFETY: the pointer is only given back to the caller's function.
unsafe impl<T> Send for Pointer<T> {}

fn is_null(name: &str) -> Failure {
    Failure::invalid(format!("the argument {name} is NULL"))
}

/// A value of the caller.
///
/// # Safety
/// A pointer other than NULL points to a value that lives for `'a`.
pub(crate) unsafe fn value<'a, T>(pointer: *const T, name: &str) -> Result<&'a T, Failure> {
    // SAFETY: as above.
    unsafe { pointer.as_ref() }.ok_or_else(|| is_null(name))
}

/// A text that may be missing.
///
/// # Safety
/// A pointer other than NULL points to a text with NUL at its end, which lives for `'a`.
pub(crate) unsafe fn optional<'a>(pointer: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: as above.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_bytes())
}

/// A text.
///
/// # Safety
/// As for [`optional`].
pub(crate) unsafe fn text<'a>(pointer: *const c_char, name: &str) -> Result<&'a [u8], Failure> {
    // SAFETY: as above.
    unsafe { optional(pointer) }.ok_or_else(|| is_null(name))
}

/// A path of the local file system.
///
/// # Safety
/// As for [`optional`].
pub(crate) unsafe fn local<'a>(pointer: *const c_char, name: &str) -> Result<&'a Path, Failure> {
    // SAFETY: as above.
    Ok(Path::new(OsStr::from_bytes(unsafe { text(pointer, name) }?)))
}

/// An array of the caller.
///
/// # Safety
/// A pointer other than NULL points to `length` values that live for `'a`.
pub(crate) unsafe fn array<'a, T>(
    pointer: *const T,
    length: usize,
    name: &str,
) -> Result<&'a [T], Failure> {
    match (pointer.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(is_null(name)),
        // SAFETY: as above.
        _ => Ok(unsafe { slice::from_raw_parts(pointer, length) }),
    }
}

/// A buffer of the caller.
///
/// # Safety
/// A pointer other than NULL points to `length` bytes that only this call uses.
pub(crate) unsafe fn buffer<'a>(
    pointer: *mut u8,
    length: usize,
    name: &str,
) -> Result<&'a mut [u8], Failure> {
    match (pointer.is_null(), length) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(is_null(name)),
        // SAFETY: as above.
        _ => Ok(unsafe { slice::from_raw_parts_mut(pointer, length) }),
    }
}

/// A place for results of a call.
#[derive(Debug)]
pub(crate) struct Output<T>(*mut T);

impl<T> Clone for Output<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Output<T> {}

impl<T> Output<T> {
    /// A place that may be missing.
    ///
    /// # Safety
    /// A pointer other than NULL points to room for the values that are set.
    pub(crate) unsafe fn optional(pointer: *mut T) -> Self {
        Self(pointer)
    }

    /// A place.
    ///
    /// # Safety
    /// As for [`optional`](Self::optional).
    pub(crate) unsafe fn needed(pointer: *mut T, name: &str) -> Result<Self, Failure> {
        if pointer.is_null() { Err(is_null(name)) } else { Ok(Self(pointer)) }
    }

    /// A place for `length` values.
    ///
    /// # Safety
    /// As for [`optional`](Self::optional).
    pub(crate) unsafe fn many(pointer: *mut T, length: usize, name: &str) -> Result<Self, Failure> {
        if pointer.is_null() && length > 0 { Err(is_null(name)) } else { Ok(Self(pointer)) }
    }

    /// Stores a value.
    pub(crate) fn set(self, value: T) {
        self.set_at(0, value);
    }

    /// Stores a value of an array.
    pub(crate) fn set_at(self, index: usize, value: T) {
        if !self.0.is_null() {
            // SAFETY: the constructors ask for room.
            unsafe { self.0.add(index).write(value) }
        }
    }
}

/// Stores a text with NUL at its end in a buffer, and its length without the NUL. A buffer that is too
/// short gets nothing, and `length` the needed room.
pub(crate) fn store_text(
    text: &[u8],
    buffer: &mut [u8],
    length: Output<usize>,
) -> Result<(), Failure> {
    let Some((end, place)) = buffer.get_mut(..=text.len()).and_then(<[u8]>::split_last_mut) else {
        return Err(too_short(text.len() + 1, length));
    };
    place.copy_from_slice(text);
    *end = 0;
    length.set(text.len());
    Ok(())
}

/// The failure of a short buffer.
pub(crate) fn too_short(needed: usize, length: Output<usize>) -> Failure {
    length.set(needed);
    Failure::new(
        DL_status::DL_TOO_SHORT,
        format!("the buffer is too short: {needed} bytes are needed"),
    )
}

/// A structure of the caller, whose first field tells its size: that of a program built for an older or
/// a newer library. Missing fields are 0.
///
/// # Safety
/// `T` consists of numbers and pointers, for which 0 is a value. A pointer other than NULL points to as
/// many bytes as its first field tells.
pub(crate) unsafe fn structure<T: Copy>(pointer: *const T, name: &str) -> Result<T, Failure> {
    // SAFETY: the first field tells the size.
    let size = *unsafe { value(pointer.cast::<usize>(), name) }?;
    if size < size_of::<usize>() || size > 16 * size_of::<T>() {
        let text = format!("{name}.size is {size}; set it to sizeof *{name}");
        return Err(Failure::invalid(text));
    }
    // SAFETY: as above.
    let given = unsafe { slice::from_raw_parts(pointer.cast::<u8>(), size) };
    if given.iter().skip(size_of::<T>()).any(|byte| *byte != 0) {
        let text =
            format!("{name} has fields that this library does not know; use a newer library");
        return Err(Failure::invalid(text));
    }
    let mut whole = vec![0_u8; size_of::<T>()];
    for (to, from) in whole.iter_mut().zip(given) {
        *to = *from;
    }
    // SAFETY: the bytes are those of a `T`, and may be unaligned.
    Ok(unsafe { whole.as_ptr().cast::<T>().read_unaligned() })
}

/// Refuses flags that a call does not know.
pub(crate) fn check_flags(flags: u32, known: u32, name: &str) -> Result<(), Failure> {
    match flags & !known {
        0 => Ok(()),
        unknown => Err(Failure::invalid(format!("{name} has unknown bits: {unknown:#x}"))),
    }
}
