//! Memory of the caller as the destination of files.
//!
//! Must hold: no byte is written behind the end of the buffer.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;

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
        unsafe {
            std::ptr::copy_nonoverlapping(
                bytes.as_ptr(),
                self.0.buf_ptr().cast::<u8>().add(from),
                bytes.len(),
            );
        }
        Some(to)
    }
}
