"""Samplers for map-style datasets and any loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch.utils.data

from libdiesel import Ranks
from libdiesel._options import U64, whole
from libdiesel.torch._folder import Folder
from libdiesel.torch._order import TOGETHER, Order


class ChunkSampler(torch.utils.data.Sampler[int]):
    """The indexes of a :class:`Folder` in chunk-wise shuffled order, for one process; the agent fetches
    ahead along the order. Call ``set_epoch`` before each epoch.

    :param seed: the number of the job: each seed has its own order
    :param group: chunks whose files are shuffled together
    :param resume: a token of :func:`resume` to continue from
    """

    def __init__(
        self,
        folder: Folder,
        *,
        seed: int = 0,
        epoch: int = 0,
        group: int = 100,
        resume: str | None = None,
        ranks: Ranks | None = None,
        pad: bool = False,
    ) -> None:
        self.folder = folder
        self.order = Order(
            folder.dataset,
            folder.native,
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
            for index in self.folder.native.indexes(numbers):
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
        folder: Folder,
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
