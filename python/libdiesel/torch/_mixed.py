"""Several datasets in one stream, by weights, with one exact state."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch.utils.data

from libdiesel._options import U64, whole
from libdiesel.errors import ConflictError, InvalidError
from libdiesel.torch._epochs import Epochs

#: The key of a state, with the version of its form.
KEY = "libdiesel.mixed"
VERSION = 1

#: When a mix ends: with its first source, or with its last.
STOPS = ("first", "last")


class Mixed(torch.utils.data.IterableDataset[Any]):
    """Samples of several :class:`Epochs`, each drawn by its weight. Every sample of a source comes at most once
    in an epoch. Call ``set_epoch`` before each epoch, and let each source have its loader's batch size.

    :param sources: the :class:`Epochs`, for the same rank
    :param weights: how often each is drawn, relative to the others; default their lengths
    :param seed: of the draws
    :param stop: ``"last"`` goes on until all sources are at their end, ``"first"`` until one is

    Its ``state_dict`` goes on exactly, with as many workers as before: with torchdata's StatefulDataLoader, or
    without workers.
    """

    def __init__(
        self,
        sources: Sequence[Epochs],
        *,
        weights: Sequence[float] | None = None,
        seed: int = 0,
        stop: str = "last",
    ) -> None:
        super().__init__()
        self.sources = list(sources)
        if not self.sources:
            raise InvalidError("a mix needs a source")
        for source in self.sources:
            if not isinstance(source, Epochs):
                raise TypeError(f"{source!r} has to be Epochs")
            first = self.sources[0].order.ranks
            if (source.order.ranks.rank, source.order.ranks.world) != (first.rank, first.world):
                raise InvalidError("the sources of a mix have to be those of the same rank")
        lengths = [float(len(source)) for source in self.sources]
        self.weights = lengths if weights is None else [float(weight) for weight in weights]
        if len(self.weights) != len(self.sources):
            raise InvalidError(f"there are {len(self.weights)} weights for {len(self.sources)} sources")
        if not all(0 < weight < math.inf for weight in self.weights):
            raise InvalidError(f"weights={weights!r} have to be positive numbers")
        if stop not in STOPS:
            raise InvalidError(f"stop={stop!r} is not one of {', '.join(STOPS)}")
        self.seed, self.stop = whole("seed", seed, most=U64), stop
        # The place of the newest iteration of this process, and the loaded place of the next.
        self._place: _Place | None = None
        self._loaded: _Place | None = None

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        turn = (worker.id, worker.num_workers) if worker else (0, 1)
        place, self._loaded = self._loaded or _Place(turn, 0, [False] * len(self.sources)), None
        if place.worker != turn:
            raise ConflictError(
                f"the state is that of worker {place.worker[0]} of {place.worker[1]}, and this is worker {turn[0]} "
                f"of {turn[1]}: a mix goes on with as many workers"
            )
        self._place = place
        return _Draws(self, place)

    def __len__(self) -> int:
        """Samples of this rank; with ``stop="first"`` at most as many."""
        return sum(len(source) for source in self.sources)

    @property
    def epoch(self) -> int:
        """The number of the epoch."""
        return self.sources[0].epoch

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch of all sources."""
        for source in self.sources:
            source.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position of this process in the mix."""
        place = self._place or self._loaded or _Place((0, 1), 0, [False] * len(self.sources))
        return {
            KEY: VERSION,
            "worker": place.worker[0],
            "workers": place.worker[1],
            "drawn": place.drawn,
            "over": list(place.over),
            "weights": list(self.weights),
            "sources": [source.state_dict() for source in self.sources],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Lets the next iteration continue at a state."""
        if not isinstance(state, Mapping) or state.get(KEY) != VERSION:
            raise InvalidError(f"this is no state of a mix, version {VERSION}: {state!r:.200}")
        if list(state["weights"]) != self.weights or len(state["sources"]) != len(self.sources):
            raise ConflictError("the state is that of a mix with other sources or weights")
        for source, one in zip(self.sources, state["sources"]):
            source.load_state_dict(one)
        self._loaded = _Place((state["worker"], state["workers"]), state["drawn"], list(state["over"]))
        self._place = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_place": None}

    def __repr__(self) -> str:
        return f"Mixed({self.sources!r}, weights={self.weights!r}): epoch {self.epoch}"


class _Place:
    """A place in a mix: of which worker, draws so far, and the sources that are at their end."""

    def __init__(self, worker: tuple[int, int], drawn: int, over: list[bool]) -> None:
        self.worker, self.drawn, self.over = worker, drawn, over


class _Draws(Iterator[Any]):
    """An iteration. It goes on after an error of a sample."""

    def __init__(self, mixed: Mixed, place: _Place) -> None:
        self._mixed, self._place = mixed, place
        self._iterators = [iter(source) for source in mixed.sources]
        rank = mixed.sources[0].order.ranks.rank
        key = mixed.seed
        for word in (mixed.epoch, rank, *place.worker):
            key = _mixed(key ^ word)
        self._key = key

    def __next__(self) -> Any:
        mixed, place = self._mixed, self._place
        while not all(place.over) and not (mixed.stop == "first" and any(place.over)):
            chosen = self._choose()
            order = mixed.sources[chosen].order
            given = order.given
            try:
                sample = next(self._iterators[chosen])
            except StopIteration:
                # The same draw chooses among the others.
                place.over[chosen] = True
                continue
            except BaseException:
                # The sample was given, unless the error may pass.
                place.drawn += order.given != given
                raise
            place.drawn += 1
            return sample
        raise StopIteration

    def _choose(self) -> int:
        """The source of the next draw."""
        weights = [0.0 if over else weight for over, weight in zip(self._place.over, self._mixed.weights)]
        sums = list(itertools.accumulate(weights))
        drawn = _mixed(self._key ^ _mixed(self._place.drawn)) / (U64 + 1) * sums[-1]
        left = [source for source, weight in enumerate(weights) if weight > 0]
        return next((source for source in left if drawn < sums[source]), left[-1])


def _mixed(word: int) -> int:
    """A number of 64 bits that looks random (docs/ORDER.md, mix)."""
    word = (word + 0x9E3779B97F4A7C15) & U64
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 & U64
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & U64
    return word ^ (word >> 31)
