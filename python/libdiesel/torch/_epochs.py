"""An iterable dataset: the files of an epoch, distributed to ranks and to workers of their loaders."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch.utils.data

import libdiesel
from libdiesel import Dataset, Epoch, Ranks, View
from libdiesel._addresses import address, name_sample, split
from libdiesel._options import functions, names, whole
from libdiesel.errors import (
    CancelledError,
    CorruptError,
    InvalidError,
    Timeout,
    UnavailableError,
    UnreachableError,
)
from libdiesel.torch._folder import (
    Bad,
    Folder,
    Loader,
    Transform,
    decode,
)
from libdiesel.torch._order import TOGETHER, Order


#: Errors of an epoch that may pass.
_TEMPORARY = (CancelledError, Timeout, UnavailableError, UnreachableError)


class Epochs(torch.utils.data.IterableDataset[Any]):
    """The samples of an epoch in chunk-wise shuffled order. Call ``set_epoch`` before each epoch.

    :param source: a :class:`Folder`, for samples ``(sample, target)``; a :class:`libdiesel.Dataset`, or an
        address ``dl://DATASET[/FOLDER]``, for files
    :param batch_size: the loader's batch size: workers deliver batches in turns, and together follow the
        order of the rank
    :param seed: the number of the job: each seed has its own order
    :param group: chunks whose files are shuffled together
    :param loader: converts the bytes of a file, a :class:`libdiesel.View`, into a sample; default ``bytes``
    :param rank: with ``world`` and ``nodes``: by default found by :class:`libdiesel.Ranks`
    :param resume: a token of :func:`resume` to continue from
    :param on_bad: as for :class:`Folder`, for all files of a dataset
    :param paths: the files and folders of a dataset to read; default all
    :param with_path: give the path of each file in the dataset with its sample, ``(path, sample)``, or
        ``(path, sample, target)`` of a folder: for labels from a table, captions and pairs

    An error of a sample names its file, and the next call of the iterator goes on behind this sample.
    :param pad: read a few samples twice, instead of leaving a few out, so that all ranks have equally many
    """

    def __init__(
        self,
        source: Folder | Dataset | str,
        *,
        batch_size: int,
        seed: int = 0,
        epoch: int = 0,
        group: int = 100,
        transform: Transform | None = None,
        loader: Loader = bytes,
        rank: int | None = None,
        world: int | None = None,
        nodes: int | None = None,
        resume: str | None = None,
        pad: bool = False,
        on_bad: str = "raise",
        paths: Sequence[str] | None = None,
        with_path: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        functions(transform=transform, loader=loader)
        self.bad = source.bad if isinstance(source, Folder) else Bad(on_bad)
        if isinstance(source, Folder):
            of_folder = {"on_bad": on_bad != "raise", "loader": loader is not bytes}
            of_folder["transform"] = transform is not None
            if given := [name for name, is_given in of_folder.items() if is_given]:
                raise InvalidError(f"{given[0]} belongs to the folder: Folder(..., {given[0]}=...)")
        self.folder = source if isinstance(source, Folder) else None
        chosen = names("paths", paths)
        if chosen is not None and not chosen:
            raise InvalidError("paths=[] names no file; leave it out for all files")
        self.with_path = bool(with_path)
        if isinstance(source, Folder):
            if chosen is not None:
                raise InvalidError("paths belong to a dataset: pass it, or its address, in the place of the Folder")
            self.dataset = source.dataset
        elif isinstance(source, Dataset):
            self.dataset = source
        else:
            name, path = split(source)
            self.dataset = libdiesel.connect(name, **options)
            options = {}
            if path:
                chosen = [path] if chosen is None else [f"{path}/{one}" for one in chosen]
            if chosen and on_bad != "raise":
                raise InvalidError("a part of a dataset has no substitutes: pass a Folder, or the dataset")
        if options:
            raise InvalidError(f"a handle is given, and {', '.join(options)} would open another one")
        self.transform, self.loader = transform, loader
        classes = self.folder.native if self.folder else None
        ranks = Ranks.choose(rank, world, nodes)
        self.order = Order(
            self.dataset, classes, self._select(chosen), batch_size, seed, epoch, group, ranks, resume, pad
        )

    def _select(self, paths: Sequence[str] | None) -> Sequence[str] | None:
        """Returns the paths of the files in the order, or None for all files."""
        return paths

    def __iter__(self) -> Iterator[Any]:
        epoch: list[Epoch | None] = []
        # The iteration goes on after an error of a sample: unlike a generator, `chain` and `map` do.
        return itertools.chain.from_iterable(iter(lambda: self._read(epoch), None))

    def _read(self, begun: list[Epoch | None]) -> Iterator[Any] | None:
        """The next samples of an epoch, which the first call begins; none at the end, and behind an error that
        stays. An error is raised by the first sample, so that the iteration goes on after an error that may pass."""
        try:
            epoch = begun[0] if begun else self.order.begin()
            if epoch is None:
                return None
            begun[:] = [epoch]
            numbers, views = epoch.read(min(TOGETHER, max(self.order.batch_size, TOGETHER // 4)))
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, _TEMPORARY):
                begun[:] = [None]
            return map(_throw, (error,))
        if not numbers:
            self.order.end()
            return None
        return map(self._sample, numbers, views, self._targets(numbers))

    def _targets(self, numbers: list[int]) -> Iterable[Any]:
        """Returns an argument of `_sample` for each file."""
        return itertools.repeat(None) if self.folder is None else self.folder.native.classes_of(numbers)

    def _sample(self, number: int, view: View | Exception, target: int | None) -> Any:
        self.order.given += 1
        if isinstance(view, Exception) and not isinstance(view, CorruptError):
            raise view
        path = (self.dataset.path(number),) if self.with_path else ()
        if self.folder is not None:
            assert target is not None, "the order is that of the folder's own files"
            sample = self.folder.sample(number, view, target)
            return (*path, *sample) if path else sample
        try:
            if isinstance(view, Exception):
                made = self._substitute(number, view)
            else:
                try:
                    made = self.loader(view)
                except Exception as error:
                    made = self._substitute(number, error)
            made = made if self.transform is None else self.transform(made)
            return (*path, made) if path else made
        except Exception as error:
            raise name_sample(error, self.dataset, number)

    def _substitute(self, number: int, error: Exception) -> Any:
        """A substitute of a bad file, decoded."""

        def read(other: int) -> Any:
            return decode(self.loader, self.dataset.view(other))

        name = address(self.dataset, number)
        return self.bad.substitute(error, name, number, len(self.dataset), read)

    def __len__(self) -> int:
        return self.order.length()

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self.order.epoch

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, each with its own order; persistent workers follow too."""
        self.order.set_epoch(epoch)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """The position of this process. The workers of a plain DataLoader read ahead, so pass the number of
        batches taken since the start of the iteration. torchdata's StatefulDataLoader counts by itself."""
        samples = None if batches is None else whole("batches", batches) * self.order.batch_size
        return self.order.state(samples)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Lets the next iteration continue at a state."""
        self.order.load(state)

    def token(self, batches: int) -> str:
        """The token after ``batches`` batches of each rank since the start of the iteration."""
        state = self.state_dict(batches)
        ranks = self.order.ranks
        return libdiesel.token_after(state["token"], state["given"], ranks.world, ranks.nodes)

    def __repr__(self) -> str:
        ranks = self.order.ranks
        return f"Epochs({self.dataset!r}): epoch {self.epoch}, rank {ranks.rank} of {ranks.world}"


def _throw(error: BaseException) -> Any:
    raise error
