"""Copies between datasets and other filesystems, in batches of bounded memory.

A file arrives whole or not at all. A copy that was stopped goes on when it is called again: files with the same
size and modification time are skipped.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import fsspec
from fsspec.implementations.local import LocalFileSystem

import libdiesel
from libdiesel._addresses import split
from libdiesel._options import whole
from libdiesel.errors import InvalidError, LocalError, NotFoundError

__all__ = ["Report", "copy"]

#: Bytes of a batch, which are in memory at a time. A larger file passes through a temporary file.
BATCH_BYTES = 64 << 20

#: Files of a batch: they become durable together.
BATCH_FILES = 1024

#: Seconds between two times that count as equal: filesystems round times.
TIME_ERROR = 0.001

#: Names of the modification time in the entries of fsspec's filesystems.
TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "last_commit", "created")

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class File:
    """A file in a folder: its path in the folder, bytes, and modification time in seconds since 1970. Some
    filesystems do not know the size or the time."""

    path: str
    size: int | None
    time: float | None


@dataclass
class Report:
    """The progress of a copy: files found, copied and skipped, and bytes copied. Entries that are no files
    (devices, broken links) are left out."""

    files: int = 0
    copied: int = 0
    skipped: int = 0
    bytes: int = 0
    left_out: int = 0


def copy(
    source: str,
    destination: str,
    *,
    source_options: Mapping[str, Any] | None = None,
    destination_options: Mapping[str, Any] | None = None,
    jobs: int = 16,
    is_size_enough: bool = False,
    progress: Callable[[Report], None] | None = None,
) -> Report:
    """Copies all files of a folder into another folder. One of the two is a dataset or a folder in a dataset. A
    missing dataset is created.

    :param source: ``dl://DATASET[/DIR]``, or an address of fsspec (``s3://``, ``gs://``, ``hf://``, a path); a
        file is copied into the folder
    :param source_options: of :func:`libdiesel.connect`, or of fsspec's filesystem
    :param jobs: files in transfer at a time
    :param is_size_enough: skip files of equal size, whatever their times
    :param progress: is called after each batch

    Files with the size and the modification time of the source are skipped. A destination that does not keep
    times has to be newer. A source without times is copied again. The first error ends the copy.

    :raises NotFoundError: if there is no source
    :raises OSError: if a file could not be copied; the same call goes on
    """
    jobs = whole("jobs", jobs, least=1)
    if not any(address.startswith("dl://") for address in (source, destination)):
        raise InvalidError("one of source and destination has to be a dataset, dl://DATASET[/DIR]")
    report = Report()
    with ThreadPoolExecutor(jobs) as pool, contextlib.ExitStack() as stack:
        stack.callback(pool.shutdown, cancel_futures=True)
        start = stack.enter_context(_folder(source, source_options or {}, pool, is_new=False))
        files = start.files(report)
        end = stack.enter_context(_folder(destination, destination_options or {}, pool, is_new=True))
        present = {file.path: file for file in end.files(Report())}
        report.files = len(files)
        missing = [file for file in files if not _is_same(file, present.get(file.path), end, is_size_enough)]
        report.skipped = len(files) - len(missing)
        del files, present
        for batch in _batches(missing):
            try:
                report.bytes += _copy_batch(batch, start, end)
            except Exception as error:
                raise _explained(error, source, destination, report) from error
            report.copied += len(batch)
            if progress is not None:
                progress(report)
    return report


def _copy_batch(batch: list[File], start: Folder, end: Folder) -> int:
    """Copies some files, and returns their bytes."""
    if len(batch) == 1 and _is_large(batch[0]):
        with tempfile.TemporaryDirectory(prefix="libdiesel-") as folder:
            local = os.path.join(folder, "file")
            start.download(batch[0], local)
            size = os.path.getsize(local)
            _check_size(batch[0], size)
            end.upload(batch[0], local)
            return size
    contents = start.read(batch)
    for file, content in zip(batch, contents):
        _check_size(file, len(content))
    end.write(list(zip(batch, contents)))
    return sum(map(len, contents))


def _check_size(file: File, size: int) -> None:
    if file.size is not None and file.size != size:
        raise LocalError(f"read {file.path}: the file had {file.size} bytes, and now {size} bytes")


def _is_large(file: File) -> bool:
    return file.size is None or file.size > BATCH_BYTES


def _is_same(file: File, other: File | None, end: Folder, is_size_enough: bool) -> bool:
    """Returns whether the destination has the file."""
    if other is None or file.size is None or file.size != other.size:
        return False
    if is_size_enough:
        return True
    if file.time is None or other.time is None:
        return False
    return abs(file.time - other.time) <= TIME_ERROR if end.has_times else other.time > file.time


def _batches(files: list[File]) -> Iterator[list[File]]:
    """Yields the files in batches; a large file is a batch of its own."""
    batch: list[File] = []
    size = 0
    for file in files:
        if _is_large(file):
            yield [file]
            continue
        size += file.size or 0
        if batch and (size > BATCH_BYTES or len(batch) == BATCH_FILES):
            yield batch
            batch, size = [], file.size or 0
        batch.append(file)
    if batch:
        yield batch


def _explained(error: Exception, source: str, destination: str, report: Report) -> Exception:
    """Returns an error with the cause and the remedy; it keeps the class where callers look at the class."""
    done = report.copied + report.skipped
    text = (
        f"copy {source} to {destination}: {error} ({done} of {report.files} files are there; the same command "
        "goes on)"
    )
    for kind in (libdiesel.UnreachableError, libdiesel.Timeout, NotFoundError, InvalidError):
        if isinstance(error, kind):
            return kind(text)
    return FileNotFoundError(text) if isinstance(error, FileNotFoundError) else LocalError(text)


class Folder(Protocol):
    """A folder of a dataset or of another filesystem."""

    #: Whether written files have the modification time of their source.
    has_times: bool

    def files(self, report: Report) -> list[File]:
        """Returns all files of the folder, none for a missing destination."""

    def read(self, files: list[File]) -> list[bytes]:
        """Returns the contents of some files."""

    def download(self, file: File, local: str) -> None:
        """Reads a file into a local file."""

    def write(self, files: list[tuple[File, bytes]]) -> None:
        """Writes some files, durable on return."""

    def upload(self, file: File, local: str) -> None:
        """Writes a file from a local file, which may be moved."""


@contextlib.contextmanager
def _folder(address: str, options: Mapping[str, Any], pool: ThreadPoolExecutor, is_new: bool) -> Iterator[Folder]:
    if address.startswith("dl://"):
        name, path = split(address)
        if is_new:
            handle = libdiesel.connect(name, create=True, **options)
        else:
            handle = libdiesel.connect(name, **{"task": False, **options})
        with handle:
            yield _Dataset(handle, path, is_new)
        return
    try:
        fs, root = fsspec.core.url_to_fs(address, **options)
    except (ImportError, ValueError) as error:
        raise InvalidError(f"open {address}: {error}") from error
    yield (_Local if isinstance(fs, LocalFileSystem) else _Remote)(fs, root, pool, is_new)


class _Dataset:
    """A dataset, or a folder in a dataset."""

    has_times = True

    def __init__(self, dataset: libdiesel.Dataset, root: str, is_new: bool) -> None:
        self.dataset, self.root, self.is_new = dataset, root, is_new

    def files(self, report: Report) -> list[File]:
        try:
            top = self.dataset.stat(self.root) if self.root else None
        except NotFoundError:
            if self.is_new:
                return []
            raise
        if top is not None and not top.is_folder:
            if self.is_new:
                raise InvalidError(f"write into dl://{self.dataset.name}/{self.root}: it is a file")
            self.root, _, name = self.root.rpartition("/")
            return [File(name, top.size, top.mtime)]
        start = len(self.root) + 1 if self.root else 0
        entries = self.dataset.walk(self.root or None, details=True)
        return [File(entry.path[start:], entry.size, entry.mtime) for entry in entries]

    def _path(self, file: File) -> str:
        return f"{self.root}/{file.path}" if self.root else file.path

    def read(self, files: list[File]) -> list[bytes]:
        return self.dataset.get_many([self._path(file) for file in files])

    def download(self, file: File, local: str) -> None:
        size, path = file.size or 0, self._path(file)
        with open(local, "wb") as target:
            for offset in range(0, size, BATCH_BYTES):
                target.write(self.dataset.get(path, offset=offset, length=min(BATCH_BYTES, size - offset)))

    def write(self, files: list[tuple[File, bytes]]) -> None:
        for file, content in files:
            self.dataset.put(self._path(file), content, mtime=file.time)
        self.dataset.flush()

    def upload(self, file: File, local: str) -> None:
        _set_time(file, local)
        self.dataset.put_file(self._path(file), local)
        self.dataset.flush()


class _Remote:
    """A folder of a filesystem of fsspec. Many filesystems answer a request at a time, so threads ask them."""

    has_times = False

    def __init__(self, fs: Any, root: str, pool: ThreadPoolExecutor, is_new: bool) -> None:
        self.fs, self.root, self.pool, self.is_new = fs, root.rstrip("/"), pool, is_new

    def files(self, report: Report) -> list[File]:
        if self.is_new:
            if self.fs.isfile(self.root):
                raise InvalidError(f"write into {self.root}: it is a file")
        elif not self.fs.exists(self.root):
            raise NotFoundError(f"read {self.root}: there is no such file or folder")
        elif self.fs.isfile(self.root):
            info = self.fs.info(self.root)
            self.root, _, name = self.root.rpartition("/")
            return [File(_checked(name), info.get("size"), _time(info))]
        found = []
        for name, info in sorted(self.fs.find(self.root, detail=True).items()):
            if info["type"] != "file":
                report.left_out += info["type"] != "directory"
            elif not name.startswith(f"{self.root}/"):
                raise InvalidError(f"list {self.root}: {name} is outside of the folder")
            else:
                path = _checked(name[len(self.root) + 1 :])
                found.append(File(path, info.get("size"), _time(info)))
        return found

    def _path(self, file: File) -> str:
        return f"{self.root}/{file.path}"

    def _each(self, do: Callable[[Item], Result], items: list[Item]) -> list[Result]:
        return list(self.pool.map(do, items))

    def read(self, files: list[File]) -> list[bytes]:
        return self._each(lambda file: self.fs.cat_file(self._path(file)), files)

    def download(self, file: File, local: str) -> None:
        self.fs.get_file(self._path(file), local)

    def write(self, files: list[tuple[File, bytes]]) -> None:
        self._each(lambda given: self._write(*given), files)

    def _write(self, file: File, content: bytes) -> None:
        path = self._path(file)
        try:
            self.fs.pipe_file(path, content)
        except FileNotFoundError:
            self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self.fs.pipe_file(path, content)

    def upload(self, file: File, local: str) -> None:
        path = self._path(file)
        try:
            self.fs.put_file(local, path)
        except FileNotFoundError:
            self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self.fs.put_file(local, path)


class _Local(_Remote):
    """A local folder: a file gets its name when it is whole."""

    has_times = True

    def _write(self, file: File, content: bytes) -> None:
        with self._named_at_end(file) as name, open(name, "wb") as target:
            target.write(content)

    def upload(self, file: File, local: str) -> None:
        with self._named_at_end(file) as name:
            self.fs.cp_file(local, name)

    @contextlib.contextmanager
    def _named_at_end(self, file: File) -> Iterator[str]:
        path = self._path(file)
        folder = os.path.dirname(path)
        os.makedirs(folder, exist_ok=True)
        name = os.path.join(folder, f".libdiesel-{os.getpid()}-{threading.get_ident()}")
        try:
            yield name
            _set_time(file, name)
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.remove(name)
            raise


def _set_time(file: File, local: str) -> None:
    if file.time is not None:
        nanoseconds = round(file.time * 1e9)
        os.utime(local, ns=(nanoseconds, nanoseconds))


def _checked(path: str) -> str:
    """Returns a path that leads to no other folder. Keys of object stores are free texts."""
    if any(part in ("", ".", "..") for part in path.split("/")):
        raise InvalidError(f"copy {path!r}: a path has no part '', '.' or '..'; rename the file")
    return path


def _time(info: Mapping[str, Any]) -> float | None:
    """Returns the modification time of an entry, if the filesystem knows the time."""
    for name in TIMES:
        value = info.get(name)
        if name == "last_commit" and value is not None:
            value = getattr(value, "date", None)
        if isinstance(value, str):
            with contextlib.suppress(ValueError):
                value = datetime.datetime.fromisoformat(value)
        if isinstance(value, datetime.datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
    return None
