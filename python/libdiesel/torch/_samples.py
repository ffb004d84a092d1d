"""Samples of several files: files of equal stems belong together, as in WebDataset's archives.

The order is that of the first file of each sample, so all of :class:`Epochs` holds: ranks, workers, states.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from libdiesel import Batch, Dataset, View
from libdiesel._addresses import name_sample
from libdiesel.errors import DieselError, InvalidError, NotFoundError
from libdiesel.torch._epochs import Epochs
from libdiesel.torch._folder import Folder, Transform

#: The stem of a path, and the field: the name behind the first dot of its last component.
_PARTS = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]*)", re.DOTALL)


class Samples(Epochs):
    """The samples of an epoch in chunk-wise shuffled order: all files of a stem as a dictionary from the field to
    the :class:`libdiesel.View` of the file, with the stem as ``"__key__"``.

    The file ``train/00017.seg.png`` has the stem ``train/00017`` and the field ``seg.png``. Fields are in lower
    case. Files without a dot, or with a dot in front, belong to no sample.

    :param source: a :class:`libdiesel.Dataset`, or an address ``dl://DATASET[/FOLDER]``
    :param batch_size: as for :class:`Epochs`, in samples
    :param transform: of the dictionary

    The other parameters are those of :class:`Epochs`, without ``loader``, ``on_bad`` and ``with_path``. The first
    file of a sample, in the order of fields, sets the place of the sample in the order: write the files of a sample
    one after the other, so that they share a chunk.

    :raises InvalidError: if two files of a stem have the same field in lower case
    :raises NotFoundError: if no file belongs to a sample
    """

    def __init__(
        self, source: Dataset | str, *, batch_size: int, transform: Transform | None = None, **options: Any
    ) -> None:
        if isinstance(source, Folder):
            raise InvalidError("a Folder has samples of one file each: pass the dataset or its address")
        for name in ("loader", "on_bad", "with_path"):
            if name in options:
                raise InvalidError(f"{name} is no option of Samples: convert the files in transform")
        super().__init__(source, batch_size=batch_size, transform=transform, **options)

    def _select(self, paths: Sequence[str] | None) -> list[str]:
        fields: dict[str, tuple[str, ...]] = {}
        known: dict[tuple[str, ...], tuple[str, ...]] = {(): ()}
        roots: Sequence[str | None] = paths or [None]
        found = itertools.chain.from_iterable(map(self.dataset.walk, roots))
        # Several folders may overlap.
        for path in dict.fromkeys(found) if len(roots) > 1 else found:
            parts = _PARTS.fullmatch(path)
            if parts:
                stem, field = parts.groups()
                longer = (*fields.get(stem, ()), field)
                # Stems with the same fields share the tuple.
                fields[stem] = known.setdefault(longer, longer)
        if not fields:
            raise NotFoundError(f"read samples of {self.dataset!r}: no file has the name STEM.FIELD")
        in_order = {names: tuple(sorted(names)) for names in known}
        first = []
        for stem, names in fields.items():
            if len({name.lower() for name in names}) < len(names):
                raise InvalidError(f"the files {stem}.{{{','.join(names)}}} have equal fields: rename a file")
            fields[stem] = in_order[names]
            first.append(f"{stem}.{in_order[names][0]}")
        # Memory for the few stems whose fields differ.
        self._common = Counter(fields.values()).most_common(1)[0][0]
        self._others = {stem: names for stem, names in fields.items() if names != self._common}
        return first

    def _targets(self, numbers: list[int]) -> Iterable[Any]:
        groups = []
        for number in numbers:
            parts = _PARTS.fullmatch(self.dataset.path(number))
            assert parts, "the order has the first files of stems alone"
            groups.append((parts[1], self._others.get(parts[1], self._common)))
        members = _Members(self.dataset, groups)
        return [(members, index) for index in range(len(numbers))]

    def _sample(self, number: int, view: View | Exception, target: Any) -> Any:
        self.order.given += 1
        if isinstance(view, Exception):
            raise view
        members, index = target
        stem, names = members.groups[index]
        try:
            views = members.views(index)
            sample: dict[str, Any] = {"__key__": stem}
            sample.update((name.lower(), one) for name, one in zip(names, (view, *views)))
            return sample if self.transform is None else self.transform(sample)
        except Exception as error:
            raise name_sample(error, self.dataset, number)

    def __repr__(self) -> str:
        return super().__repr__().replace("Epochs(", "Samples(", 1)


class _Members:
    """The files of some samples, without their first ones: read in one call, when the first sample needs them."""

    def __init__(self, dataset: Dataset, groups: list[tuple[str, tuple[str, ...]]]) -> None:
        self.dataset, self.groups = dataset, groups
        self._starts = [0]
        for _, names in groups:
            self._starts.append(self._starts[-1] + len(names) - 1)
        self._views: Batch | None = None
        self._is_read = False

    def _paths(self, groups: list[tuple[str, tuple[str, ...]]]) -> list[str]:
        return [f"{stem}.{name}" for stem, names in groups for name in names[1:]]

    def views(self, index: int) -> list[View]:
        if not self._is_read:
            self._is_read = True
            try:
                self._views = self.dataset.view_many(self._paths(self.groups))
            except DieselError:
                # The error is that of a sample, and the samples around it are whole.
                self._views = None
        if self._views is None:
            return list(self.dataset.view_many(self._paths([self.groups[index]])))
        return self._views[self._starts[index] : self._starts[index + 1]]
