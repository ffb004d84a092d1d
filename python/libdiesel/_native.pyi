"""The native half of the package."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, SupportsIndex, Union, overload

from libdiesel._results import Purged

__version__: str

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
File = Union[Path, SupportsIndex]

def connect(
    dataset: str,
    given: dict[str, Any],
    *,
    snapshot: str | os.PathLike[str] | None,
    task: str | None,
    tiers: str | None,
    create: bool,
    chunk_size: int | None,
    version: str | None,
) -> Dataset:
    """Called by the Python half, with every argument."""
def datasets(given: dict[str, Any]) -> list[str]:
    """The names of all datasets that the user may read."""
def delete_dataset(dataset: str, given: dict[str, Any]) -> int:
    """Deletes a dataset; gives the number of objects that are removed so far."""
def deliver_notes() -> None:
    """Passes stored messages to `logging`: at the end of the program there is no next call."""
def token_after(token: str, read: int, world: int, nodes: int) -> str:
    """The token of a task that started at a token, after each rank has read the given number of
    further files. The task has ``world`` ranks on ``nodes`` machines.
    """

class View:
    """The bytes of a file, without a copy. A view works wherever a buffer does (``memoryview``,
    ``numpy.frombuffer``, ``io.BytesIO``, ``bytes``). A view stays valid as long as Python holds it,
    even after the dataset is closed. Meanwhile its chunk stays in the memory of the node.
    """

    def __len__(self) -> int: ...
    def __bytes__(self) -> bytes: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(self, **options: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

class Batch:
    """Views of the files of one call, in its order: a sequence that creates its items on access."""

    @overload
    def __getitem__(self, index: SupportsIndex) -> View: ...
    @overload
    def __getitem__(self, index: slice) -> list[View]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[View]: ...

class Dataset:
    """A dataset on servers, opened by :func:`libdiesel.connect`. Usable from any thread and in any
    process: a fork has its own connections, and a pickled handle connects again to the same
    version.
    """

    def get(
        self,
        file: File,
        *,
        offset: int = 0,
        length: int | None = None,
        wait: float | None = None,
    ) -> bytes:
        """Reads a file, by its path or its number, into memory: with ``offset`` and ``length`` only the
        bytes from the offset on, at most as many. Of a large file, only the parts with these bytes are
        read. With ``wait``, a path may name a file that another program is still to put: the call waits
        up to so many seconds for it, and reads it from the servers.

        :raises NotFoundError: if the file does not exist, after the wait
        :raises CorruptError: if its stored bytes are damaged everywhere
        """
    @overload
    def get_many(self, files: Iterable[File]) -> list[bytes]:
        """Reads many files, by paths or by numbers, in their order, and returns a list of bytes. With
        ``into``, the files are written into this buffer one after another, and the list has the
        slice of each file. A buffer is a writable ``bytearray``, NumPy array, or tensor in host
        memory, pinned or not.

        :raises InvalidError: if the buffer is too short
        """
    @overload
    def get_many(self, files: Iterable[File], into: Any) -> list[slice]: ...
    def view(self, file: File) -> View:
        """The bytes of a file in the shared memory of this node, without a copy."""
    def view_many(self, files: Iterable[File]) -> Batch:
        """Views of many files, in their order: a :class:`Batch`, a sequence of views."""
    def __getitem__(self, file: File) -> bytes: ...
    def __len__(self) -> int: ...
    def __contains__(self, path: Path) -> bool: ...
    def stat(self, path: Path) -> Entry:
        """The entry at a path: an :class:`Entry`. That of a file has a ``number`` on a handle with a
        snapshot.

        :raises NotFoundError: if the path does not exist
        """
    @overload
    def ls(self, folder: Path | None = None, *, details: Literal[False] = False) -> list[str]:
        """The names of the files and folders in a folder; names of folders end in a slash. With
        ``details`` a list of :class:`Entry`.
        """
    @overload
    def ls(self, folder: Path | None = None, *, details: Literal[True]) -> list[Entry]: ...
    @overload
    def walk(
        self, folder: Path | None = None, *, details: Literal[False] = False
    ) -> Iterator[str]:
        """The paths of all files below a folder, in the order of their bytes. With ``details`` an
        :class:`Entry` of each.
        """
    @overload
    def walk(self, folder: Path | None = None, *, details: Literal[True]) -> Iterator[Entry]: ...
    def path(self, number: int) -> str:
        """The path of a file, by its number."""
    def put(
        self, path: Path, data: Any, *, mode: int = 0o644, mtime: float | None = None
    ) -> None:
        """Writes a file from memory. The file is durable after the next :meth:`flush`.

        ``mtime`` is in seconds since 1970, by default the current time.
        """
    def put_file(self, path: Path, source: str | os.PathLike[str]) -> int:
        """Writes a local file, with its modification time and permissions; returns its length."""
    def put_many(
        self,
        files: Iterable[tuple[Path, Any]],
        *,
        workers: int = 4,
        progress: Callable[[int, int], object] | None = None,
    ) -> int:
        """Writes many files, and waits until all are durable; returns their number.

        ``files`` gives pairs of a path and a content: ``bytes`` or another buffer, or the path of a
        local file (``str`` or ``os.PathLike``), whose modification time and permissions are kept.
        ``workers`` threads read the local files. ``progress`` is called now and then with the numbers
        of files and bytes so far.

        :raises DieselError: the error of the first failed file; files before it may be stored
        """
    def flush(self) -> int:
        """Waits until all written files are durable; returns their number.

        :raises DieselError: the error of the first failed file
        """
    def delete(self, *paths: Path, missing_ok: bool = False) -> int:
        """Deletes files by their paths; returns the number of deleted files.

        :raises NotFoundError: with ``missing_ok=False``, if a file does not exist
        """
    def purge(
        self, *, grace: float = 86_400.0, dry_run: bool = False, force: bool = False
    ) -> Purged:
        """Reclaims the space of deleted and overwritten files not needed for ``grace`` seconds. Returns a
        :class:`Purged`: counts of removed and waiting objects.
        """
    def save_meta(self, file: str | os.PathLike[str]) -> None:
        """Writes the metadata of all files, at the version of the handle, into a snapshot file for
        ``connect(..., snapshot=FILE)``. Without a snapshot, the handle asks the servers for the current
        version.
        """
    def load_meta(self, file: str | os.PathLike[str]) -> Dataset:
        """Returns a handle with metadata from a snapshot file. With a task, the cache of the node gives
        the files.
        """
    def shuffle(
        self,
        *,
        seed: int = 0,
        epoch: int = 0,
        group: int = 100,
        rank: int = 0,
        world: int = 1,
        nodes: int = 1,
        worker: tuple[int, int, int] | None = None,
        paths: Sequence[Path] | None = None,
        classes: Classes | None = None,
        resume: str | None = None,
        read: int = 0,
        pad: bool = False,
    ) -> Epoch:
        """Starts or resumes an epoch: its files in chunk-wise shuffled order, the same for every
        number of workers. ``nodes`` is the number of machines that share the epoch, 1 for a single
        order over all ranks. ``worker`` is ``(number, workers, batch)``. ``paths`` are the files
        and folders to read, by default all; ``classes`` selects the files of :meth:`classes`.
        ``resume`` is a token of :meth:`Epoch.token`, whose seed, epoch and group are used. ``read``
        is the number of files of the rank, or of its worker, read since the token.
        """
    def classes(self, folder: Path, extensions: list[str] | None = None) -> Classes:
        """The classes below a folder, for ``libdiesel.torch.Folder``."""
    def prefetch(
        self,
        *paths: Path,
        wait: bool = False,
        progress: Callable[[int, int], object] | None = None,
    ) -> tuple[int, int]:
        """Asks the agent of this node to fetch the files at some paths into memory, or all files, as far as
        memory goes. Returns the numbers of chunks in memory and of all chunks.

        With ``wait`` the call returns when all are in memory, or no more arrive. ``progress`` is called
        with both numbers meanwhile.
        """
    def status(self) -> dict[str, Any]:
        """The state of the agent of this node, as ``dlcmd --json agent status`` shows it: memory, hits,
        misses, chunks from servers and from other nodes.

        :raises NotFoundError: if no agent runs
        """
    @property
    def version(self) -> str:
        """The version of the dataset used by the handle."""
    @property
    def name(self) -> str:
        """The name of the dataset."""
    @property
    def task(self) -> str | None:
        """The task whose cache serves the files; none means the servers."""
    @property
    def unflushed(self) -> int:
        """The number of files put since the last flush. A program that ends now may lose these files."""
    @property
    def closed(self) -> bool:
        """Whether the handle is closed."""
    def close(self) -> None:
        """Flushes all writes, and closes the handle. Views stay valid.

        :raises DieselError: the error of the first failed write since the last flush
        """
    def __enter__(self) -> Dataset: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

class Entry:
    """A file or folder, of :meth:`Dataset.stat`, :meth:`Dataset.ls` and :meth:`Dataset.walk`."""

    @property
    def path(self) -> str:
        """The path in the dataset, without a slash at its end."""
    @property
    def name(self) -> str:
        """The last part of the path."""
    @property
    def is_folder(self) -> bool:
        """Whether it is a folder, which has no attributes."""
    @property
    def size(self) -> int:
        """Bytes of the file; 0 for a folder."""
    @property
    def mtime(self) -> float | None:
        """The time of its last change, as put, in seconds since 1970."""
    @property
    def uploaded(self) -> float | None:
        """The time at which this version was uploaded, in seconds since 1970."""
    @property
    def mode(self) -> int | None:
        """Permission bits."""
    @property
    def crc32c(self) -> int | None:
        """CRC-32C of the contents."""
    @property
    def number(self) -> int | None:
        """The number of the file, of :meth:`Dataset.stat` on a handle with a snapshot."""

class Epoch(Iterator[tuple[str, bytes]]):
    """The files of one rank, or of one of its loader's workers, in one epoch. Created by
    :meth:`Dataset.shuffle`; iterating gives ``(path, bytes)``.
    """

    def read(self, files: int) -> tuple[list[int], list[View | Exception]]:
        """Reads the next files, at most ``files``. Returns a list of their numbers, and a list with a
        :class:`View` of each, or with the exception for an unreadable file. Both lists are empty at
        the end.
        """
    def take(self, files: int) -> list[int]:
        """Returns the numbers of the next files, at most ``files``, to be read by
        :meth:`Dataset.get_many`; the agent fetches ahead of them.
        """
    def token(self, read: int) -> str:
        """A token to continue after each rank has read the given number of files since the start of
        this epoch object. The token is a line of text, for any number of ranks and workers.
        """
    @property
    def position(self) -> int:
        """Number of files returned by the epoch, in its order."""
    def __len__(self) -> int: ...
    def __next__(self) -> tuple[str, bytes]: ...

class Classes:
    """The samples of a folder: an index for each sample, class after class, and the number of its
    file.
    """

    @property
    def classes(self) -> list[str]:
        """Names of the classes, sorted."""
    @property
    def counts(self) -> list[int]:
        """Number of samples of each class."""
    def __len__(self) -> int: ...
    def locate(self, indexes: Sequence[int]) -> tuple[list[int], list[int]]:
        """The numbers of the samples' files, and their classes."""
    def only(self, indexes: Sequence[int]) -> Classes:
        """The given samples alone, once each and in their order, with all classes."""
    def indexes(self, numbers: Sequence[int]) -> list[int]:
        """The indexes of the samples with the given file numbers, without files of no class."""
    def classes_of(self, numbers: Sequence[int]) -> list[int | None]:
        """The classes of files, by their numbers; none for a file of no class."""
