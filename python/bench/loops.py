"""Reading loops, the same for every side. Each loop uses the length of every sample."""

import random
import time

BATCH = 256


def shuffled(count, seed=0):
    """Numbers below `count` in a random order."""
    order = list(range(count))
    random.Random(seed).shuffle(order)
    return order


def batches(order, size=BATCH):
    """Order in pieces of one batch."""
    return [order[at : at + size] for at in range(0, len(order), size)]


def one_by_one(get, keys):
    """Gets single samples in sequence; returns their number and bytes."""
    total = 0
    for key in keys:
        total += len(get(key))
    return len(keys), total


def many(get_many, groups):
    """Gets batches in sequence."""
    count = total = 0
    for group in groups:
        for sample in get_many(group):
            total += len(sample)
        count += len(group)
    return count, total


def places(get_into, groups):
    """As `many`, with batches as slices of one buffer."""
    count = total = 0
    for group in groups:
        for place in get_into(group):
            total += place.stop - place.start
        count += len(group)
    return count, total


def epoch(samples):
    """Reads the samples of one epoch."""
    count = total = 0
    for sample in samples:
        total += len(sample)
        count += 1
    return count, total


def rate(one_pass, seconds):
    """Samples a second of whole passes, after one that warms up, for at least `seconds`.

    Gives the rate, and the count and the bytes of the last pass.
    """
    one_pass()
    taken = 0
    began = time.perf_counter()
    while True:
        count, total = one_pass()
        taken += count
        elapsed = time.perf_counter() - began
        if elapsed >= seconds:
            return taken / elapsed, count, total
