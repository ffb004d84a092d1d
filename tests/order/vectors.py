"""Prints vectors of docs/ORDER.md, one JSON object a line: a case, and what order.py makes of it.

`python3 tests/order/vectors.py > tests/order/vectors.jsonl`: a difference means another order version.
"""

import json

import order

# As JSON, in characters: what is longer is kept as a checksum.
LONGEST = 2000


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def selection(below, files, longest):
    """Ranges of some files, in order and apart."""
    ranges, first = [], below(longest)
    while first < files:
        end = min(files, first + 1 + below(longest))
        ranges.append([first, end])
        first = end + 1 + below(longest)
    return ranges


def drawn(below, chunks, most, position, group, ranks):
    """A case of at most so many chunks and files in each, that was read up to a position at most."""
    counts = [below(most + 1) for _ in range(1 + below(chunks))]
    nodes = 1 + below(4)
    stages = []
    for _ in range(below(3)):
        skips = [[first, first + 1 + below(most)] for first in [below(2 * position)] if below(2)]
        stages.append([1 + below(4), below(position), skips])
    return {
        "counts": counts,
        "selected": None if below(3) else selection(below, sum(counts), most),
        "seed": below(10) if below(2) else order.MASK - below(10),
        "epoch": below(5),
        "group": 1 + below(group),
        "world": nodes * (1 + below(ranks)),
        "nodes": nodes,
        "tail": ["drop", "pad"][below(2)],
        "workers": [1 + below(3), 1 + below(8)] if below(2) else [1, 1],
        "stages": stages,
    }


def cases():
    plain = {"selected": None, "seed": 1, "epoch": 0, "group": 1, "world": 4, "nodes": 1, "tail": "pad"}
    plain |= {"counts": [4, 3, 3], "workers": [1, 1], "stages": []}
    yield plain
    # The end of a padded epoch, for as many ranks, for more of them, and by other nodes.
    yield plain | {"stages": [[1, 8, []]]}
    yield plain | {"stages": [[1, 8, []]], "world": 6}
    yield plain | {"stages": [[1, 8, []]], "world": 6, "nodes": 3}
    # A skip that lies behind is not read again.
    yield plain | {"stages": [[1, 8, [[2, 4]]]], "world": 6}
    # A stretch that was read, and stretches that have nothing.
    yield plain | {"counts": [2, 1], "world": 2, "nodes": 2}
    yield plain | {"counts": [2, 1], "world": 2, "nodes": 2, "stages": [[2, 1, []]]}
    yield plain | {"counts": [2, 1], "world": 10, "nodes": 5}
    yield plain | {"counts": [2, 1], "world": 10, "nodes": 5, "tail": "drop"}
    yield plain | {"counts": [], "world": 2}
    below = order.Generator(1, 0, 2, 0).below
    small = large = 0
    while small < 40:
        case = drawn(below, chunks=30, most=12, position=9, group=8, ranks=4)
        if any(files for rank in order.ranks(case) for files in rank):
            small += 1
            yield case
    while large < 24:
        case = drawn(below, chunks=300, most=80, position=900, group=60, ranks=8)
        if sum(len(files) for rank in order.ranks(case) for files in rank) >= 2000:
            large += 1
            yield case


for case in cases():
    ranks = order.ranks(case)
    text = json.dumps(ranks, separators=(",", ":"))
    kept = {"ranks": ranks} if len(text) <= LONGEST else {"crc32c": f"{crc32c(text.encode()):08x}"}
    print(json.dumps({"case": case} | kept, separators=(",", ":")))
