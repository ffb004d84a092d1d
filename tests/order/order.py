"""The order of an epoch, written from docs/ORDER.md alone.

Reads cases from stdin, one JSON object a line, and prints what each rank reads, one list of lists a line.
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


def cut(values, parts):
    n = len(values)
    return [values[m * n // parts : (m + 1) * n // parts] for m in range(parts)]


def epoch_sequence(case, nodes):
    seed, epoch = case["seed"], case["epoch"]
    selected = None if case["selected"] is None else set(case["selected"])
    chunks, first = [], 0
    for count in case["counts"]:
        files = [f for f in range(first, first + count) if selected is None or f in selected]
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


def ranks(case):
    world, nodes = case["world"], case["nodes"]
    stages = [tuple(stage) for stage in case["stages"]]
    if not stages or stages[-1][0] != nodes:
        stages.append((nodes, 0, []))
    sequence = epoch_sequence(case, stages[0][0])
    for stage_nodes, position, skips in stages:
        stretches = [
            [
                file
                for index, file in enumerate(stretch)
                if index >= position and not any(a <= index < b for a, b in skips)
            ]
            for stretch in cut(sequence, stage_nodes)
        ]
        sequence = [file for stretch in stretches for file in stretch]
    each = world // nodes
    lengths = [len(stretch) for stretch in stretches]
    if case["tail"] == "drop":
        length = min(lengths) // each
    elif min(lengths) == 0 and max(lengths) > 0:
        return None
    else:
        length = -(-max(lengths) // each)
    return [
        [stretches[r // each][(r % each + k * each) % lengths[r // each]] for k in range(length)]
        for r in range(world)
    ]


for line in sys.stdin:
    print(json.dumps(ranks(json.loads(line)), separators=(",", ":")))
