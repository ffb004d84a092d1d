"""Samplers for map-style datasets and any loader."""

from __future__ import annotations

import array
import operator
from collections.abc import Iterator, Mapping
from typing import Any, Union

import torch.utils.data

from libdiesel import Ranks
from libdiesel._native import Classes
from libdiesel._options import U64, whole
from libdiesel.errors import InvalidError
from libdiesel.torch._folder import Folder
from libdiesel.torch._order import TOGETHER, Order


#: A folder, or a part of it by torch's ``Subset`` or ``random_split``.
Source = Union[Folder, "torch.utils.data.Subset[Any]"]


class _Places:
    """The indexes of a folder, or of a part of it, by the numbers of their files."""

    def __init__(self, source: Source) -> None:
        chosen: list[int] | None = None
        while isinstance(source, torch.utils.data.Subset):
            indexes = [operator.index(index) for index in source.indices]
            chosen = indexes if chosen is None else [indexes[index] for index in chosen]
            source = source.dataset
        if not isinstance(source, Folder):
            raise InvalidError(f"a Folder is wanted here, or a Subset of one, and this is a {type(source).__name__}")
        self.folder = source
        self.native: Classes = source.native
        self._places: array.array[int] | None = None
        if chosen is not None:
            files = len(source)
            chosen = [index + files if index < 0 else index for index in chosen]
            self.native = source.native.only(chosen)
            if len(self.native) < len(chosen):
                raise InvalidError("a sample is in the Subset twice: an order gives each sample once")
            self._places = array.array("q", bytes(8 * files))
            for place, index in enumerate(chosen):
                self._places[index] = place

    def of(self, numbers: list[int]) -> list[int]:
        """The indexes of files."""
        indexes = self.folder.native.indexes(numbers)
        if self._places is None:
            return indexes
        return [self._places[index] for index in indexes]


class ChunkSampler(torch.utils.data.Sampler[int]):
    """The indexes of a :class:`Folder`, or of a ``Subset`` of one, in chunk-wise shuffled order, for one
    process; the agent fetches ahead along the order. Call ``set_epoch`` before each epoch.

    :param seed: the number of the job: each seed has its own order
    :param group: chunks whose files are shuffled together
    :param resume: a token of :func:`resume` to continue from
    """

    def __init__(
        self,
        folder: Source,
        *,
        seed: int = 0,
        epoch: int = 0,
        group: int = 100,
        resume: str | None = None,
        ranks: Ranks | None = None,
        pad: bool = False,
    ) -> None:
        self._places = _Places(folder)
        self.folder = self._places.folder
        self.order = Order(
            self.folder.dataset,
            self._places.native,
            None,
            1,
            seed,
            epoch,
            group,
            ranks or Ranks(0, 1),
            resume,
            pad,
        )

    def __iter__(self) -> Iterator[int]:
        epoch = self.order.begin(batched=False)
        while numbers := epoch.take(TOGETHER):
            for index in self._places.of(numbers):
                self.order.given += 1
                yield index
        self.order.end()

    def __len__(self) -> int:
        return self.order.length()

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self.order.epoch

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, each with its own order."""
        self.order.set_epoch(epoch)

    def state_dict(self, samples: int | None = None) -> dict[str, Any]:
        """The position of the sampler. A loader with workers takes indexes ahead of its batches, so pass the
        number of samples taken since the start of the iteration. torchdata's StatefulDataLoader counts by
        itself."""
        taken = None if samples is None else whole("samples", samples, most=U64)
        return self.order.state(taken, batched=False)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Lets the next iteration continue at a state."""
        self.order.load(state)

    def __repr__(self) -> str:
        ranks = self.order.ranks
        name = type(self).__name__
        return f"{name}({self.folder.root!r}): epoch {self.epoch}, rank {ranks.rank} of {ranks.world}"


class DistributedChunkSampler(ChunkSampler, torch.utils.data.DistributedSampler[int]):
    """The share of one rank, as a ``torch.utils.data.DistributedSampler``, which Lightning leaves alone. The
    rank, the number of ranks and the number of machines are found by :class:`libdiesel.Ranks` by default. Every
    rank has equally many samples: a few are left out of each epoch, or, with ``pad``, read twice."""

    def __init__(
        self,
        folder: Source,
        rank: int | None = None,
        world: int | None = None,
        nodes: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(folder, ranks=Ranks.choose(rank, world, nodes), **options)
        # The attributes of torch's class, whose constructor would need an initialized torch.distributed.
        self.dataset, self.rank, self.num_replicas = folder, self.order.ranks.rank, self.order.ranks.world
        self.shuffle, self.seed, self.drop_last = True, self.order.seed, not self.order.pad

    @property
    def num_samples(self) -> int:
        """Samples of this rank."""
        return len(self)

    @property
    def total_size(self) -> int:
        """Samples of all ranks."""
        return len(self) * self.num_replicas
