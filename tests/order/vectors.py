"""Prints vectors of docs/ORDER.md, one JSON object a line: a case, and what order.py makes of it.

`python3 tests/order/vectors.py > tests/order/vectors.jsonl`: a line that changes means another order version.
"""

import json

import order

# As JSON, in characters: what is longer is kept as a checksum.
LONGEST = 2000


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


def tokens(plain):
    """Selections, and places that a token comes to."""
    # The last byte of the set has one file, eight of them, and four.
    for counts in [63, 2], [64, 64], [5, 0, 7]:
        last = sum(counts) - 1
        for selected in None, [[0, last + 1]], [], [[last, last + 1]], [[0, 3], [2, 5], [last - 1, last]]:
            yield plain | {"counts": counts, "selected": selected, "read": 1}
    # A position that comes to a skip goes behind it, also where nothing is read; skips passed, and ahead.
    shared = plain | {"counts": [9, 8, 8, 7, 8], "selected": [[1, 30], [33, 40]], "nodes": 2}
    for read in range(5):
        yield shared | {"stages": [[2, 2, [[4, 6], [10, 13]]]], "read": read}
    yield shared | {"stages": [[2, 4, [[4, 6], [10, 13]]]], "read": 0}
    yield shared | {"stages": [[2, 11, [[4, 6], [10, 13]]]], "read": 0}
    # Skips out of order, that touch and overlap.
    yield shared | {"stages": [[2, 3, [[10, 12], [5, 8], [8, 9], [11, 13], [5, 6]]]], "read": 3}
    # Earlier stages of other nodes and of the same; partition global.
    before = [[3, 1, [[2, 4]]], [1, 5, [[9, 11], [0, 2]]]]
    yield shared | {"stages": before, "read": 2}
    yield shared | {"stages": before + [[2, 1, [[3, 4]]]], "read": 2}
    yield shared | {"stages": before + [[2, 1, []], [2, 1, [[2, 3]]]], "read": 1}
    for stages in [], before, before[1:]:
        yield plain | {"counts": [9, 8, 8, 7, 8], "stages": stages, "read": 3}
    # As far as a position goes.
    yield shared | {"stages": [[2, order.MASK - 3, []]], "read": 2}


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
    yield from tokens(plain)


for case in cases():
    ranks = order.ranks(case)
    # Half of the files, unless the case says how many.
    case = case | {"read": case.get("read", sum(len(files) for files in ranks[0]) // 2)}
    text = json.dumps(ranks, separators=(",", ":"))
    kept = {"ranks": ranks} if len(text) <= LONGEST else {"crc32c": f"{order.crc32c(text.encode()):08x}"}
    print(json.dumps({"case": case} | kept | {"token": order.token(case)}, separators=(",", ":")))
