"""Results of calls."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Purged:
    """What :meth:`Dataset.purge` did."""

    #: Removed objects, and their bytes.
    removed: int
    removed_bytes: int
    #: Chunks whose files were moved into new chunks.
    rewritten: int
    #: Unneeded objects that are left for a later purge, and their bytes.
    waiting: int
    waiting_bytes: int
    #: Bytes to be reclaimed by this purge and later ones; of ``dry_run`` only.
    reclaimable_bytes: int
    #: Jobs whose versions keep objects.
    leased_by: list[str]
    #: Objects that could not be read or removed, with the reasons.
    problems: list[str]
