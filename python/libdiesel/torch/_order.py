"""Where a rank is in its epoch, and how that is saved.

A state is a small dictionary: the token at which the iteration began, and how many samples of this rank, or
of one worker of its loader, were given since. The order itself is computed, never saved.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils.data

import libdiesel
from libdiesel import Dataset, Epoch, Ranks
from libdiesel._native import Classes
from libdiesel.errors import ConflictError, InvalidError

#: The key of a state, with the version of its form.
KEY = "libdiesel"
VERSION = 1

#: Files that are looked up together.
TOGETHER = 256

#: Words that the copies of an order in all workers share: the epoch, how often it was set, and, for each
#: worker, how often it has begun since a place was loaded.
EPOCH, CHANGES, BEGUN = 0, 1, 2
WORKERS_MAX = 4096

#: Where torchdata's loader says how many batches it gave after its last look at its workers.
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
        if batch_size < 1:
            raise InvalidError(f"batch_size={batch_size}: a batch has at least one sample")
        self.dataset = dataset
        self._classes, self._paths = classes, paths
        self.batch_size = batch_size
        self.ranks = ranks
        self._seed, self._group, self._pad = seed, group, pad
        # Workers that live for several epochs see a change of it.
        self._shared = torch.zeros(BEGUN + WORKERS_MAX, dtype=torch.int64).share_memory_()
        self._shared[EPOCH] = epoch
        # Of a place that was loaded: the token, samples of a worker that were given since, the worker, and
        # how often the epoch was set before.
        self._resume: str | None = None
        self._read, self._worker, self._loaded_at = 0, (0, 1), 0
        # Of the newest iteration of this process: its token, and whether that is the begin of the epoch; and
        # samples given.
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
        """Every epoch has another order: to be called before each, as with torch's DistributedSampler. An
        epoch that is gone on with keeps its place."""
        if epoch < 0:
            raise InvalidError(f"epoch {epoch}: epochs count from 0")
        if epoch != self.epoch:
            self._resume, self._read = None, 0
        self._shared[EPOCH] = epoch
        self._shared[CHANGES] += 1

    def _go_on(self, token: str) -> None:
        """The first iteration that follows, of each worker, begins at a token."""
        _field(token, "epoch")
        self._resume, self._loaded_at = token, int(self._shared[CHANGES])
        self._read, self._worker, self._begun = 0, (0, 1), None
        worker = _worker()
        if worker is None:
            self._shared[BEGUN:] = 0
        else:
            self._shared[BEGUN + worker[0] % WORKERS_MAX] = 0

    def _place(self, worker: int, begun: int = 0) -> str | None:
        """The token that an iteration of a worker begins at, before which it has begun so often since the token
        was loaded; none for the begin of the epoch."""
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
            seed=self._seed,
            group=self._group,
            pad=self._pad,
            classes=self._classes,
            paths=self._paths,
        )

    def begin(self, batched: bool = True) -> Epoch:
        """The order of this worker, from where a state that was loaded says."""
        worker = (_worker() if batched else None) or (0, 1)
        token = self._place(worker[0])
        read = self._read if token else 0
        if read and self._worker != worker:
            raise ConflictError(
                f"the state is that of worker {self._worker[0]} of {self._worker[1]}, and this is worker "
                f"{worker[0]} of {worker[1]}: go on by libdiesel.torch.resume(state)"
            )
        epoch = self._shuffle(worker, token, read)
        self._read = 0
        self._shared[BEGUN + worker[0] % WORKERS_MAX] += 1
        self._begun, self.given = (epoch.token(0), token is None), read
        return epoch

    def _samples(self, token: str | None) -> int:
        """Samples of this rank, from the begin of the epoch or from a token on."""
        key = token or str(self.epoch)
        if key not in self._lengths:
            self._lengths = {key: len(self._shuffle(None, token, 0))}
        return self._lengths[key]

    def length(self) -> int:
        """Samples of this rank in the next iteration."""
        return self._samples(self._place(0))

    def state(self, samples: int | None, batched: bool = True) -> dict[str, Any]:
        """Where this process is; with ``samples``, where a rank is that has taken so many since it began."""
        worker = (_worker() if batched else None) or (0, 1)
        begun = self._begun
        if begun and _field(begun[0], "epoch") == self.epoch:
            (token, is_whole), given = begun, self.given
        else:
            # Of a loader's workers, the first one says what they do.
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
        """The next iteration goes on where a state says. A state from between two epochs has nothing to go on
        with once another epoch is set."""
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
    """The token of a saved state: of a dataset, of a sampler, or of a loader that holds one of these
    somewhere. ``Epochs(..., resume=token)`` and ``ChunkSampler(..., resume=token)`` go on from it with any
    number of workers and ranks.

    :raises InvalidError: when there is no such state in it, or states of several epochs
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
    """The token behind samples of each rank."""
    return libdiesel.token_after(state["token"], read, state["world"], state["nodes"])


def _share(samples: int, worker: int, workers: int, batch_size: int) -> int:
    """How many of the first samples of a rank a worker reads, which has each `workers`-th batch."""
    full, rest = divmod(samples, batch_size)
    batches = (full + workers - 1 - worker) // workers
    return batches * batch_size + (rest if full % workers == worker else 0)


def _worker() -> tuple[int, int] | None:
    """Which worker of a loader this process is, of how many."""
    info = torch.utils.data.get_worker_info()
    return (info.id, info.num_workers) if info else None


def _states(value: Any, steps: int) -> Iterator[tuple[Mapping[str, Any], int]]:
    """All states inside of a nested value, each with the batches that its loader gave since."""
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
    for part in token.split(";"):
        key, _, text = part.partition("=")
        if key == name and text.isascii() and text.isdigit():
            return int(text)
    raise InvalidError(f"this is no resume token: {token!r:.200}")
