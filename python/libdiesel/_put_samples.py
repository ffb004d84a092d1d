"""Samples of other formats become files: a file for each field."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from libdiesel._native import Dataset, View
from libdiesel.errors import InvalidError


def put_samples(dataset: Dataset, samples: Iterable[Mapping[str, Any]], name: str = "{index:08}") -> int:
    """Puts samples, with a file ``NAME.FIELD`` for each field, flushes once at the end, and returns the number of
    files that became visible. :class:`libdiesel.torch.Samples` reads such files.

    :param samples: dictionaries from field to value. Fields that begin with two underscores are not stored.
    :param name: a format of the name, ``str.format``, with ``index``, the number of the sample from 0, and the
        fields: ``"{label}/{index:08}"``, ``"{__key__}"``

    ========================= ==================================================================
    value                     file
    ========================= ==================================================================
    bytes, View               the bytes
    str, int, float           the text, in UTF-8
    NumPy array               ``NAME.FIELD.npy``; ``NAME.npy`` for the field ``npy``
    image of Pillow           ``NAME.FIELD.png``, or the image's own format; ``NAME.jpg`` for
                              a JPEG image in the field ``jpg``
    ========================= ==================================================================

    :raises TypeError: for a value of another type
    :raises InvalidError: if two files would have the same path
    After an error, nothing is flushed: files put so far become visible with the next flush of the handle.
    """
    names: set[str] | None = None if "{index" in name else set()
    for index, sample in enumerate(samples):
        stem = _stem(name, index, sample)
        if names is not None:
            if stem in names:
                raise InvalidError(f"two samples have the name {stem!r}: put {{index}} into name={name!r}")
            names.add(stem)
        paths = set()
        for field, value in sample.items():
            if field.startswith("__"):
                continue
            if not field or "/" in field:
                raise InvalidError(f"sample {index}: the field {field!r} is no part of a file's name")
            try:
                data, form = _encoded(value, field)
            except (TypeError, ValueError, OSError) as error:
                error.add_note(f"the value is the field {field!r} of sample {index}")
                raise
            path = f"{stem}.{field}{form}"
            if path in paths:
                raise InvalidError(f"sample {index}: two fields have the file {path!r}: rename a field")
            paths.add(path)
            dataset.put(path, data)
    return dataset.flush()


def _stem(name: str, index: int, sample: Mapping[str, Any]) -> str:
    try:
        stem = name.format(**{**sample, "index": index})
    except (KeyError, IndexError) as error:
        raise InvalidError(f"sample {index} has no field {error} of name={name!r}") from None
    if not stem:
        raise InvalidError(f"sample {index} has an empty name: name={name!r}")
    return stem


def _encoded(value: Any, field: str) -> tuple[Any, str]:
    """Returns the bytes of a value, and the ending that the field lacks."""
    if isinstance(value, (bytes, bytearray, memoryview, View)):
        return value, ""
    # Programs without NumPy and Pillow have no such values.
    numpy, images = sys.modules.get("numpy"), sys.modules.get("PIL.Image")
    if numpy is not None and isinstance(value, numpy.generic):
        value = value.item()
    if isinstance(value, str):
        return value.encode(), ""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return str(value).encode(), ""
    file = io.BytesIO()
    if numpy is not None and isinstance(value, numpy.ndarray):
        numpy.save(file, value, allow_pickle=False)
        return file.getvalue(), _ending(field, "npy")
    if images is not None and isinstance(value, images.Image):
        form = value.format or "PNG"
        options = {"quality": "keep"} if form == "JPEG" else {}
        value.save(file, form, **options)
        return file.getvalue(), _ending(field, *(("jpg", "jpeg") if form == "JPEG" else (form.lower(),)))
    raise TypeError(f"{value!r:.100} has to be bytes, a text, a number, a NumPy array or an image of Pillow")


def _ending(field: str, *endings: str) -> str:
    return "" if field.lower().rpartition(".")[2] in endings else f".{endings[0]}"
