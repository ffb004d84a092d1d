"""One measurement in a separate interpreter: reads a job from the standard input, and writes the
result to the file that the job names.

Libraries print, start workers and keep memory; a separate process keeps the sides independent.
"""

import importlib
import json
import os
import sys
import time

import data
import loops
import ours
import peers


def files_of(job):
    """Files that a job stores or reads."""
    kind, what = job["source"]
    return data.Tree(what) if kind == "tree" else data.Bytes(*what)


def side(job):
    """Peer of a job."""
    return peers.PEERS[job["side"]](job["folder"])


# Imports of a writer precede its measured time.
IMPORTS = {
    "ours": "libdiesel",
    "lmdb": "lmdb",
    "mds": "streaming",
    "litdata": "litdata",
    "webdataset": "webdataset",
    "lance": "lance",
    "numpy": "numpy",
}


def write(job):
    """Stores all files; returns the seconds and the files a second."""
    importlib.import_module(IMPORTS[job["side"]])
    files = files_of(job)
    began = time.perf_counter()
    if job["side"] == "ours":
        ours.write(job, files)
    else:
        side(job).write(files)
    elapsed = time.perf_counter() - began
    return {"seconds": elapsed, "rate": len(files) / elapsed}


def read(job):
    """Reads whole passes; returns samples a second, and checks the number of files and bytes.

    A library that distributes samples over ranks may omit or repeat a few.
    """
    files = job["files"] = files_of(job)
    if job["side"] == "ours":
        one_pass = ours.READERS[job["how"]](job)
    else:
        one_pass = getattr(side(job), job["how"])(**job.get("options", {}))
    rate, count, total = loops.rate(one_pass, job["seconds"])
    for got, stored in ((count, len(files)), (total, files.bytes())):
        if abs(got - stored) > 0.02 * stored:
            raise RuntimeError(f"{job['side']} gave {got} of {stored}")
    return {"rate": rate, "count": count}


def decode(job):
    """Decodes pictures in two workers; returns the seconds to the first batch, and pictures a second.

    Both times begin after the imports and before the open of the dataset.
    """
    import torch
    from torch.utils.data import DataLoader
    from torchvision import datasets, transforms

    if job["side"] == "ours":
        importlib.import_module("libdiesel.torch")
    torch.manual_seed(0)
    transform = transforms.Compose([
        transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
    ])
    began = time.perf_counter()
    if job["side"] == "ours":
        dataset, sampler = ours.folder(job, transform)
        how = {"sampler": sampler}
    else:
        dataset = datasets.ImageFolder(os.path.join(job["source"][1], "train"), transform)
        how = {"shuffle": True}
    loader = DataLoader(dataset, batch_size=loops.BATCH, num_workers=2, **how)
    count, first, ended = 0, None, None
    for pictures, _ in loader:
        ended = time.perf_counter()
        if first is None:
            first = ended
        count += len(pictures)
    return {"first": first - began, "rate": count / (ended - began), "count": count}


def token(job):
    """Returns the token from which `resume` continues."""
    return {"token": ours.token(job)}


def resume(job):
    """Opens the dataset, resumes from a token, and reads one batch; returns the seconds after the imports."""
    importlib.import_module("libdiesel.torch")
    began = time.perf_counter()
    batch = ours.resumed(job)
    return {"first": time.perf_counter() - began, "count": len(batch)}


def find(job):
    """Finds all files by fsspec; returns the seconds."""
    importlib.import_module("libdiesel.fsspec")
    elapsed, count = ours.find(job)
    return {"first": elapsed, "count": count}


#: Files of a local folder that is put.
PUT = 20_000


def put(job):
    """Puts a local folder; returns the files a second."""
    importlib.import_module("libdiesel.fsspec")
    job["tree"] = os.path.join(job["folder"], "local")
    if not os.path.exists(job["tree"]):
        for name, content in data.Bytes(PUT):
            path = os.path.join(job["tree"], name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
    return {"rate": PUT / ours.put_tree(job, job["how"])}


def main():
    """Runs one job."""
    job = json.load(sys.stdin)
    done = {"write": write, "read": read, "decode": decode, "token": token, "resume": resume,
            "find": find, "put": put}
    result = done[job["do"]](job)
    with open(job["result"], "w", encoding="utf-8") as file:
        json.dump(result, file)


if __name__ == "__main__":
    main()
