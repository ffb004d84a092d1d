//! Bytes of files in shared memory, as Python objects.
//!
//! Must hold: memory is borrowed as long as any Python object refers to it, and is read-only.

use std::ffi::c_int;

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyIndexError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::slice::PySliceIndices;
use pyo3::types::{PyBytes, PyDict, PyList, PySlice, PySliceMethods, PyType};

use crate::output::bytes_object;

/// The bytes of a file, without a copy. A view works wherever a buffer does (``memoryview``,
/// ``numpy.frombuffer``, ``io.BytesIO``, ``bytes``). A view stays valid as long as Python holds it,
/// even after the dataset is closed. Meanwhile its chunk stays in the memory of the node.
#[pyclass(frozen, module = "libdiesel")]
pub(crate) struct View(pub(crate) libdiesel::View);

#[pymethods]
impl View {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        bytes_object(py, &self.0)
    }

    /// For ``torch.from_dlpack``: the bytes as a shared tensor of ``uint8``. Never write to the
    /// tensor.
    #[pyo3(signature = (**options))]
    fn __dlpack__<'py>(
        slf: Bound<'py, Self>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let numpy = slf.py().import("numpy")?;
        let array = numpy.call_method1("frombuffer", (slf, "u1"))?;
        array.call_method("__dlpack__", (), options)
    }

    /// The memory of the host.
    fn __dlpack_device__(&self) -> (u32, u32) {
        (1, 0)
    }

    /// A pickle has a copy of the bytes, and becomes ``bytes``: another process, such as the one
    /// that reads from a loader's workers, may have no such memory.
    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (Bound<'py, PyBytes>,)) {
        (py.get_type::<PyBytes>(), (self.__bytes__(py),))
    }

    fn __repr__(&self) -> String {
        format!("<libdiesel.View of {} bytes>", self.0.len())
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        if let Ok(view) = other.cast::<Self>() {
            return *view.get().0 == *self.0;
        }
        PyBuffer::<u8>::get(other)
            .and_then(|buffer| buffer.to_vec(other.py()))
            .is_ok_and(|bytes| bytes == *self.0)
    }

    #[expect(unsafe_code, reason = "Python asks for buffers by pointers")]
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        buffer: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if flags & ffi::PyBUF_WRITABLE == ffi::PyBUF_WRITABLE {
            return Err(PyBufferError::new_err("a view is read-only; copy it: bytearray(view)"));
        }
        let data = &slf.get().0;
        let length = isize::try_from(data.len())?;
        let (start, readonly) = (data.as_ptr().cast_mut().cast(), 1);
        // SAFETY: Python passes a buffer to fill, and the buffer keeps the view alive as its owner.
        // The view keeps its bytes in place, and no code may write to them.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(buffer, slf.as_ptr(), start, length, readonly, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// Views of the files of one call, in its order: a sequence that creates its items on access.
#[pyclass(frozen, sequence, module = "libdiesel")]
pub(crate) struct Batch(pub(crate) Vec<libdiesel::View>);

impl Batch {
    fn view(&self, index: isize) -> PyResult<View> {
        let view = usize::try_from(index).ok().and_then(|index| self.0.get(index));
        let none = || PyIndexError::new_err("the batch has no view of this index");
        Ok(View(view.ok_or_else(none)?.clone()))
    }
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    /// A view, or a list of views for a slice. Each view pins its own chunk, independent of the
    /// batch.
    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = index.py();
        if let Ok(slice) = index.cast::<PySlice>() {
            let PySliceIndices { start, step, slicelength, .. } =
                slice.indices(self.0.len().cast_signed())?;
            let places = (0..slicelength.cast_signed()).map(|turn| start + turn * step);
            let views = places.map(|place| self.view(place)).collect::<PyResult<Vec<_>>>()?;
            return Ok(PyList::new(py, views)?.into_any());
        }
        let index: isize = index.extract()?;
        let from_start = if index < 0 { index + self.0.len().cast_signed() } else { index };
        Ok(Bound::new(py, self.view(from_start)?)?.into_any())
    }

    /// A pickle becomes a list of ``bytes``.
    fn __reduce__<'py>(
        &self,
        py: Python<'py>,
    ) -> PyResult<(Bound<'py, PyType>, (Bound<'py, PyList>,))> {
        let bytes = PyList::new(py, self.0.iter().map(|view| PyBytes::new(py, view)))?;
        Ok((py.get_type::<PyList>(), (bytes,)))
    }

    fn __repr__(&self) -> String {
        let bytes: usize = self.0.iter().map(|view| view.len()).sum();
        format!("<libdiesel.Batch of {} views, {bytes} bytes>", self.0.len())
    }
}
