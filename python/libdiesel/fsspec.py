"""Datasets for every program that uses fsspec: pandas, pyarrow, zarr, Hugging Face, dask, universal_pathlib.

>>> import fsspec
>>> with fsspec.open("dl://animals/dogs/rex.txt", "wb") as file:
...     file.write(b"woof")
4
>>> fsspec.filesystem("dl").cat("animals/dogs/rex.txt")
b'woof'

Paths are ``DATASET/PATH``, and the root lists the datasets. What a program leaves out comes from the variables
of the environment (DIESEL_SERVER, DIESEL_USER, DIESEL_KEY, DIESEL_TASK), so worker processes need no options.
"""

from __future__ import annotations

import contextlib
import datetime
import io
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile
from fsspec.utils import tokenize

import libdiesel
from libdiesel import Dataset, Entry

__all__ = ["DieselFileSystem"]

# Bytes that are read at once: a chunk.
_CHUNK = 4 << 20


class _Call(threading.local):
    """The writes of a call of a thread: its depth, and the local files of each dataset."""

    def __init__(self) -> None:
        self.depth = 0
        self.files: dict[str, list[tuple[str, str]]] = {}


class DieselFileSystem(AbstractFileSystem):
    """All datasets of some servers. A write is durable when the call returns.

    :param task: as for :func:`libdiesel.connect`; a file is read through the cache of the node where the process
        belongs to a task
    :param follow: read what other programs write meanwhile, by asking the servers for each path

    The other parameters are those of :func:`libdiesel.connect`.
    """

    protocol = ("dl", "diesel")
    root_marker = ""

    def __init__(
        self,
        server: str | Sequence[str] | None = None,
        user: str | None = None,
        key: str | None = None,
        key_file: str | None = None,
        ca: str | None = None,
        client_cert: str | None = None,
        client_key: str | None = None,
        plain_text_key: bool = False,
        task: str | bool | None = None,
        timeout: float = 60.0,
        follow: bool = False,
        **options: Any,
    ):
        super().__init__(**options)
        self._access: dict[str, Any] = {
            "server": server, "user": user, "key": key, "key_file": key_file, "ca": ca, "client_cert": client_cert,
            "client_key": client_key, "plain_text_key": plain_text_key, "timeout": timeout,
        }
        self._task = task
        self._follow = follow
        self._lock = threading.RLock()
        self._readers: dict[str, Dataset] = {}
        self._writers: dict[str, Dataset] = {}
        self._call = _Call()

    # Handles

    def _reader(self, name: str) -> Dataset:
        """The handle for reads: after a write, the one that asks the servers."""
        with self._lock:
            handle = self._writers.get(name) or self._readers.get(name)
            if handle is None:
                handle = libdiesel.connect(f"dl://{name}", task=self._task, **self._access)
                if self._follow:
                    handle.close()
                    handle = libdiesel.connect(f"dl://{name}", create=True, **self._access)
                self._readers[name] = handle
            return handle

    def _writer(self, name: str) -> Dataset:
        with self._lock:
            if name not in self._writers:
                handle = libdiesel.connect(f"dl://{name}", create=True, **self._access)
                self._writers[name] = handle
                old = self._readers.pop(name, None)
                if old is not None:
                    old.close()
            return self._writers[name]

    def invalidate_cache(self, path: str | None = None) -> None:
        """Reads the newest versions of the datasets from now on."""
        with self._lock:
            name = None if path is None else self._parts(path)[0]
            for known in [name] if name else list(self._readers):
                handle = self._readers.pop(known, None)
                if handle is not None:
                    handle.close()

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Makes the writes of a call of this thread durable together."""
        self._call.depth += 1
        try:
            yield
        except BaseException:
            self._call.files.clear()
            raise
        finally:
            self._call.depth -= 1
            self._flush()

    def _flush(self) -> None:
        if self._call.depth == 0:
            files, self._call.files = self._call.files, {}
            for name, some in files.items():
                self._writer(name).put_many(some)
            for handle in list(self._writers.values()):
                if handle.unflushed:
                    handle.flush()

    # Paths

    @classmethod
    def _parts(cls, path: str) -> tuple[str, str]:
        name, _, rest = cls._strip_protocol(path).partition("/")
        return name, rest.strip("/")

    def _file(self, path: str) -> tuple[str, str]:
        """The dataset and the path of a file."""
        name, rest = self._parts(path)
        if not rest:
            raise IsADirectoryError(f"{path}: a dataset, not a file")
        return name, rest

    # Listings

    def _info_of(self, name: str, entry: Entry) -> dict[str, Any]:
        path = f"{name}/{entry.path}"
        if entry.is_folder:
            return {"name": path, "size": 0, "type": "directory"}
        return {
            "name": path, "size": entry.size, "type": "file", "mtime": entry.mtime, "mode": entry.mode,
            "crc32c": entry.crc32c, "uploaded": entry.uploaded,
        }

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        name, rest = self._parts(path)
        if not name:
            return {"name": "", "size": 0, "type": "directory"}
        if rest:
            return self._info_of(name, self._reader(name).stat(rest))
        self._reader(name)
        return {"name": name, "size": 0, "type": "directory"}

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        name, rest = self._parts(path)
        if not name:
            found = [{"name": one, "size": 0, "type": "directory"} for one in libdiesel.datasets(**self._access)]
        else:
            handle = self._reader(name)
            entry = handle.stat(rest) if rest else None
            if entry is not None and not entry.is_folder:
                found = [self._info_of(name, entry)]
            else:
                found = [self._info_of(name, one) for one in handle.ls(rest or None, details=True)]
        return found if detail else [one["name"] for one in found]

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        name, rest = self._parts(path)
        if maxdepth is not None or not name:
            return super().find(path, maxdepth=maxdepth, withdirs=withdirs, detail=detail, **options)
        try:
            handle = self._reader(name)
            entry = handle.stat(rest) if rest else None
        except FileNotFoundError:
            return {} if detail else []
        if entry is not None and not entry.is_folder:
            found = {f"{name}/{rest}": self._info_of(name, entry)}
        else:
            files = (self._info_of(name, one) for one in handle.walk(rest or None, details=True))
            found = {one["name"]: one for one in files}
            if withdirs:
                top = f"{name}/{rest}".rstrip("/")
                folders = {top} | {folder for file in found for folder in _above(file, top)}
                found.update({one: {"name": one, "size": 0, "type": "directory"} for one in folders})
                found = dict(sorted(found.items()))
        return found if detail else list(found)

    def modified(self, path: str) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.info(path)["mtime"], datetime.timezone.utc)

    def created(self, path: str) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self.info(path)["uploaded"], datetime.timezone.utc)

    def ukey(self, path: str) -> str:
        info = self.info(path)
        return str(tokenize(info["name"], info["size"], info.get("crc32c"), info.get("mtime")))

    def checksum(self, path: str) -> int:
        return int(self.ukey(path), 16)

    # Reads

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        name, rest = self._file(path)
        handle = self._reader(name)
        if start is None and end is None:
            return handle.get(rest)
        size = handle.stat(rest).size
        first, behind, _ = slice(start, end).indices(size)
        return handle.get(rest, offset=first, length=max(0, behind - first))

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **options: Any) -> Any:
        if not recursive and on_error == "raise" and not isinstance(path, str):
            read = self._cat_plain(list(path))
            if read is not None:
                return read
        paths = self.expand_path(path, recursive=recursive)
        is_single = not recursive and isinstance(path, str) and len(paths) == 1 and "*" not in path
        if is_single or on_error != "raise":
            return super().cat(path, recursive=recursive, on_error=on_error, **options)
        files = [one for one in paths if not (recursive and self.isdir(one))]
        read = {}
        for name, some in _by_dataset(self, files).items():
            handle = self._reader(name)
            read.update(zip((f"{name}/{one}" for one in some), handle.get_many(some)))
        return {one: read[self._strip_protocol(one)] for one in files}

    def _cat_plain(self, paths: list[str]) -> dict[str, bytes] | None:
        """Files of one dataset, named without patterns: none else. Each step is one call for all."""
        name = paths[0].partition("/")[0] if paths else ""
        prefix, together = f"{name}/", "".join(paths)
        if not name or "://" in together or any(letter in together for letter in "*?["):
            return None
        rest = [path.removeprefix(prefix) for path in paths]
        if sum(map(len, rest)) + len(prefix) * len(rest) != len(together):
            return None
        return dict(zip(paths, self._reader(name).get_many(rest)))

    def get_file(self, rpath: str, lpath: Any, callback: Any = None, outfile: Any = None, **options: Any) -> None:
        if outfile is None and self.isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        with self.open(rpath, "rb") as source, contextlib.ExitStack() as stack:
            if callback is not None:
                callback.set_size(source.size)
            if outfile is None:
                os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
                outfile = stack.enter_context(open(lpath, "wb"))
            while piece := source.read(_CHUNK):
                outfile.write(piece)
                if callback is not None:
                    callback.relative_update(len(piece))

    def _open(
        self, path: str, mode: str = "rb", block_size: int | None = None, autocommit: bool = True,
        cache_options: dict[str, Any] | None = None, **options: Any,
    ) -> Any:
        self._file(path)
        if mode == "rb":
            return _Reader(self, path, block_size=block_size or _CHUNK, cache_options=cache_options, **options)
        return _Writer(self, path, mode=mode, autocommit=autocommit)

    # Writes

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        name, rest = self._file(path)
        if mode == "create" and self.exists(path):
            raise FileExistsError(path)
        self._writer(name).put(rest, value)
        self._flush()

    def pipe(self, path: Any, value: bytes | None = None, **options: Any) -> None:
        with self._together():
            super().pipe(path, value, **options)

    def put_file(self, lpath: str, rpath: str, callback: Any = None, mode: str = "overwrite", **options: Any) -> None:
        if os.path.isdir(lpath):
            return
        name, rest = self._file(rpath)
        if mode == "create" and self.exists(rpath):
            raise FileExistsError(rpath)
        size = os.path.getsize(lpath)
        self._call.files.setdefault(name, []).append((rest, lpath))
        self._flush()
        if callback is not None:
            callback.set_size(size)
            callback.absolute_update(size)

    def put(self, lpath: Any, rpath: Any, **options: Any) -> None:
        with self._together():
            super().put(lpath, rpath, **options)

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        if self.isdir(path1):
            return
        (name, rest), (to_name, to) = self._file(path1), self._file(path2)
        data = self._reader(name).get(rest)
        self._writer(to_name).put(to, data)
        self._flush()

    def copy(self, path1: Any, path2: Any, **options: Any) -> None:
        with self._together():
            super().copy(path1, path2, **options)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        paths = [path] if isinstance(path, str) else list(path)
        datasets = [one for one in paths if recursive and maxdepth is None and not self._parts(one)[1]]
        for one in datasets:
            self._delete_dataset(self._parts(one)[0])
        rest = [one for one in paths if one not in datasets]
        if not rest:
            return
        found = self.expand_path(rest, recursive=recursive, maxdepth=maxdepth)
        files = [one for one in found if not self.isdir(one)]
        if not recursive and len(files) < len(found):
            raise IsADirectoryError(f"{path}: a folder is removed with recursive=True")
        for name, some in _by_dataset(self, files).items():
            self._writer(name).delete(*some)

    def rm_file(self, path: str) -> None:
        name, rest = self._file(path)
        self._writer(name).delete(rest)

    _rm = rm_file

    def _delete_dataset(self, name: str) -> None:
        with self._lock:
            for handles in (self._readers, self._writers):
                handle = handles.pop(name, None)
                if handle is not None:
                    handle.close()
        libdiesel.delete_dataset(f"dl://{name}", **self._access)

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Makes a dataset. Folders need no making: they are there with their first file."""
        name, rest = self._parts(path)
        if not rest:
            if name in libdiesel.datasets(**self._access):
                raise FileExistsError(path)
            self._writer(name)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        name, rest = self._parts(path)
        if not exist_ok and self.exists(path):
            raise FileExistsError(path)
        self._writer(name)

    def rmdir(self, path: str) -> None:
        name, rest = self._parts(path)
        if self._reader(name).ls(rest or None):
            raise OSError(f"{path}: the folder is not empty")
        if not rest:
            self._delete_dataset(name)


class _Reader(AbstractBufferedFile):
    """A file being read: whole up to a chunk, else by ranges with read-ahead of a chunk."""

    def __init__(self, fs: DieselFileSystem, path: str, block_size: int, **options: Any):
        size = fs.info(path)["size"]
        whole = size <= _CHUNK
        options.pop("cache_type", None)
        super().__init__(
            fs, path, mode="rb", block_size=block_size, cache_type="all" if whole else "readahead", size=size, **options
        )

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.fs.cat_file(self.path, start, end)  # type: ignore[no-any-return]


class _Writer(io.RawIOBase):
    """A file being written: stored at its close, and not at all after an exception."""

    def __init__(self, fs: DieselFileSystem, path: str, mode: str, autocommit: bool):
        super().__init__()
        self._is_wanted = False
        self.fs, self.path, self.mode, self.autocommit = fs, path, mode, autocommit
        if mode == "xb" and fs.exists(path):
            raise FileExistsError(path)
        descriptor, self._name = tempfile.mkstemp(prefix="libdiesel-")
        self._file = os.fdopen(descriptor, "w+b")
        if mode == "ab" and fs.exists(path):
            with fs.open(path, "rb") as before:
                shutil.copyfileobj(before, self._file, _CHUNK)
        self._is_wanted = True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self._file.tell()

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def commit(self) -> None:
        """Stores the file."""
        try:
            name, rest = self.fs._file(self.path)
            self.fs._writer(name).put_file(rest, self._name)
            self.fs._flush()
        finally:
            self.discard()

    def discard(self) -> None:
        """Stores nothing."""
        self._is_wanted = False
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.remove(self._name)

    def close(self) -> None:
        if self.closed:
            return
        try:
            if self._is_wanted:
                self._file.flush()
                if self.autocommit:
                    self.commit()
        finally:
            super().close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self.discard()
        self.close()

    def __del__(self) -> None:
        # A file that nobody closed is not stored.
        if not self.closed and self._is_wanted and self.autocommit:
            self.discard()


def _above(file: str, top: str) -> Iterator[str]:
    """The folders of a file below a folder."""
    folder = file.rpartition("/")[0]
    while len(folder) > len(top):
        yield folder
        folder = folder.rpartition("/")[0]


def _by_dataset(fs: DieselFileSystem, paths: Sequence[str]) -> dict[str, list[str]]:
    files: dict[str, list[str]] = {}
    for path in paths:
        name, rest = fs._file(path)
        files.setdefault(name, []).append(rest)
    return files
