"""Sources of files for Grain, in the order of numbers or in chunk-wise shuffled order.

Grain saves the index of the next element. Element *i* of :class:`Shuffled` is file *i* of a computed order, so
Grain's own checkpoints resume exactly, with any number of workers.
"""

from __future__ import annotations

import array
import operator
import threading
from collections.abc import Callable, Sequence
from typing import Any

import libdiesel
from libdiesel import Dataset, Epoch, View
from libdiesel._addresses import name_sample, split
from libdiesel._options import U64, functions, whole

__all__ = ["Shuffled", "Source"]

#: Files of the order that are computed together. The agent fetches ahead from the last block.
BLOCK = 256

#: Blocks in memory: Grain reads up to 500 elements ahead in each worker, from several threads.
BLOCKS = 32


class Source:
    """The files of a dataset or of a folder by number, as a ``grain.sources.RandomAccessDataSource``.

    :param root: a :class:`libdiesel.Dataset`, or an address ``dl://DATASET[/FOLDER]``
    :param loader: converts the bytes of a file, a :class:`libdiesel.View`, into an element; default ``bytes``

    The other parameters are those of :func:`libdiesel.connect`. Grain's workers open the dataset again, at the
    same version. Errors of ``loader`` name the file in a note.

    :raises NotFoundError: if there is no such dataset or folder
    """

    def __init__(
        self, root: Dataset | str, *, loader: Callable[[View], Any] = bytes, **options: Any
    ) -> None:
        functions(loader=loader)
        self.loader = loader
        self._paths: list[str] | None = None
        if isinstance(root, Dataset):
            if options:
                raise libdiesel.InvalidError(f"a handle is given, and {', '.join(options)} would open another one")
            self.dataset, self.root = root, f"dl://{root.name}"
        else:
            name, path = split(root)
            self.dataset, self.root = libdiesel.connect(name, **options), root.rstrip("/")
            self._paths = [path] if path else None
        self._files = self._list()

    def _list(self) -> Sequence[int]:
        """Returns the numbers of the files in the order of the elements."""
        if self._paths is None:
            return range(len(self.dataset))
        files = self.dataset.shuffle(paths=self._paths)
        return array.array("Q", sorted(files.take(len(files))))

    def __len__(self) -> int:
        return len(self._files)

    def number(self, index: int) -> int:
        """Returns the number of the file of an element, as for :meth:`libdiesel.Dataset.path`."""
        return self._files[self._checked(index)]

    def _checked(self, index: int) -> int:
        index = operator.index(index)
        if not 0 <= index < len(self):
            raise IndexError(f"there is no element {index} among {len(self)} of {self!r}")
        return index

    def __getitem__(self, index: int) -> Any:
        return self._getitems([index])[0]

    def _getitems(self, indices: Sequence[int]) -> list[Any]:
        """Returns several elements, read in one call. Grain calls this method for batches."""
        numbers = [self.number(index) for index in indices]
        if self.loader is bytes:
            return list(self.dataset.get_many(numbers))
        return [self._load(number, view) for number, view in zip(numbers, self.dataset.view_many(numbers))]

    def _load(self, number: int, view: View) -> Any:
        try:
            return self.loader(view)
        except Exception as error:
            raise name_sample(error, self.dataset, number)

    def __repr__(self) -> str:
        # Grain compares this text with the text in a checkpoint.
        return f"{type(self).__name__}({self.root!r}, version={self.dataset.version!r})"


class Shuffled(Source):
    """The files of several epochs, each in chunk-wise shuffled order: element *i* is file *i mod n* of the order
    of epoch *i div n*, where *n* is the number of files. Grain must not shuffle the elements again.

    :param root: as for :class:`Source`
    :param seed: the number of the job: each seed has its own order
    :param epochs: number of epochs
    :param group: chunks whose files are shuffled together

    The order is that of :meth:`libdiesel.Dataset.shuffle`. The agent fetches ahead along the order.
    """

    def __init__(
        self,
        root: Dataset | str,
        *,
        seed: int = 0,
        epochs: int = 1,
        group: int = 100,
        loader: Callable[[View], Any] = bytes,
        **options: Any,
    ) -> None:
        self.seed, self.group = whole("seed", seed, most=U64), whole("group", group, least=1)
        self.epochs = whole("epochs", epochs, least=1)
        super().__init__(root, loader=loader, **options)
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()
        self._orders: dict[int, Epoch] = {}
        self._blocks: dict[tuple[int, int], list[int]] = {}

    def _list(self) -> Sequence[int]:
        return range(len(self._order(0)))

    def _order(self, epoch: int, start: int = 0) -> Epoch:
        """The order of an epoch, from a place on."""
        return self.dataset.shuffle(
            seed=self.seed, epoch=epoch, group=self.group, paths=self._paths, read=start
        )

    def __len__(self) -> int:
        return len(self._files) * self.epochs

    def number(self, index: int) -> int:
        epoch, place = divmod(self._checked(index), len(self._files))
        block, offset = divmod(place, BLOCK)
        with self._lock:
            numbers = self._blocks.get((epoch, block))
            if numbers is None:
                numbers = self._blocks[epoch, block] = self._take(epoch, block * BLOCK)
                _drop_oldest(self._blocks, BLOCKS)
            return numbers[offset]

    def _take(self, epoch: int, start: int) -> list[int]:
        """Returns the numbers of a block of an epoch's order."""
        order = self._orders.pop(epoch, None)
        if order is None or order.position != start:
            order = self._order(epoch, start)
        self._orders[epoch] = order
        # Elements of two epochs are read at the same time at the boundary.
        _drop_oldest(self._orders, 2)
        return order.take(BLOCK)

    def __getstate__(self) -> dict[str, Any]:
        own = {"_lock", "_orders", "_blocks"}
        return {name: value for name, value in self.__dict__.items() if name not in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __repr__(self) -> str:
        options = f"seed={self.seed}, epochs={self.epochs}, group={self.group}"
        return f"Shuffled({self.root!r}, {options}, version={self.dataset.version!r})"


def _drop_oldest(entries: dict[Any, Any], most: int) -> None:
    while len(entries) > most:
        del entries[next(iter(entries))]
