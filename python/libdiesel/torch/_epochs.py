"""An iterable dataset that deals the files of an epoch out to ranks and to workers of their loaders."""

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
    """The samples of an epoch in chunk-wise shuffled order. ``set_epoch`` comes before each epoch.

    :param source: a :class:`Folder`, whose samples are given as ``(sample, target)``; a
        :class:`libdiesel.Dataset`, or an address ``dl://DATASET[/FOLDER]``, whose files are given
    :param batch_size: that of the loader: workers are asked for batches in turns, and what they read together
        is the order of the rank
    :param seed: the number of the job: another one gives another order
    :param group: chunks whose files are shuffled together
    :param loader: makes a sample of the bytes of a file, a :class:`libdiesel.View`; ``bytes`` without it
    :param rank: with ``world`` and ``nodes``: found (:class:`libdiesel.Ranks`) where they are not given
    :param resume: a token of :func:`resume` to go on from
    :param on_bad: as that of :class:`Folder`, for all files of a dataset
    :param pad: read a few samples twice, so that all ranks have equally many, instead of leaving a few out
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
            raise InvalidError("the folder says what becomes of damaged files: Folder(..., on_bad=...)")
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
                raise InvalidError("a part of a dataset has no substitutes: name a Folder, or the dataset")
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
        """Every epoch has another order; workers that persist see it too."""
        self.order.set_epoch(epoch)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Where this process is. With the workers of a plain DataLoader, which read ahead, tell how many
        batches the training has taken since the iteration began; torchdata's StatefulDataLoader knows it by
        itself."""
        samples = None if batches is None else batches * self.order.batch_size
        return self.order.state(samples)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on where a state says."""
        self.order.load(state)

    def token(self, batches: int) -> str:
        """The token to go on with when each rank has taken so many batches since the iteration began."""
        state = self.state_dict(batches)
        ranks = self.order.ranks
        return libdiesel.token_after(state["token"], state["given"], ranks.world, ranks.nodes)
