//! Bytes of files where they lie in shared memory, as Python sees them.
//!
//! Must hold: memory is borrowed as long as any Python object refers to it, and is read-only.

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::exceptions::{PyBufferError, PyIndexError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

/// The bytes of one file, without a copy: anything that takes a buffer takes a view (``memoryview``,
/// ``numpy.frombuffer``, ``io.BytesIO``, ``bytes``). A view stays valid as long as Python holds it, also
/// after the dataset is closed; meanwhile its chunk stays in the memory of the node.
#[pyclass(frozen, module = "libdiesel")]
pub(crate) struct View(Held);

enum Held {
    One(libdiesel::View),
    Of(Arc<[libdiesel::View]>, usize),
}

impl View {
    pub(crate) fn of(view: libdiesel::View) -> Self {
        Self(Held::One(view))
    }

    fn data(&self) -> &[u8] {
        match &self.0 {
            Held::One(view) => view,
            Held::Of(views, index) => views.get(*index).map_or(&[], |view| view),
        }
    }
}

#[pymethods]
impl View {
    fn __len__(&self) -> usize {
        self.data().len()
    }

    fn __bytes__<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, self.data())
    }

    /// For ``torch.from_dlpack``: the bytes as a tensor of ``uint8`` that shares them. Never write to it.
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

    fn __repr__(&self) -> String {
        format!("<libdiesel.View of {} bytes>", self.data().len())
    }

    fn __eq__(&self, other: &Bound<'_, PyAny>) -> bool {
        if let Ok(view) = other.cast::<Self>() {
            return view.get().data() == self.data();
        }
        other.extract::<&[u8]>().is_ok_and(|bytes| bytes == self.data())
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
        let data = slf.get().data();
        let length = isize::try_from(data.len())?;
        let (start, readonly) = (data.as_ptr().cast_mut().cast(), 1);
        // SAFETY: Python hands over a buffer to fill, which keeps the view alive as its owner; the view
        // keeps its bytes where they are, and nobody may write to them.
        let filled =
            unsafe { ffi::PyBuffer_FillInfo(buffer, slf.as_ptr(), start, length, readonly, flags) };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }
}

/// Views of the files of one call, in its order: a sequence whose items are made when they are asked for.
#[pyclass(frozen, sequence, module = "libdiesel")]
pub(crate) struct Batch(Arc<[libdiesel::View]>);

impl Batch {
    pub(crate) fn of(views: Vec<libdiesel::View>) -> Self {
        Self(views.into())
    }
}

#[pymethods]
impl Batch {
    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __getitem__(&self, index: isize) -> PyResult<View> {
        let from_start = if index < 0 { index + self.0.len().cast_signed() } else { index };
        let index = usize::try_from(from_start).ok().filter(|index| *index < self.0.len());
        let none = || PyIndexError::new_err("the batch has no view of this index");
        Ok(View(Held::Of(Arc::clone(&self.0), index.ok_or_else(none)?)))
    }

    fn __repr__(&self) -> String {
        let bytes: usize = self.0.iter().map(|view| view.len()).sum();
        format!("<libdiesel.Batch of {} views, {bytes} bytes>", self.0.len())
    }
}
