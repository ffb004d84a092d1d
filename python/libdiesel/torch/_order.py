"""Where a rank is in its epoch, and how that is saved.

A state is a small dictionary: the token at which the iteration began, and how many samples of this rank, or
of one worker of its loader, were given since. The order itself is computed, never saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

import libdiesel
from libdiesel import Dataset, Epoch, Ranks
from libdiesel._native import Classes
from libdiesel.errors import ConflictError, InvalidError

#: The key of a state, with the version of its form.
KEY = "libdiesel"
VERSION = 1

#: Files that are looked up together.
TOGETHER = 256


class Order:
    """The order of the samples of one rank, for datasets and samplers."""

    def __init__(
        self,
        dataset: Dataset,
        classes: Classes | None,
        paths: Sequence[str] | None,
        batch_size: int,
        seed: int,
        epoch: int,
        group: int,
        ranks: Ranks,
        resume: str | None,
        pad: bool,
    ) -> None:
        if batch_size < 1:
            raise InvalidError(f"batch_size={batch_size}: a batch has at least one sample")
        self.dataset = dataset
        self._classes, self._paths = classes, paths
        self.batch_size = batch_size
        self.ranks = ranks
        self._seed, self._group, self._pad = seed, group, pad
        # Workers that live for several epochs see a change of it.
        self._epoch = torch.tensor([epoch], dtype=torch.int64).share_memory_()
        self._resume: str | None = None
        # Samples that were given since, to which worker of how many.
        self._read, self._worker = 0, (0, 1)
        # Of the newest iteration of this process: its token, and samples given.
        self._begun: tuple[str, tuple[int, int]] | None = None
        self.given = 0
        if resume is not None:
            self._go_on(resume)
        self._length: int | None = None

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return int(self._epoch.item())

    def set_epoch(self, epoch: int) -> None:
        """Every epoch has another order: to be called before each, as with torch's DistributedSampler. An
        epoch that is gone on with keeps its place."""
        if epoch != self.epoch:
            self._epoch[0] = epoch
            self._forget()
            self._begun = None

    def _forget(self) -> None:
        self._resume, self._read, self._worker, self._length = None, 0, (0, 1), None

    def _go_on(self, token: str) -> None:
        epoch = _field(token, "epoch")
        self._forget()
        self._epoch[0] = epoch
        self._resume = token

    def _shuffle(self, worker: tuple[int, int] | None, read: int) -> Epoch:
        resume = self._resume
        if resume is not None and _field(resume, "epoch") != self.epoch:
            # Another process has begun another epoch.
            resume, read = None, 0
        return self.dataset.shuffle(
            epoch=self.epoch,
            rank=self.ranks.rank,
            world=self.ranks.world,
            nodes=self.ranks.nodes,
            worker=None if worker is None else (*worker, self.batch_size),
            resume=resume,
            read=read,
            seed=self._seed,
            group=self._group,
            pad=self._pad,
            classes=self._classes,
            paths=self._paths,
        )

    def begin(self, number: int, workers: int) -> Epoch:
        """The order of a worker, from where a state that was loaded says."""
        worker = (number, workers)
        if self._read and self._worker[1] == 1 and self._resume is not None:
            # All of the rank's samples together: any number of workers goes on.
            ranks = self.ranks
            self._resume = libdiesel.token_after(self._resume, self._read, ranks.world, ranks.nodes)
            self._read = 0
        if self._read and self._worker != worker:
            raise ConflictError(
                f"the state is that of worker {self._worker[0]} of {self._worker[1]}, and this is worker "
                f"{number} of {workers}: go on by libdiesel.torch.resume(state)"
            )
        read, self._read = self._read, 0
        epoch = self._shuffle(worker, read)
        self._begun, self.given = (epoch.token(0), worker), read
        return epoch

    def ended(self) -> None:
        """The next iteration of this process reads a whole epoch."""
        self._forget()

    def length(self) -> int:
        """Samples of this rank, from where the epoch begins or goes on."""
        if self._length is None:
            whole = len(self._shuffle(None, 0))
            self._length = whole - (self._read if self._worker[1] == 1 else 0)
        return self._length

    def state(self, samples: int | None) -> dict[str, Any]:
        """Where this process is; with ``samples``, where a rank is that has taken so many since it began."""
        token, worker = self._begun or (self._resume or self._shuffle(None, 0).token(0), (0, 1))
        given = self.given if self._begun else self._read
        if samples is not None:
            worker, given = (0, 1), samples
        return {
            KEY: VERSION,
            "token": token,
            "given": given,
            "worker": worker[0],
            "workers": worker[1],
            "batch_size": self.batch_size,
            "rank": self.ranks.rank,
            "world": self.ranks.world,
            "nodes": self.ranks.nodes,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """The next iteration goes on where a state says."""
        _check(state)
        mine = {"world": self.ranks.world, "nodes": self.ranks.nodes, "batch_size": self.batch_size}
        for name, value in mine.items():
            if state["workers"] == 1 and name == "batch_size":
                continue
            if state[name] != value:
                raise ConflictError(
                    f"the state has {name}={state[name]}, and this is {name}={value}: go on by "
                    f"libdiesel.torch.resume(state)"
                )
        self._go_on(state["token"])
        self._read, self._worker = state["given"], (state["worker"], state["workers"])
        self._begun = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_begun": None, "given": 0}


def resume(state: Any) -> str:
    """The token of a saved state: of a dataset, of a sampler, or of a loader that holds one of these
    somewhere. ``Epochs(..., resume=token)`` and ``ChunkSampler(..., resume=token)`` go on from it with any
    number of workers and ranks.

    :raises InvalidError: when there is no such state in it, or states of several epochs
    """
    found = list(_states(state))
    if not found:
        raise InvalidError("the state holds nothing of libdiesel: save that of the dataset or sampler")
    for one in found:
        _check(one)
    first = found[0]
    if any((one["token"], one["workers"]) != (first["token"], first["workers"]) for one in found):
        raise InvalidError("the state holds several places: give the part of one dataset or sampler")
    workers = {one["worker"]: one["given"] for one in found}
    if len(workers) != len(found) or len(workers) not in (1, first["workers"]):
        raise InvalidError(f"the state holds {len(found)} of {first['workers']} workers")
    if first["workers"] > 1 and len(workers) == 1:
        raise InvalidError("the state is that of one worker: give that of the loader")
    read = sum(workers.values()) + _steps_since(state) * first["batch_size"]
    return libdiesel.token_after(first["token"], read, first["world"], first["nodes"])


def _states(value: Any) -> Iterator[Mapping[str, Any]]:
    """All states inside of a nested value."""
    if isinstance(value, Mapping):
        if KEY in value:
            yield value
            return
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return
    for part in value:
        yield from _states(part)


def _steps_since(state: Any) -> int:
    """Batches that a loader of torchdata's gave after its last look at its workers."""
    return int(state.get("_steps_since_snapshot", 0)) if isinstance(state, Mapping) else 0


def _check(state: Mapping[str, Any]) -> None:
    if not isinstance(state, Mapping) or state.get(KEY) != VERSION:
        raise InvalidError(f"this is no state of libdiesel, version {VERSION}: {state!r:.200}")


def _field(token: str, name: str) -> int:
    """A number of a token."""
    for part in token.split(";"):
        key, _, text = part.partition("=")
        if key == name and text.isascii() and text.isdigit():
            return int(text)
    raise InvalidError(f"this is no resume token: {token!r:.200}")
