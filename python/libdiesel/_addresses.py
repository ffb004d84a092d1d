"""Addresses of datasets, folders and files, ``dl://DATASET[/PATH]``."""

from __future__ import annotations

from libdiesel._native import Dataset
from libdiesel.errors import DieselError, InvalidError


def address(dataset: Dataset, number: int) -> str:
    """Returns the address of a file."""
    return f"dl://{dataset.name}/{dataset.path(number)}"


def name_sample(error: Exception, dataset: Dataset, number: int) -> Exception:
    """Adds a note with the file to the error of a sample. Errors of the library name the file by themselves."""
    if not isinstance(error, DieselError):
        error.add_note(f"the sample is {address(dataset, number)}")
    return error


def split(root: str) -> tuple[str, str]:
    """Returns the address of the dataset, and the path in the dataset."""
    if not isinstance(root, str) or not root.startswith("dl://"):
        raise InvalidError(f"{root!r} is no address: type dl://DATASET or dl://DATASET/FOLDER")
    name, _, path = root.removeprefix("dl://").partition("/")
    return f"dl://{name}", path.rstrip("/")
