"""The ranks of a job: number of this process, number of ranks, and number of machines."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from libdiesel._options import whole
from libdiesel.errors import InvalidError

logger = logging.getLogger("libdiesel")

# The launcher, and its variables: rank, number of ranks, and number of machines if known to all ranks.
_LAUNCHERS = (
    ("torchrun", "RANK", "WORLD_SIZE", "GROUP_WORLD_SIZE"),
    # The variables of a step started by srun: a batch script is no rank.
    ("SLURM", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES"),
    ("MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ""),
    ("MPI", "PMI_RANK", "PMI_SIZE", ""),
    ("Kubernetes", "JOB_COMPLETION_INDEX", "WORLD_SIZE", ""),
)

_logged: set[Ranks] = set()


@dataclass(frozen=True)
class Ranks:
    """A rank of a job.

    >>> Ranks.find({"RANK": "3", "WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2"})
    Ranks(rank=3, world=8, nodes=2, source='torchrun')
    >>> Ranks.find({})
    Ranks(rank=0, world=1, nodes=1, source='nothing')
    """

    rank: int
    world: int
    #: Machines, each with equally many ranks.
    nodes: int = 1
    #: The origin of these numbers.
    source: str = "the caller"

    def __post_init__(self) -> None:
        for name in ("rank", "world", "nodes"):
            whole(name, getattr(self, name))
        if not 0 <= self.rank < self.world:
            raise InvalidError(f"rank {self.rank} of {self.world}: ranks count from 0")
        if self.nodes < 1 or self.world % self.nodes:
            raise InvalidError(f"{self.world} ranks can't be spread evenly over {self.nodes} nodes")

    @classmethod
    def find(cls, environment: Mapping[str, str] | None = None) -> Ranks:
        """The rank of this process: from an initialized torch.distributed, else from the environment of a
        launcher (torchrun, SLURM, MPI, Kubernetes), else the only rank."""
        variables = os.environ if environment is None else environment
        found = cls._of_launcher(variables)
        distributed = sys.modules.get("torch.distributed") if environment is None else None
        if distributed and distributed.is_available() and distributed.is_initialized():
            rank, world = distributed.get_rank(), distributed.get_world_size()
            if (rank, world) != (found.rank, found.world):
                found = cls(rank, world, 1, "torch.distributed")
        return found

    @classmethod
    def _of_launcher(cls, variables: Mapping[str, str]) -> Ranks:
        for source, rank_name, world_name, nodes_name in _LAUNCHERS:
            rank, world = _number(variables, rank_name), _number(variables, world_name)
            if rank is None or world is None:
                continue
            if rank >= world:
                raise InvalidError(
                    f"{source} says {rank_name}={rank} and {world_name}={world}: ranks count from 0"
                )
            nodes = _number(variables, nodes_name) or 1
            return cls(rank, world, nodes if world % nodes == 0 else 1, source)
        return cls(0, 1, 1, "nothing")

    @classmethod
    def choose(cls, rank: int | None, world: int | None, nodes: int | None) -> Ranks:
        """The numbers of the caller, or else the numbers found; logged once."""
        if (rank is None) != (world is None):
            raise InvalidError("rank and world go together: give both, or none to find them")
        found = cls.find() if rank is None or world is None else cls(rank, world)
        chosen = found if nodes is None else cls(found.rank, found.world, nodes, found.source)
        if chosen not in _logged:
            _logged.add(chosen)
            logger.info(
                "rank %d of %d, machines: %d, as %s says",
                chosen.rank,
                chosen.world,
                chosen.nodes,
                chosen.source,
            )
        return chosen


def _number(variables: Mapping[str, str], name: str) -> int | None:
    text = variables.get(name, "") if name else ""
    return int(text) if text.isascii() and text.isdigit() else None
