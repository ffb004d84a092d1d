"""``ImageFolder`` on a dataset: samples by index, whole batches in one call."""

from __future__ import annotations

import io
import logging
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar, overload

import torch
import torch.utils.data

import libdiesel
from libdiesel import Dataset, View
from libdiesel._addresses import address, name_sample, split
from libdiesel._options import functions, names
from libdiesel.errors import CorruptError, DieselError, InvalidError, NotFoundError

logger = logging.getLogger("libdiesel")

#: The extensions of torchvision.
IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

Sample = TypeVar("Sample")
Loader = Callable[[View], Any]
Transform = Callable[[Any], Any]

#: Policies for files that are damaged everywhere, or that the loader can't decode.
ON_BAD = ("raise", "substitute")

#: Maximum of files tried as a substitute of a damaged file.
TRIES = 24

#: Size of the table of files already warned about, shared by all workers. Far below 32,768 bytes: torch fills and
#: copies larger tensors with OpenMP, which hangs in a forked child.
NAMED = 1 << 13


def image(view: View) -> Any:
    """An image (Pillow), in RGB."""
    from PIL import Image

    return Image.open(io.BytesIO(view)).convert("RGB")


def tensor(view: View, share: bool = False) -> torch.Tensor:
    """The bytes of a file as a tensor of ``uint8``. With ``share`` the tensor uses the memory of the node's
    cache without a copy, and writing to the tensor ends the program."""
    if not len(view):
        return torch.empty(0, dtype=torch.uint8)
    if not share:
        return torch.frombuffer(bytearray(view), dtype=torch.uint8)
    try:
        return torch.from_dlpack(view)
    except (BufferError, TypeError):
        # Older versions of torch and NumPy know no read-only memory in this protocol.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.frombuffer(view, dtype=torch.uint8)


class _Undecodable(Exception):
    """The loader failed."""


def _is_temporary(error: Exception) -> bool:
    """Whether the file itself may be whole, so that no other file may take its place."""
    if isinstance(error, DieselError):
        return not isinstance(error, CorruptError)
    return isinstance(error, (MemoryError, ConnectionError, TimeoutError))


def decode(loader: Loader, view: View) -> Any:
    """The sample of a file, for :meth:`Bad.substitute`."""
    try:
        return loader(view)
    except Exception as error:
        if _is_temporary(error):
            raise
        raise _Undecodable from error


class Bad:
    """The policy for files that are damaged everywhere, or that the loader can't decode."""

    def __init__(self, on_bad: str) -> None:
        if on_bad not in ON_BAD:
            raise InvalidError(f"on_bad={on_bad!r} is not one of {', '.join(ON_BAD)}")
        self.on_bad = on_bad
        # Files already warned about by any process, by their index modulo NAMED.
        self._named = torch.zeros(NAMED, dtype=torch.bool).share_memory_()

    def substitute(
        self, error: Exception, name: str, index: int, files: int, read: Callable[[int], Sample]
    ) -> Sample:
        """Reads and decodes a substitute: the first whole file among the files 1, 2, 4, 8 ... places behind.
        Raises the error with the policy ``raise``, and errors of servers and memory."""
        if self.on_bad == "raise" or _is_temporary(error):
            raise error
        if not self._named[index % NAMED]:
            self._named[index % NAMED] = True
            why = f"{error}" if isinstance(error, CorruptError) else f"decode {name}: {error!r}"
            logger.warning("%s; another file replaces it in every epoch", why)
        for turn in range(TRIES):
            try:
                return read((index + (1 << turn)) % files)
            except (CorruptError, _Undecodable):
                continue
        raise error


class Folder(torch.utils.data.Dataset[Any]):
    """The samples of a folder whose sub-folders are classes, like ``torchvision.datasets.ImageFolder``.

    :param root: ``dl://DATASET`` or ``dl://DATASET/FOLDER``
    :param transform: of an image
    :param target_transform: of the number of its class
    :param loader: converts the bytes of a file, a :class:`libdiesel.View` (a buffer: ``bytes`` gives the
        bytes), into a sample; default :func:`image`
    :param extensions: of the files to include, in lower case; None for all files
    :param is_valid_file: called once with the address of each file, in the place of ``extensions``: true to
        include the file
    :param allow_empty: allow classes without files
    :param on_bad: ``"raise"``, or ``"substitute"`` to replace a file that is damaged everywhere, or that the
        loader can't decode, by another file of the folder. The choice depends only on the order of the files.
    :param dataset: a handle to use; otherwise ``options`` are passed to :func:`libdiesel.connect`
    """

    def __init__(
        self,
        root: str,
        transform: Transform | None = None,
        target_transform: Transform | None = None,
        loader: Loader = image,
        *,
        extensions: Sequence[str] | None = IMAGES,
        is_valid_file: Callable[[str], bool] | None = None,
        allow_empty: bool = False,
        on_bad: str = "raise",
        dataset: Dataset | None = None,
        **options: Any,
    ) -> None:
        functions(transform=transform, target_transform=target_transform, loader=loader)
        functions(is_valid_file=is_valid_file)
        if is_valid_file is not None:
            if extensions is not None and extensions is not IMAGES:
                raise InvalidError("extensions and is_valid_file exclude each other: leave out one of the two")
            extensions = None
        wanted = names("extensions", extensions)
        self.bad = Bad(on_bad)
        name, self.path = split(root)
        self.root = root
        self.dataset = libdiesel.connect(name, **options) if dataset is None else dataset
        self.transform, self.target_transform, self.loader = transform, target_transform, loader
        found = self.dataset.classes(self.path, wanted)
        self.native = found
        if is_valid_file is not None:
            valid = [index for index, (path, _) in enumerate(self.samples) if is_valid_file(path)]
            self.native = found = found.only(valid)
            del self.samples
        self.classes: list[str] = found.classes
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}
        if not self.classes:
            raise NotFoundError(f"{root} has no sub-folders for classes")
        empty = [name for name, count in zip(self.classes, found.counts) if not count]
        if empty and not allow_empty:
            raise NotFoundError(
                f"{root} has no files of {extensions or 'any extension'} in {', '.join(empty)}: pass the "
                "extensions of its files, is_valid_file, or allow_empty=True"
            )

    def __len__(self) -> int:
        return len(self.native)

    def __getitem__(self, index: int) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indexes: Sequence[int]) -> list[Any]:
        """The samples of a batch, read together."""
        indexes = [operator.index(index) for index in indexes]
        numbers, classes = self.native.locate(indexes)
        try:
            views: Iterable[View | Exception] = self.dataset.view_many(numbers)
        except CorruptError:
            views = [self._view(number) for number in numbers]
        return list(map(self.sample, numbers, views, classes))

    def sample(self, number: int, view: View | Exception, target: int) -> Any:
        """Applies the loader and the transforms to a file, or to a substitute of an unreadable file. Errors
        name the file in a note."""
        try:
            if isinstance(view, Exception):
                sample, target = self._substitute(number, view)
            else:
                try:
                    sample = self.loader(view)
                except Exception as error:
                    sample, target = self._substitute(number, error)
            if self.transform is not None:
                sample = self.transform(sample)
            if self.target_transform is not None:
                return sample, self.target_transform(target)
            return sample, target
        except Exception as error:
            raise name_sample(error, self.dataset, number)

    def _view(self, number: int) -> View | CorruptError:
        try:
            return self.dataset.view(number)
        except CorruptError as error:
            return error

    def _substitute(self, number: int, error: Exception) -> tuple[Any, int]:
        """A substitute of a bad file, decoded, with its class."""
        index = self.native.indexes([number])[0]

        def read(other: int) -> tuple[Any, int]:
            [at], [target] = self.native.locate([other])
            return decode(self.loader, self.dataset.view(at)), target

        return self.bad.substitute(error, address(self.dataset, number), index, len(self), read)

    @cached_property
    def samples(self) -> Sequence[tuple[str, int]]:
        """``(path, class)`` of each sample, created on access."""
        return _Lazy(len(self), self._named)

    @property
    def imgs(self) -> Sequence[tuple[str, int]]:
        """Alias of :attr:`samples`, as in torchvision."""
        return self.samples

    @property
    def targets(self) -> list[int]:
        """The class of each sample, in a new list."""
        counts = enumerate(self.native.counts)
        return [target for target, count in counts for _ in range(count)]

    def _named(self, index: int) -> tuple[str, int]:
        [number], [target] = self.native.locate([index])
        return address(self.dataset, number), target

    def __repr__(self) -> str:
        return f"Folder({self.root!r}): {len(self)} samples in {len(self.classes)} classes"


class _Lazy(Sequence[Sample], Generic[Sample]):
    """A sequence that creates its items on access."""

    def __init__(self, length: int, make: Callable[[int], Sample]) -> None:
        self._length, self._make = length, make

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self._make(one) for one in range(*index.indices(self._length))]
        if not -self._length <= index < self._length:
            raise IndexError(f"there is no sample {index} among {self._length}")
        return self._make(index % self._length)

    def __iter__(self) -> Iterator[Sample]:
        return (self._make(index) for index in range(self._length))
