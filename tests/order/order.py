"""The order of an epoch, written from docs/ORDER.md alone.

Reads cases from stdin, one JSON object a line, and prints for each what each worker of each rank reads, and
the resume token when each rank has read as many files as the case says.
"""

import json
import sys

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z):
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


def rotl(x, k):
    return (x << k | x >> (64 - k)) & MASK


class Generator:
    def __init__(self, seed, epoch, stream, index):
        h = 0
        for word in (seed, epoch, stream, index):
            h = mix((h ^ word) + GOLDEN & MASK)
        self.s = []
        for _ in range(4):
            h = h + GOLDEN & MASK
            self.s.append(mix(h))

    def next(self):
        s = self.s
        r = rotl(s[0] + s[3] & MASK, 23) + s[0] & MASK
        t = s[1] << 17 & MASK
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotl(s[3], 45)
        return r

    def below(self, n):
        while True:
            m = self.next() * n
            if m & MASK >= ((1 << 64) - n) % n:
                return m >> 64

    def shuffle(self, values):
        for i in range(len(values) - 1, 0, -1):
            j = self.below(i + 1)
            values[i], values[j] = values[j], values[i]


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def cut(values, parts):
    n = len(values)
    return [values[m * n // parts : (m + 1) * n // parts] for m in range(parts)]


def selection(case):
    if case["selected"] is None:
        return set(range(sum(case["counts"])))
    return {f for a, b in case["selected"] for f in range(a, b)}


def epoch_sequence(case, nodes):
    seed, epoch = case["seed"], case["epoch"]
    selected = selection(case)
    chunks, first = [], 0
    for count in case["counts"]:
        files = [f for f in range(first, first + count) if f in selected]
        if files:
            chunks.append(files)
        first += count
    Generator(seed, epoch, 0, 0).shuffle(chunks)
    places = [(piece, file) for piece, files in enumerate(chunks) for file in files]
    sequence, at = [], 0
    for stretch in cut(places, nodes):
        while stretch:
            first_piece = stretch[0][0]
            # Later groups of a stretch begin at a chunk's beginning, a whole number of groups on.
            end = 0
            while end < len(stretch) and stretch[end][0] < first_piece + case["group"]:
                end += 1
            files = [file for _, file in stretch[:end]]
            Generator(seed, epoch, 1, at).shuffle(files)
            sequence += files
            at += end
            stretch = stretch[end:]
    return sequence


def stages_of(case):
    """What was read, and last the stage that the case's nodes go on in."""
    stages = [tuple(stage) for stage in case["stages"]]
    if not stages or stages[-1][0] != case["nodes"]:
        stages.append((case["nodes"], 0, []))
    return stages


def stays(index, skips):
    return not any(a <= index < b for a, b in skips)


def merged(skips):
    """The same indexes in order, what touches or overlaps as one."""
    apart = []
    for a, b in sorted(skips):
        if apart and a <= apart[-1][1]:
            start, end = apart.pop()
            a, b = start, max(b, end)
        apart.append((a, b))
    return apart


def parts(values, batch):
    return [values[at : at + batch] for at in range(0, len(values), batch)]


def ranks(case):
    """For each rank the files of each of its workers."""
    world, nodes = case["world"], case["nodes"]
    stages = stages_of(case)
    sequence = epoch_sequence(case, stages[0][0])
    for stage_nodes, position, skips in stages:
        kept = [
            [file for index, file in enumerate(stretch) if stays(index, skips)]
            for stretch in cut(sequence, stage_nodes)
        ]
        before = position - sum(max(0, min(b, position) - a) for a, b in merged(skips))
        sequence = [file for stretch in kept for file in stretch[before:]]
    each = world // nodes
    left = [max(0, len(stretch) - before) for stretch in kept]
    length = min(left) // each if case["tail"] == "drop" else -(-max(left) // each)
    every = [file for stretch in kept for file in stretch]
    read = []
    for r in range(world):
        own = kept[r // each]
        if own:
            files = [own[(before + r % each + k * each) % len(own)] for k in range(length)]
        else:
            files = [every[(before * nodes + r + k * world) % len(every)] for k in range(length)]
        workers, batch = case["workers"]
        batches = parts(files, batch)
        read.append([sum(batches[worker::workers], []) for worker in range(workers)])
    return read


def label(case):
    """The selection, as a token names it."""
    files, selected = sum(case["counts"]), selection(case)
    if len(selected) == files:
        return "all"
    bits = bytearray(-(-files // 8))
    for file in selected:
        bits[file // 8] |= 1 << file % 8
    return f"{len(selected)}-{crc32c(bits):08x}"


def moved(position, skips, files):
    """Where a position comes to when so many files of a stretch are read."""
    while files > 0 or not stays(position, skips):
        files -= stays(position, skips)
        position += 1
    return min(position, MASK)


def token(case):
    """When each rank has read as many files as the case says."""
    stages = stages_of(case)
    nodes, position, skips = stages[-1]
    stages[-1] = nodes, moved(position, skips, case["read"] * (case["world"] // nodes)), skips
    at = ",".join(
        f"{nodes}@{position}" + "".join(f"!{a}-{b}" for a, b in merged(skips))
        for nodes, position, skips in stages
    )
    return (
        f"order=1;dataset=ID;version=VERSION;selection={label(case)};seed={case['seed']};"
        f"epoch={case['epoch']};group={case['group']};at={at}"
    )


if __name__ == "__main__":
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps({"ranks": ranks(case), "token": token(case)}, separators=(",", ":")))
