"""Does it train as well in the order of chunk-wise shuffle (paper, Figure 13)?

Puts samples that are sorted by class into a real dlserver, reads them back, and trains small models in
exactly the order that `dlcmd shuffle` prints: beside a full shuffle and beside no shuffle.
"""

import argparse
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time

# Small matrices are multiplied faster by one thread than by several.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np  # noqa: E402

import data  # noqa: E402
import models  # noqa: E402
import show  # noqa: E402
from store import Store  # noqa: E402


# The rate of learning: to zero along a cosine, as one trains mostly, or the same to the end, which shows
# what the last groups do.
FALLS, STAYS = "rate falls", "rate stays"


def arms(groups):
    """What is compared: the name, the dataset, and the group; 0 is no shuffle, -1 a full one."""
    yield "no shuffle", "sorted", 0
    for group in groups:
        # None is what dlcmd does without --group-size.
        yield "default groups" if group is None else f"groups of {group}", "sorted", group
    yield "full shuffle", "sorted", -1


def slug(dataset, how):
    return dataset.name.replace(", ", "-").replace(" ", "-") + "-" + how


def fill(store, dataset, ways):
    """Puts the samples sorted by class, or the same dealt out to chunks at random."""
    count = len(dataset.train)
    written = {"sorted": np.arange(count), "shuffled": np.random.default_rng(1).permutation(count)}
    found = {}
    for how in ways:
        chunks = [
            written[how][at : at + dataset.per_chunk] for at in range(0, count, dataset.per_chunk)
        ]
        name = slug(dataset, how)
        paths = store.put(name, dataset.train, dataset.labels, chunks)
        stored = store.get(name, paths)
        if not np.array_equal(stored, dataset.train):
            raise RuntimeError(f"{name} is not what was put")
        chunks_found = store.report(name, 1, dataset.batch)["chunks"]
        if chunks_found != len(chunks):
            raise RuntimeError(f"{name} has {chunks_found} chunks instead of {len(chunks)}")
        found[how] = (name, {path: number for number, path in enumerate(paths)}, stored, len(chunks))
    return found


def train(task):
    """Accuracy after each epoch, for each model and schedule, with one seed."""
    (_, how, group), seed = task
    store, dataset, stored, kinds = SHARED
    name, numbers, samples, chunks = stored[how]
    made = {
        kind: models.KINDS[kind[0]](np.random.default_rng(seed), dataset) for kind in kinds
    }
    accuracies = {kind: [] for kind in kinds}
    steps, step = dataset.epochs * -(-len(samples) // dataset.batch), 0
    for epoch in range(dataset.epochs):
        if group == 0:
            paths = store.listed(name)
        else:
            paths = store.order(name, seed, epoch, chunks if group == -1 else group)
        order = np.fromiter((numbers[path] for path in paths), np.int64, len(paths))
        if len(np.unique(order)) != len(samples):
            raise RuntimeError("each sample comes once in an epoch")
        for at in range(0, len(order), dataset.batch):
            batch = order[at : at + dataset.batch]
            falling = 0.5 * (1.0 + np.cos(np.pi * step / steps))
            step += 1
            for (_, schedule), model in made.items():
                rate = dataset.rate * (falling if schedule == FALLS else 1.0)
                model.learn(samples[batch], dataset.labels[batch], rate)
        for kind, model in made.items():
            accuracies[kind].append(model.accuracy(dataset.test, dataset.test_labels))
    return accuracies


def measure(store, dataset, groups, kinds, seeds, with_shuffled):
    global SHARED
    stored = fill(store, dataset, ["sorted", "shuffled"] if with_shuffled else ["sorted"])
    count = stored["sorted"][3]
    chosen = list(arms([group for group in groups if group is None or group < count]))
    if with_shuffled:
        chosen.insert(-1, ("put shuffled, groups of 1", "shuffled", 1))
    # The processes are forks, which have what is shared.
    SHARED = (store, dataset, stored, kinds)
    tasks = [(arm, seed) for arm in chosen for seed in range(seeds)]
    with multiprocessing.get_context("fork").Pool() as pool:
        trained = dict(zip(tasks, pool.imap(train, tasks, chunksize=1)))
    rows = []
    for arm in chosen:
        label, how, group = arm
        reported = None
        if group != 0:
            reported = store.report(stored[how][0], count if group == -1 else group, dataset.batch)
        runs = [trained[arm, seed] for seed in range(seeds)]
        accuracy = {", ".join(kind): [run[kind] for run in runs] for kind in kinds}
        rows.append({"order": label, "group": group, "report": reported, "accuracy": accuracy})
        shown = [f"{kind} {100 * np.mean(runs, 0)[-1]:.1f} %" for kind, runs in accuracy.items()]
        print(f"{dataset.name}, {label}: {'; '.join(shown)}", file=sys.stderr, flush=True)
    return {"dataset": dataset.name, "samples": len(dataset.train), "classes": dataset.classes,
            "chunks": count, "batch": dataset.batch, "epochs": dataset.epochs, "rows": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", required=True, help="folder of dlserver and dlcmd")
    parser.add_argument("--small", action="store_true", help="digits, few seeds and epochs")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", help="folder for the results, two tables and a figure; otherwise the results go to stdout")
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Store(arguments.programs, folder) as store:
        if arguments.small:
            chosen, seeds, groups = [data.digits(epochs=6)], 2, [None]
            kinds = [("MLP", FALLS)]
        else:
            chosen, seeds, groups = data.every(), arguments.seeds, [1, 10, 50, 100, 200, 400]
            kinds = [(kind, FALLS) for kind in models.KINDS]
            kinds += [("MLP", STAYS), ("MLP with batch norm", STAYS)]
        found = [
            measure(store, dataset, groups, kinds, seeds, not arguments.small) for dataset in chosen
        ]
        # Before the folder is removed, which takes longer than a person waits.
        machine = f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, " \
                  f"numpy {np.__version__}"
        seconds = round(time.monotonic() - began)
        result = {"machine": machine, "seeds": seeds, "seconds": seconds, "datasets": found}
        if arguments.out:
            show.write(result, arguments.out)
        else:
            json.dump(result, sys.stdout)


if __name__ == "__main__":
    main()
