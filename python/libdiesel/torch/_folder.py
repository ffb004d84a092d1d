"""``ImageFolder`` on a dataset: samples by index, whole batches in one call."""

from __future__ import annotations

import io
import logging
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar, overload

import torch
import torch.utils.data

import libdiesel
from libdiesel import Dataset, View
from libdiesel.errors import CorruptError, InvalidError, NotFoundError

logger = logging.getLogger("libdiesel")

#: The extensions of torchvision.
IMAGES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")

Sample = TypeVar("Sample")
Loader = Callable[[View], Any]
Transform = Callable[[Any], Any]

#: Policies for files whose bytes are damaged everywhere.
ON_BAD = ("raise", "substitute")

#: Maximum of files tried as a substitute of a damaged file.
TRIES = 24

#: Size of the table of files already warned about, shared by all workers.
NAMED = 1 << 16


def image(view: View) -> Any:
    """An image (Pillow), in RGB."""
    from PIL import Image

    return Image.open(io.BytesIO(view)).convert("RGB")


def tensor(view: View, share: bool = False) -> torch.Tensor:
    """The bytes of a file as a tensor of ``uint8``. With ``share`` the tensor uses the memory of the node's
    cache without a copy, and writing to the tensor ends the program."""
    if not len(view):
        return torch.empty(0, dtype=torch.uint8)
    return torch.from_dlpack(view) if share else torch.frombuffer(bytearray(view), dtype=torch.uint8)


class Bad:
    """The policy for files whose bytes are damaged everywhere."""

    def __init__(self, on_bad: str) -> None:
        if on_bad not in ON_BAD:
            raise InvalidError(f"on_bad={on_bad!r} is not one of {', '.join(ON_BAD)}")
        self.on_bad = on_bad
        # Files already warned about by any process, by their index modulo NAMED.
        self._named = torch.zeros(NAMED, dtype=torch.bool).share_memory_()

    def substitute(
        self, error: CorruptError, index: int, files: int, read: Callable[[int], Sample]
    ) -> Sample:
        """Reads a substitute: the first whole file among the files 1, 2, 4, 8 ... places behind. Raises the
        error with the policy ``raise``."""
        if self.on_bad == "raise":
            raise error
        if not self._named[index % NAMED]:
            self._named[index % NAMED] = True
            logger.warning("%s; another file replaces it in every epoch", error)
        for turn in range(TRIES):
            try:
                return read((index + (1 << turn)) % files)
            except CorruptError:
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
    :param allow_empty: allow classes without files
    :param on_bad: ``"raise"``, or ``"substitute"`` to replace a file whose bytes are damaged everywhere by
        another file of the folder. The choice depends only on the order of the files.
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
        allow_empty: bool = False,
        on_bad: str = "raise",
        dataset: Dataset | None = None,
        **options: Any,
    ) -> None:
        self.bad = Bad(on_bad)
        name, self.path = split(root)
        self.root = root
        self.dataset = libdiesel.connect(name, **options) if dataset is None else dataset
        self.transform, self.target_transform, self.loader = transform, target_transform, loader
        found = self.dataset.classes(self.path, None if extensions is None else list(extensions))
        self.native = found
        self.classes: list[str] = found.classes
        self.class_to_idx = {name: index for index, name in enumerate(self.classes)}
        if not self.classes:
            raise NotFoundError(f"{root} has no sub-folders for classes")
        empty = [name for name, count in zip(self.classes, found.counts) if not count]
        if empty and not allow_empty:
            raise NotFoundError(
                f"{root} has no files of {extensions or 'any extension'} in {', '.join(empty)}: pass the "
                "extensions of its files, or allow_empty=True"
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
            views: Iterable[View | tuple[View, int]] = self.dataset.view_many(numbers)
        except CorruptError:
            # A substitute has its own class.
            views = [self._view(number) for number in numbers]
        return [self.sample(view, target) for view, target in zip(views, classes)]

    def sample(self, view: View | tuple[View, int], target: int) -> Any:
        """Applies the loader and the transforms to a file."""
        if isinstance(view, tuple):
            view, target = view
        sample = self.loader(view)
        if self.transform is not None:
            sample = self.transform(sample)
        if self.target_transform is not None:
            return sample, self.target_transform(target)
        return sample, target

    def _view(self, number: int) -> Any:
        try:
            return self.dataset.view(number)
        except CorruptError as error:
            return self.substitute(number, error)

    def substitute(self, number: int, error: CorruptError) -> tuple[View, int]:
        """A substitute of a damaged file, with its class."""
        index = self.native.indexes([number])[0]

        def read(other: int) -> tuple[View, int]:
            [at], [target] = self.native.locate([other])
            return self.dataset.view(at), target

        return self.bad.substitute(error, index, len(self), read)

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
        return f"dl://{self.dataset.name}/{self.dataset.path(number)}", target

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


def split(root: str) -> tuple[str, str]:
    """The dataset of an address, and the folder in it."""
    if not isinstance(root, str) or not root.startswith("dl://"):
        raise InvalidError(f"{root!r} is no address: type dl://DATASET or dl://DATASET/FOLDER")
    name, _, path = root.removeprefix("dl://").partition("/")
    return f"dl://{name}", path.rstrip("/")
