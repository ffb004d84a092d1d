"""Measured arms and their bars."""

import dataclasses

SMALL, LARGE, PICTURES, RESTART = 200_000, 6_000, 6_000, 1_280_000


@dataclasses.dataclass(frozen=True)
class Arm:
    """One side of a comparison: owner, work of its process, and options."""

    label: str
    side: str
    do: str = "read"
    how: str = ""
    options: tuple = ()
    # A task without an agent, as after a restart of the machine.
    fresh: bool = False

    @property
    def ours(self):
        """True for the package, false for a peer."""
        return self.side == "ours"


@dataclasses.dataclass(frozen=True)
class Bar:
    """Required result of one of our arms relative to the best peer.

    `times`: at least `limit` times their rate. `later`: at most `limit` seconds more until the
    first batch. `seconds`: at most `limit` seconds until the first batch, without a peer. `goal` is
    printed beside a bar: a result that is wanted with an arena in huge pages, and not required.
    """

    arm: str
    peers: tuple
    limit: float
    kind: str = "times"
    goal: float | None = None


@dataclasses.dataclass(frozen=True)
class Part:
    """Arms that run in turns over the same files."""

    name: str
    what: str
    source: str
    files: int
    arms: tuple
    bars: tuple

    @property
    def written(self):
        """True for arms that read files written earlier."""
        return self.name != "write"


BUFFERS = (("buffers", True),)
# Files of 128 KiB: such a batch stays in the processor's cache.
SMALL_BATCHES = (("batch", 16),)


def one():
    """Single reads."""
    arms = (
        Arm("libdiesel get", "ours", how="get"),
        Arm("libdiesel get by path", "ours", how="get by path"),
        Arm("LMDB get", "lmdb", how="get"),
        Arm("LMDB get, buffers", "lmdb", how="get", options=BUFFERS),
    )
    bars = (Bar("libdiesel get", ("LMDB get",), 1.8),)
    return Part("get", "get of one file after the other", "bytes", SMALL, arms, bars)


def many():
    """Batches."""
    arms = (
        Arm("libdiesel get_many", "ours", how="get_many"),
        Arm("libdiesel get_many into", "ours", how="get_many into"),
        Arm("libdiesel view_many", "ours", how="view_many"),
        Arm("LMDB get", "lmdb", how="get"),
        Arm("LMDB get, buffers", "lmdb", how="get", options=BUFFERS),
        Arm("LMDB getmulti", "lmdb", how="get_multi"),
        Arm("LMDB getmulti, buffers", "lmdb", how="get_multi", options=BUFFERS),
        Arm("Lance take", "lance", how="get_many"),
    )
    bars = (
        Bar("libdiesel get_many", ("LMDB get",), 2.5),
        Bar("libdiesel get_many into", ("LMDB get",), 2.3, goal=3),
        Bar("libdiesel view_many", ("LMDB get",), 6),
        Bar("libdiesel view_many", ("LMDB get, buffers",), 4),
    )
    return Part("get-many", "batches of 256", "bytes", SMALL, arms, bars)


def filesystem():
    """The package under fsspec."""
    arms = (
        Arm("fsspec cat", "ours", how="fsspec cat"),
        Arm("libdiesel get_many by path", "ours", how="get_many by path"),
        Arm("fsspec find", "ours", do="find"),
        Arm("fsspec put -r of 20,000", "ours", do="put", how="fsspec"),
        Arm("dlcmd put of 20,000", "ours", do="put", how="dlcmd"),
    )
    bars = (
        Bar("fsspec cat", ("libdiesel get_many by path",), 0.8),
        Bar("fsspec find", (), 1, kind="seconds"),
        Bar("fsspec put -r of 20,000", ("dlcmd put of 20,000",), 0.5),
    )
    return Part("fsspec", "batches of 256, listings and puts by fsspec", "bytes", SMALL, arms, bars)


def large():
    """Batches of large files."""
    arms = (
        Arm("libdiesel get_many", "ours", how="get_many", options=SMALL_BATCHES),
        Arm("libdiesel get_many into", "ours", how="get_many into", options=SMALL_BATCHES),
        Arm("NumPy copy", "numpy", how="copy", options=SMALL_BATCHES),
    )
    bars = (Bar("libdiesel get_many into", ("NumPy copy",), 0.8),)
    what = "batches of 16 files of 128 KiB, beside copies between arrays at offset 64 of a page"
    return Part("get-large", what, "large", LARGE, arms, bars)


def datasets():
    """Epochs of raw bytes in the training process."""
    return (
        Arm("libdiesel Epochs", "ours", how="epochs"),
        Arm("libdiesel Epochs, views", "ours", how="epochs of views"),
        Arm("LMDB", "lmdb", how="epoch"),
        Arm("LMDB, buffers", "lmdb", how="epoch", options=BUFFERS),
        Arm("LitData", "litdata", how="epoch"),
        Arm("MDS", "mds", how="epoch"),
        Arm("WebDataset", "webdataset", how="epoch"),
        Arm("Lance", "lance", how="epoch"),
    )


def epochs():
    """Epochs of small files."""
    bars = (
        Bar("libdiesel Epochs", ("LitData",), 1),
        Bar("libdiesel Epochs", ("MDS", "WebDataset"), 10),
    )
    what = "epochs of raw bytes, no workers"
    return Part("epochs", what, "bytes", SMALL, datasets(), bars)


def pictures():
    """Epochs of picture-sized files."""
    bars = (
        Bar("libdiesel Epochs, views", ("LMDB, buffers",), 1),
        Bar("libdiesel Epochs", ("MDS", "WebDataset"), 5),
    )
    what = "epochs of raw bytes of pictures, no workers"
    return Part("pictures", what, "jpeg", PICTURES, datasets(), bars)


def loader(kind):
    """Pictures decoded by the workers of a DataLoader."""
    arms = (
        Arm("libdiesel Folder", "ours", do="decode"),
        Arm("ImageFolder", "imagefolder", do="decode"),
    )
    bars = (
        Bar("libdiesel Folder", ("ImageFolder",), 1),
        Bar("libdiesel Folder", ("ImageFolder",), 0.3, kind="later"),
    )
    what = f"a DataLoader with 2 workers, batches of 256, decoding {kind.upper()}"
    return Part(f"loader-{kind}", what, kind, PICTURES, arms, bars)


def write():
    """Writing."""
    peers = ("LMDB", "LitData", "MDS", "WebDataset", "Lance")
    arms = [Arm("libdiesel put", "ours", do="write")]
    arms += [Arm(peer, peer.lower(), do="write") for peer in peers]
    bars = (Bar("libdiesel put", peers, 2),)
    return Part("write", "writing from Python", "bytes", SMALL, tuple(arms), bars)


def restart():
    """Resumption within an epoch."""
    arms = (
        Arm("libdiesel, the agent runs", "ours", do="resume"),
        Arm("libdiesel, no agent", "ours", do="resume", fresh=True),
    )
    bars = tuple(Bar(arm.label, (), 1, kind="seconds") for arm in arms)
    what = "from a restart at 90 % of an epoch to the first batch"
    return Part("restart", what, "tiny", RESTART, arms, bars)


PARTS = {
    part.name: part
    for part in (
        one(), many(), filesystem(), large(), epochs(), pictures(), loader("jpeg"), loader("png"), write(), restart(),
    )
}


def verdict(bar, results):
    """Evaluates a bar. `results` has for each arm one result for each run.

    Returns our median, the median of the best peer, the median of the limited value over the runs,
    and True for a met bar.
    """
    key = "rate" if bar.kind == "times" else "first"
    best = max if bar.kind == "times" else min
    ours = [run[key] for run in results[bar.arm]]
    theirs = [
        best(runs) for runs in zip(*([run[key] for run in results[peer]] for peer in bar.peers))
    ]
    if bar.kind == "times":
        stands = median([mine / other for mine, other in zip(ours, theirs)])
        met = stands >= bar.limit
    elif bar.kind == "later":
        stands = median([mine - other for mine, other in zip(ours, theirs)])
        met = stands <= bar.limit
    else:
        stands = median(ours)
        met = stands <= bar.limit
    return median(ours), median(theirs) if theirs else None, stands, met


def median(values):
    """Median; the mean of the two middle values for an even number."""
    ordered = sorted(values)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    return (ordered[half - 1] + ordered[half]) / 2
