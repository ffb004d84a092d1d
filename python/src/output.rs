//! The destinations of files: memory of the caller, and bytes objects.
//!
//! Must hold: no byte is written behind the end of a buffer.

use dl_node::copy_to_new;
use pyo3::buffer::PyBuffer;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::invalid;

/// A writable buffer of Python.
pub(crate) struct OutputBuffer(PyBuffer<u8>);

impl OutputBuffer {
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = object.py();
        // A tensor in host memory shares its memory with an array.
        let buffer = PyBuffer::<u8>::get(object).or_else(|error| {
            let array = object.call_method0("numpy").map_err(|_| error)?;
            PyBuffer::<u8>::get(&array)
        })?;
        if buffer.readonly() || !buffer.is_c_contiguous() {
            let text = "the buffer has to be writable, of bytes, and in one piece";
            return Err(invalid(py, text));
        }
        Ok(Self(buffer))
    }

    /// Copies bytes to an offset; returns their end, or none if they don't fit.
    pub(crate) fn copy(&self, from: usize, bytes: &[u8]) -> Option<usize> {
        let to = from.checked_add(bytes.len())?;
        if to > self.0.len_bytes() {
            return None;
        }
        #[expect(unsafe_code, reason = "memory of Python's is written by pointers")]
        // SAFETY: the buffer is writable, contiguous, and as long as checked. Python keeps the
        // buffer in place while it is borrowed, and this thread holds the interpreter's lock.
        let place = unsafe {
            std::slice::from_raw_parts_mut(
                self.0.buf_ptr().cast::<u8>().add(from).cast(),
                bytes.len(),
            )
        };
        copy_to_new(bytes, place);
        Some(to)
    }
}

/// A bytes object with a copy of the bytes.
pub(crate) fn bytes_object<'py>(py: Python<'py>, bytes: &[u8]) -> Bound<'py, PyBytes> {
    let length = bytes.len().cast_signed();
    #[expect(unsafe_code, reason = "pyo3 fills the memory of a new object with zeros first")]
    // SAFETY: this thread holds the interpreter's lock. The object is new, so nothing else refers to
    // its `length` bytes before they have their values.
    unsafe {
        let object = ffi::PyBytes_FromStringAndSize(std::ptr::null(), length);
        let object = Bound::from_owned_ptr(py, object);
        let start = ffi::PyBytes_AsString(object.as_ptr()).cast();
        copy_to_new(bytes, std::slice::from_raw_parts_mut(start, bytes.len()));
        object.cast_into_unchecked()
    }
}
