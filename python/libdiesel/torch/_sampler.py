"""Samplers for map-style datasets and any loader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch.utils.data

from libdiesel import Ranks
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

    def __len__(self) -> int:
        return self.order.length()

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, each with its own order."""
        self.order.set_epoch(epoch)

    def state_dict(self, samples: int | None = None) -> dict[str, Any]:
        """The position of the sampler. A loader with workers takes indexes ahead of its batches, so pass the
        number of samples taken since the start of the iteration. torchdata's StatefulDataLoader counts by
        itself."""
        return self.order.state(samples, batched=False)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Lets the next iteration continue at a state."""
        self.order.load(state)


class DistributedChunkSampler(ChunkSampler):
    """The share of one rank. The rank, the number of ranks and the number of machines are found by
    :class:`libdiesel.Ranks` by default. Every rank has equally many samples: a few are left out of each epoch,
    or, with ``pad``, read twice."""

    def __init__(
        self,
        folder: Folder,
        rank: int | None = None,
        world: int | None = None,
        nodes: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(folder, ranks=Ranks.choose(rank, world, nodes), **options)
