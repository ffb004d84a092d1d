"""The position of a rank in its epoch, and its saved state.

A state is a small dictionary: the start token of the iteration, and the number of samples delivered since, of
the rank or of one worker of its loader. The order itself is computed, never saved.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils.data

import libdiesel
from libdiesel import Dataset, Epoch, Ranks
from libdiesel._native import Classes
from libdiesel._options import U64, whole
from libdiesel.errors import ConflictError, InvalidError
from libdiesel.torch._trainers import epoch_of_trainer

logger = logging.getLogger("libdiesel")

#: The key of a state, with the version of its form.
KEY = "libdiesel"
VERSION = 1

#: Files read together.
TOGETHER = 256

#: Words shared by the copies of an order in all workers: the epoch, the number of times it was set, that number
#: plus 1 at the end of the last iteration (or REPORTED), and, for each worker, the number of iterations since a
#: position was loaded.
EPOCH, CHANGES, ENDED, BEGUN = 0, 1, 2, 3
REPORTED = -1
EPOCH_MAX = 2**63 - 1
#: Far below 32,768 bytes: torch fills and copies larger tensors with OpenMP, which hangs in a forked child.
WORKERS_MAX = 2048

#: Key of the number of batches delivered by torchdata's loader since its last snapshot of the workers.
STEPS = "_steps_since_snapshot"


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
        self.dataset = dataset
        self._classes, self._paths = classes, paths
        self.batch_size = whole("batch_size", batch_size, least=1)
        self.ranks = ranks
        self.seed, self._group, self.pad = whole("seed", seed, most=U64), whole("group", group, least=1), pad
        # Persistent workers must see a change of the epoch.
        self._shared = torch.zeros(BEGUN + WORKERS_MAX, dtype=torch.int64).share_memory_()
        self._shared[EPOCH] = whole("epoch", epoch, most=EPOCH_MAX)
        # The loaded position: the token, samples of a worker delivered since, the worker, and the number of
        # times the epoch was set before.
        self._resume: str | None = None
        self._read, self._worker, self._loaded_at = 0, (0, 1), 0
        # The newest iteration of this process: its token, whether the token is the start of the epoch, and
        # the number of delivered samples.
        self._begun: tuple[str, bool] | None = None
        self.given = 0
        self._lengths: dict[str | None, int] = {}
        if resume is not None:
            self._go_on(resume)

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        loaded = self._resume is not None and self._loaded_at == int(self._shared[CHANGES])
        return _field(self._resume or "", "epoch") if loaded else int(self._shared[EPOCH])

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch, each with its own order. To be called before each epoch, as with torch's
        DistributedSampler. A resumed epoch keeps its position."""
        epoch = whole("epoch", epoch, most=EPOCH_MAX)
        epoch_of_trainer(self.ranks)
        if epoch != self.epoch:
            self._check_unread(epoch)
            self._resume, self._read = None, 0
        self._shared[EPOCH] = epoch
        self._shared[CHANGES] += 1

    def _check_unread(self, epoch: int) -> None:
        """Raises an error if another epoch would drop a loaded position in the middle of an epoch."""
        place = self._place(0)
        if place and 0 < self._samples(place) - self._read and self._samples(place) < self._samples(None):
            raise ConflictError(
                f"set_epoch({epoch}) would drop the loaded position in the middle of epoch {self.epoch}: call "
                f"set_epoch({self.epoch}) first (of Accelerate's loader too, which counts from 0)"
            )

    def _go_on(self, token: str) -> None:
        """Lets the next iteration of each worker start at a token."""
        _field(token, "epoch")
        self._resume, self._loaded_at = token, int(self._shared[CHANGES])
        self._read, self._worker, self._begun = 0, (0, 1), None
        worker = _worker()
        if worker is None:
            self._shared[BEGUN:] = 0
        else:
            self._shared[BEGUN + worker[0] % WORKERS_MAX] = 0

    def _place(self, worker: int, begun: int = 0) -> str | None:
        """The start token of a worker's iteration, after ``begun`` iterations since the token was loaded; none
        for the start of the epoch."""
        if self._resume is None or _field(self._resume, "epoch") != self.epoch:
            return None
        return self._resume if int(self._shared[BEGUN + worker % WORKERS_MAX]) <= begun else None

    def _shuffle(self, worker: tuple[int, int] | None, token: str | None, read: int) -> Epoch:
        return self.dataset.shuffle(
            epoch=self.epoch,
            rank=self.ranks.rank,
            world=self.ranks.world,
            nodes=self.ranks.nodes,
            worker=None if worker is None else (*worker, self.batch_size),
            resume=token,
            read=read,
            seed=self.seed,
            group=self._group,
            pad=self.pad,
            classes=self._classes,
            paths=self._paths,
        )

    def begin(self, batched: bool = True) -> Epoch:
        """The order of this worker, from the loaded position."""
        epoch = epoch_of_trainer(self.ranks)
        if not batched and epoch is not None and epoch != self.epoch:
            # Accelerate's loader that skips batches tells its epoch to no sampler.
            self.set_epoch(epoch)
        worker = (_worker() if batched else None) or (0, 1)
        token = self._place(worker[0])
        read = self._read if token else 0
        if read and self._worker != worker:
            raise ConflictError(
                f"the state is that of worker {self._worker[0]} of {self._worker[1]}, and this is worker "
                f"{worker[0]} of {worker[1]}: continue with libdiesel.torch.resume(state)"
            )
        if token is None and worker[0] == 0 and int(self._shared[ENDED]) == int(self._shared[CHANGES]) + 1:
            self._shared[ENDED] = REPORTED
            logger.warning(
                "epoch %d is read again in the same order: call set_epoch before each epoch", self.epoch
            )
        files = self._shuffle(worker, token, read)
        self._read = 0
        self._shared[BEGUN + worker[0] % WORKERS_MAX] += 1
        self._begun, self.given = (files.token(0), token is None), read
        return files

    def end(self) -> None:
        """Records the end of an iteration."""
        if int(self._shared[ENDED]) != REPORTED:
            self._shared[ENDED] = self._shared[CHANGES] + 1

    def _samples(self, token: str | None) -> int:
        """Samples of this rank, from the start of the epoch or from a token."""
        key = token or str(self.epoch)
        if key not in self._lengths:
            self._lengths = {key: len(self._shuffle(None, token, 0))}
        return self._lengths[key]

    def length(self) -> int:
        """Samples of this rank in the next iteration."""
        return self._samples(self._place(0))

    def state(self, samples: int | None, batched: bool = True) -> dict[str, Any]:
        """The position of this process; with ``samples``, the position after as many samples of the rank."""
        worker = (_worker() if batched else None) or (0, 1)
        begun = self._begun
        if begun and _field(begun[0], "epoch") == self.epoch:
            (token, is_whole), given = begun, self.given
        else:
            # The first of a loader's workers speaks for all.
            place = self._place(worker[0], 1 if _worker() is None else 0)
            token, is_whole = self._shuffle(None, place, 0).token(0), place is None
            given = self._read if place else 0
        length = self._samples(token)
        if samples is not None:
            worker, given = (0, 1), min(samples, length)
        return {
            KEY: VERSION,
            "token": token,
            "given": given,
            "length": length,
            "fresh": is_whole and given == 0,
            "worker": worker[0],
            "workers": worker[1],
            "batch_size": self.batch_size if batched else 1,
            "rank": self.ranks.rank,
            "world": self.ranks.world,
            "nodes": self.ranks.nodes,
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Lets the next iteration continue at a state. A state from between two epochs has no effect once
        another epoch is set."""
        _check(state)
        mine = {"world": self.ranks.world, "nodes": self.ranks.nodes, "batch_size": self.batch_size}
        for name, value in mine.items():
            if state[name] != value and not (state["workers"] == 1 and name == "batch_size"):
                raise ConflictError(
                    f"the state has {name}={state[name]}, and this is {name}={value}: go on by "
                    f"libdiesel.torch.resume(state)"
                )
        epoch, is_set = _field(state["token"], "epoch"), int(self._shared[CHANGES]) > 0
        worker, given = (state["worker"], state["workers"]), state["given"]
        is_over = given >= _share(state["length"], *worker, state["batch_size"])
        if is_set and epoch != self.epoch:
            if is_over or state["fresh"]:
                self._resume, self._read, self._begun = None, 0, None
                return
            raise ConflictError(
                f"the state is in the middle of epoch {epoch}, and set_epoch({self.epoch}) came before it: "
                f"set_epoch({epoch}) goes on with it"
            )
        if worker[1] == 1:
            self._go_on(_after(state, given))
        else:
            self._go_on(state["token"])
            self._read, self._worker = given, worker

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_begun": None, "given": 0}


def resume(state: Any) -> str:
    """The token of a saved state: of a dataset, of a sampler, or of a loader with any of these.
    ``Epochs(..., resume=token)`` and ``ChunkSampler(..., resume=token)`` continue with any number of workers
    and ranks.

    :raises InvalidError: if the value has no such state, or states of several epochs
    """
    found = list(_states(state, 0))
    if not found:
        raise InvalidError("the state holds nothing of libdiesel: save that of the dataset or sampler")
    for one, _ in found:
        _check(one)
    first, steps = found[0]
    if any((one["token"], one["workers"]) != (first["token"], first["workers"]) for one, _ in found):
        raise InvalidError("the state holds several places: give the part of one dataset or sampler")
    given = {one["worker"]: one["given"] for one, _ in found}
    workers, batch_size = first["workers"], first["batch_size"]
    if sorted(given) != list(range(workers)) or len(found) != workers:
        raise InvalidError(
            f"the state holds {len(found)} of {workers} workers: give that of the whole loader"
        )
    read = sum(given.values())
    if any(count != _share(read, worker, workers, batch_size) for worker, count in given.items()):
        raise InvalidError(
            "the workers were not asked in turns for batches of the dataset's batch_size: give Epochs the "
            "batch_size of the loader"
        )
    if steps and batch_size == 1 and workers == 1:
        raise InvalidError(
            f"the loader gave {steps} batches after the last snapshot of its sampler: load the state into "
            "a loader with as many workers, or save with snapshot_every_n_steps=1"
        )
    return _after(first, min(read + steps * batch_size, first["length"]))


def _after(state: Mapping[str, Any], read: int) -> str:
    """The token after ``read`` samples of each rank."""
    return libdiesel.token_after(state["token"], read, state["world"], state["nodes"])


def _share(samples: int, worker: int, workers: int, batch_size: int) -> int:
    """The worker's share of the first samples of a rank: each `workers`-th batch."""
    full, rest = divmod(samples, batch_size)
    batches = (full + workers - 1 - worker) // workers
    return batches * batch_size + (rest if full % workers == worker else 0)


def _worker() -> tuple[int, int] | None:
    """The number of this worker of a loader, and the number of workers."""
    info = torch.utils.data.get_worker_info()
    return (info.id, info.num_workers) if info else None


def _states(value: Any, steps: int) -> Iterator[tuple[Mapping[str, Any], int]]:
    """All states inside a nested value, each with the number of batches delivered since by its loader."""
    if isinstance(value, Mapping):
        if KEY in value:
            yield value, steps
            return
        steps = int(value.get(STEPS) or 0) or steps
        value = value.values()
    elif not isinstance(value, (list, tuple)):
        return
    for part in value:
        yield from _states(part, steps)


def _check(state: Any) -> None:
    if not isinstance(state, Mapping) or state.get(KEY) != VERSION:
        raise InvalidError(f"this is no state of libdiesel, version {VERSION}: {state!r:.200}")


def _field(token: str, name: str) -> int:
    """A number of a token."""
    for part in token.split(";") if isinstance(token, str) else ():
        key, _, text = part.partition("=")
        if key == name and text.isascii() and text.isdigit():
            return int(text)
    raise InvalidError(f"this is no resume token: {token!r:.200}")
