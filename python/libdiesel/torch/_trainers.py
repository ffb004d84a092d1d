"""Trainers among the callers of an iteration: a share that is dealt to the ranks again is refused.

Accelerate, and with it Hugging Face's Trainer, shards every loader, or lets rank 0 read for all ranks. A share
that is dealt out again would lose all but 1/ranks of its samples without a word.
"""

from __future__ import annotations

import sys
from types import FrameType

from libdiesel import Ranks
from libdiesel.errors import ConflictError

#: Classes of Accelerate and Lightning that deal samples to ranks.
DEALERS = {
    "BatchSamplerShard",
    "DataLoaderDispatcher",
    "DistributedSamplerWrapper",
    "IterableDatasetShard",
    "UnrepeatedDistributedSamplerWrapper",
}

#: Accelerate's loader, which knows the epoch.
LOADER = "DataLoaderShard"


def epoch_of_trainer(ranks: Ranks) -> int | None:
    """The epoch of Accelerate's loader among the callers, if there is one.

    :raises ConflictError: where a caller would deal the share of a rank to the ranks again
    """
    epoch = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_qualname.partition(".")[0]
        if name in DEALERS and ranks.world > 1 and _processes(frame.f_locals.get("self")) > 1:
            raise ConflictError(
                f"read the samples of rank {ranks.rank} of {ranks.world}: {name} would deal them to the ranks "
                "again, and most would never be read; leave this loader out of the trainer's preparation "
                "(accelerator.prepare), or give the trainer a Folder with ChunkSampler, or "
                "Epochs(..., rank=0, world=1)"
            )
        if name == LOADER:
            epoch = getattr(frame.f_locals.get("self"), "iteration", None)
        frame = frame.f_back
    return epoch if isinstance(epoch, int) else None


def _processes(dealer: object) -> int:
    """The ranks that a dealer serves."""
    for owner in (dealer, getattr(dealer, "state", None)):
        for name in ("num_processes", "num_replicas"):
            if isinstance(number := getattr(owner, name, None), int):
                return number
    return 2
