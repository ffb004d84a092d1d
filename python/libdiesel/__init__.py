"""Datasets of many small files for training: packed, cached, shuffled, resumed exactly.

>>> import libdiesel
>>> with libdiesel.connect("dl://animals", create=True) as pets:
...     pets.put("cats/tom.txt", b"meow")
...     pets.flush()
1
>>> pets = libdiesel.connect("dl://animals")
>>> pets.get("cats/tom.txt")
b'meow'
>>> pets.ls("cats")
['tom.txt']
>>> [bytes(view) for view in pets.view_many([0])]
[b'meow']
>>> pets.close()

Classes for PyTorch are in :mod:`libdiesel.torch`.
"""

from __future__ import annotations

import atexit
import logging
import os
import weakref
from collections.abc import Sequence
from typing import Any, Union

from libdiesel import _native, errors
from libdiesel._native import Batch, Classes, Dataset, Entry, Epoch, View, __version__, token_after
from libdiesel._mount import Mount, mount
from libdiesel._options import whole
from libdiesel._put_samples import put_samples
from libdiesel._ranks import Ranks
from libdiesel._results import Purged
from libdiesel._serve import Server, serve
from libdiesel.errors import (
    CancelledError,
    ClosedError,
    ConflictError,
    CorruptError,
    DieselError,
    FullError,
    InternalError,
    InvalidError,
    LocalError,
    NeedsRecoveryError,
    NotFoundError,
    PermissionDenied,
    Timeout,
    UnavailableError,
    UnreachableError,
)

__all__ = [
    "Batch",
    "CancelledError",
    "Classes",
    "ClosedError",
    "ConflictError",
    "CorruptError",
    "Dataset",
    "DieselError",
    "Entry",
    "Epoch",
    "FullError",
    "InternalError",
    "InvalidError",
    "LocalError",
    "Mount",
    "NeedsRecoveryError",
    "NotFoundError",
    "PermissionDenied",
    "Purged",
    "Ranks",
    "Server",
    "Timeout",
    "UnavailableError",
    "UnreachableError",
    "View",
    "__version__",
    "connect",
    "datasets",
    "delete_dataset",
    "errors",
    "mount",
    "put_samples",
    "serve",
    "token_after",
]

Sequence.register(Batch)

# Handles of this process, for the report at its end.
_handles: weakref.WeakSet[Dataset] = weakref.WeakSet()
os.register_at_fork(after_in_child=_handles.clear)


@atexit.register
def _report() -> None:
    """Reports files that were put and never flushed, and the last notes of the library."""
    for handle in _handles:
        if handle.unflushed and not handle.closed:
            logging.getLogger("libdiesel").warning(
                "the program ends without a flush of dl://%s: its last puts (%d) may be lost; call flush() or close()",
                handle.name,
                handle.unflushed,
            )
    _native.deliver_notes()


Path = Union[str, "os.PathLike[str]"]


def connect(
    dataset: str,
    *,
    server: str | Sequence[str] | None = None,
    user: str | None = None,
    key: str | None = None,
    key_file: Path | None = None,
    ca: Path | None = None,
    client_cert: Path | None = None,
    client_key: Path | None = None,
    plain_text_key: bool = False,
    snapshot: Path | None = None,
    task: str | bool | None = None,
    tiers: str | None = None,
    timeout: float = 60.0,
    create: bool = False,
    chunk_size: int | None = None,
) -> Dataset:
    """Opens a dataset, ``dl://NAME`` (paper, Table 3: DL_connect).

    :param server: ``host:port`` or ``https://host:port``, or several servers of the same datasets;
        otherwise the environment variable DIESEL_SERVER, otherwise ``127.0.0.1:7420``
    :param user: the name of the user; otherwise DIESEL_USER
    :param key: the key of the user; otherwise the content of ``key_file``, otherwise DIESEL_KEY
    :param ca: a file with the certificates (PEM) to trust; otherwise DIESEL_CA
    :param plain_text_key: send the key unencrypted to other machines
    :param snapshot: read the version of a file of :meth:`Dataset.save_meta`
    :param task: the training job whose processes share one cache on each machine; True or None to find its
        name from DIESEL_TASK, SLURM, torchrun or PMIx, otherwise from the session of the terminal; False to
        read from the servers. The first process of a task starts the agent of its machine.
    :param tiers: memory and folders on local disks for the cache of this machine, with their sizes, as in
        ``memory:8GiB,/nvme/diesel:200GiB``, if this call starts the agent; otherwise DIESEL_AGENT_TIERS
    :param timeout: time limit of a request in seconds, including retries
    :param create: create a missing dataset, to write it; such a handle has no task
    :param chunk_size: bytes of its chunks, by default 4 MiB
    :raises NotFoundError: if the dataset does not exist
    :raises UnreachableError: if no server answers
    """
    if not isinstance(dataset, str):
        raise TypeError(f"dataset={dataset!r} has to be an address, dl://NAME")
    if chunk_size is not None:
        chunk_size = whole("chunk_size", chunk_size, least=1)
    if create and snapshot is not None:
        raise InvalidError("create and snapshot exclude each other: leave out one of the two")
    name: str | None
    if task is None or task is True:
        name = None if create else ""
    else:
        name = task or None
    given = _given(server, user, key, key_file, ca, client_cert, client_key, plain_text_key, timeout)
    handle = _native.connect(
        dataset,
        given,
        snapshot=snapshot,
        task=name,
        tiers=tiers,
        create=create,
        chunk_size=chunk_size,
        version=None,
    )
    _handles.add(handle)
    return handle


def datasets(
    *,
    server: str | Sequence[str] | None = None,
    user: str | None = None,
    key: str | None = None,
    key_file: Path | None = None,
    ca: Path | None = None,
    client_cert: Path | None = None,
    client_key: Path | None = None,
    plain_text_key: bool = False,
    timeout: float = 60.0,
) -> list[str]:
    """Returns the names of all datasets that the user may read. The arguments are those of
    :func:`connect`."""
    given = _given(server, user, key, key_file, ca, client_cert, client_key, plain_text_key, timeout)
    return _native.datasets(given)


def delete_dataset(
    dataset: str,
    *,
    server: str | Sequence[str] | None = None,
    user: str | None = None,
    key: str | None = None,
    key_file: Path | None = None,
    ca: Path | None = None,
    client_cert: Path | None = None,
    client_key: Path | None = None,
    plain_text_key: bool = False,
    timeout: float = 60.0,
) -> int:
    """Deletes a dataset with all its files (paper, Table 3: DL_delete_dataset), and returns the number of
    objects removed so far; the servers remove the rest. The arguments are those of :func:`connect`.

    :raises NotFoundError: if the dataset does not exist
    """
    given = _given(server, user, key, key_file, ca, client_cert, client_key, plain_text_key, timeout)
    return _native.delete_dataset(dataset, given)


def _given(
    server: str | Sequence[str] | None,
    user: str | None,
    key: str | None,
    key_file: Path | None,
    ca: Path | None,
    client_cert: Path | None,
    client_key: Path | None,
    plain_text_key: bool,
    timeout: float,
) -> dict[str, Any]:
    """The arguments about servers and user, for the native half."""
    if not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout={timeout!r} has to be a number of seconds")
    return {
        "server": [server] if isinstance(server, str) else list(server or []),
        "user": user,
        "key": key,
        "key_file": key_file,
        "ca": ca,
        "client_cert": client_cert,
        "client_key": client_key,
        "plain_text_key": plain_text_key,
        "timeout": float(timeout),
    }


def _connect_again(arguments: dict[str, Any]) -> Dataset:
    """Restores a handle from a pickle."""
    rest = dict(arguments)
    task, version = rest.pop("task"), rest.pop("version")
    dataset, snapshot, tiers = rest.pop("dataset"), rest.pop("snapshot"), rest.pop("tiers")
    handle = _native.connect(
        dataset,
        rest,
        snapshot=snapshot,
        task=task or None,
        tiers=tiers,
        create=False,
        chunk_size=None,
        version=version,
    )
    _handles.add(handle)
    return handle
