"""An iterable dataset: the files of an epoch, distributed to ranks and to workers of their loaders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch.utils.data

import libdiesel
from libdiesel import Dataset, Ranks
from libdiesel.errors import CorruptError, InvalidError
from libdiesel.torch._folder import Bad, Folder, Loader, Transform, split
from libdiesel.torch._order import TOGETHER, Order


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
        **options: Any,
    ) -> None:
        super().__init__()
        self.bad = source.bad if isinstance(source, Folder) else Bad(on_bad)
        if isinstance(source, Folder) and on_bad != "raise":
            raise InvalidError("on_bad belongs to the folder: Folder(..., on_bad=...)")
        self.folder = source if isinstance(source, Folder) else None
        paths: Sequence[str] | None = None
        if isinstance(source, Folder):
            self.dataset = source.dataset
        elif isinstance(source, Dataset):
            self.dataset = source
        else:
            name, path = split(source)
            self.dataset, paths = libdiesel.connect(name, **options), [path] if path else None
            options = {}
            if path and on_bad != "raise":
                raise InvalidError("a part of a dataset has no substitutes: pass a Folder, or the dataset")
        if options:
            raise InvalidError(f"a handle is given, and {', '.join(options)} would open another one")
        self.transform, self.loader = transform, loader
        classes = self.folder.native if self.folder else None
        ranks = Ranks.choose(rank, world, nodes)
        self.order = Order(
            self.dataset, classes, paths, batch_size, seed, epoch, group, ranks, resume, pad
        )

    def __iter__(self) -> Iterator[Any]:
        epoch = self.order.begin()
        sample = self._sample if self.folder is None else self._sample_of_folder
        together = min(TOGETHER, max(self.order.batch_size, TOGETHER // 4))
        while True:
            numbers, views = epoch.read(together)
            if not numbers:
                break
            for made in sample(numbers, views):
                self.order.given += 1
                yield made

    def _sample(self, numbers: Sequence[int], views: Sequence[Any]) -> Iterator[Any]:
        for number, view in zip(numbers, views):
            if isinstance(view, CorruptError):
                view = self.bad.substitute(view, number, len(self.dataset), self.dataset.view)
            elif isinstance(view, BaseException):
                raise view
            made = self.loader(view)
            yield made if self.transform is None else self.transform(made)

    def _sample_of_folder(self, numbers: Sequence[int], views: Sequence[Any]) -> Iterator[Any]:
        assert self.folder is not None
        targets = self.folder.native.classes_of(numbers)
        for number, view, target in zip(numbers, views, targets):
            if isinstance(view, CorruptError):
                view = self.folder.substitute(number, view)
            elif isinstance(view, BaseException):
                raise view
            assert target is not None, "the order is that of the folder's own files"
            yield self.folder.sample(view, target)

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
        samples = None if batches is None else batches * self.order.batch_size
        return self.order.state(samples)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Lets the next iteration continue at a state."""
        self.order.load(state)

    def token(self, batches: int) -> str:
        """The token after ``batches`` batches of each rank since the start of the iteration."""
        state = self.state_dict(batches)
        ranks = self.order.ranks
        return libdiesel.token_after(state["token"], state["given"], ranks.world, ranks.nodes)
