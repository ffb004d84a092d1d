"""Our side: a separate dlserver, the cache of the node, and the loops over the package.

Only this module uses the interface of the package.
"""

import json
import os
import signal
import subprocess
import time

import numpy

import loops

NAME = "bench"
TASK = "bench"


class Store:
    """A server with one dataset, and the agent of one task. All of it lies in one folder and ends
    with this object."""

    def __init__(self, programs, folder, memory="4GiB"):
        self.folder = folder
        self.dlcmd = os.path.abspath(os.path.join(programs, "dlcmd"))
        # A Unix socket path has at most 107 bytes, so the folder gets a short name.
        runtime = os.path.join(folder, "run")
        os.makedirs(runtime, mode=0o700)
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("DIESEL_")}
        self.environment |= {
            "XDG_CACHE_HOME": os.path.join(folder, "cache"),
            "DIESEL_AGENT": self.dlcmd,
            "DIESEL_AGENT_MEMORY": memory,
            "DIESEL_RUNTIME_DIR": runtime,
        }
        self.tasks = set()
        self.server = subprocess.Popen(
            [os.path.join(programs, "dlserver"), "--listen", "127.0.0.1:0", "--http", "none",
             "--data", os.path.join(folder, "data"), "--log", "error"],
            stdout=subprocess.PIPE, env=self.environment, text=True,
        )
        told = self.server.stdout.readline()
        if not told.startswith("listening on "):
            self.close()
            raise RuntimeError(f"dlserver said {told!r}")
        self.address = told.removeprefix("listening on ").strip()

    def close(self):
        """Ends the agents and the server."""
        for task in sorted(self.tasks):
            try:
                self.run("agent", "stop", "--task", task)
            except RuntimeError:
                pass  # It has ended by itself.
        self.server.send_signal(signal.SIGTERM)
        try:
            self.server.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()
        self.server.stdout.close()

    def run(self, *words):
        """Runs dlcmd."""
        command = [self.dlcmd, "--server", self.address, "--quiet", *map(str, words)]
        done = subprocess.run(command, env=self.environment, capture_output=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr.decode()}")
        return done.stdout

    def put_tree(self, tree):
        """Puts a folder with dlcmd."""
        self.run("put", tree, f"dl://{NAME}")

    def warm(self):
        """Starts the agent and waits until the whole dataset is in memory."""
        self.run("agent", "start", f"dl://{NAME}", "--task", TASK,
                 "--memory", self.environment["DIESEL_AGENT_MEMORY"])
        self.tasks.add(TASK)
        self.run("agent", "prefetch", f"dl://{NAME}", "--task", TASK, "--wait")
        status = json.loads(self.run("agent", "status", "--task", TASK, "--json"))
        if status["chunks_present"] < status["chunks"]:
            raise RuntimeError(f"the agent's memory holds {status['chunks_present']} chunks "
                               f"of {status['chunks']}")
        pages = status["pages"]
        print(f"\n{pages['huge_bytes'] >> 20} of {pages['mapped_bytes'] >> 20} MiB of the arena in "
              f"huge pages, shmem_enabled is {pages['setting']}")

    def job(self, **more):
        """Connection parameters of a reading process."""
        return {"server": self.address, "task": TASK, **more}


def connect(job, create=False):
    """Opens the dataset through the agent of the task; a writer has no task."""
    import libdiesel

    task = False if create else job["task"]
    return libdiesel.connect(f"dl://{NAME}", server=job["server"], task=task, create=create)


def write(job, files):
    """Puts all files one by one; returns with all files on disk."""
    ds = connect(job, create=True)
    for name, data in files:
        ds.put(name, data)
    ds.flush()
    ds.close()


def get_by_number(job):
    """Single gets by number."""
    ds = connect(job)
    order = loops.shuffled(len(ds))
    return lambda: loops.one_by_one(ds.get, order)


def get_by_path(job):
    """Single gets by path."""
    ds = connect(job)
    files = job["files"]
    paths = [files.name(number) for number in loops.shuffled(len(files))]
    return lambda: loops.one_by_one(ds.get, paths)


def get_many(job):
    """Batches of bytes."""
    ds = connect(job)
    groups = loops.batches(loops.shuffled(len(ds)), batch(job))
    return lambda: loops.many(ds.get_many, groups)


def get_many_by_path(job):
    """Batches of bytes by path."""
    ds = connect(job)
    files = job["files"]
    paths = [files.name(number) for number in loops.shuffled(len(ds))]
    groups = loops.batches(paths, batch(job))
    return lambda: loops.many(ds.get_many, groups)


def filesystem(job):
    """The filesystem of fsspec."""
    import fsspec

    return fsspec.filesystem("dl", server=job["server"], task=job["task"])


def cat(job):
    """Batches by fsspec."""
    fs, files = filesystem(job), job["files"]
    paths = [f"{NAME}/{files.name(number)}" for number in loops.shuffled(len(files))]
    groups = loops.batches(paths, batch(job))
    return lambda: loops.many(lambda group: fs.cat(group).values(), groups)


def find(job):
    """Number of the paths that fsspec finds."""
    fs = filesystem(job)
    fs.exists(NAME)
    began = time.perf_counter()
    found = fs.find(NAME)
    return time.perf_counter() - began, len(found)


def put_tree(job, how):
    """Puts a local folder into a new dataset, by fsspec or by dlcmd; returns the seconds."""
    tree, name = job["tree"], f"put-{time.time_ns()}"
    if how == "dlcmd":
        command = [os.environ["DIESEL_AGENT"], "--server", job["server"], "--quiet", "put", tree, f"dl://{name}"]
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - began
    fs = filesystem(job)
    began = time.perf_counter()
    fs.put(f"{tree}/", name, recursive=True)
    return time.perf_counter() - began


def batch(job):
    """Files of a batch."""
    return job["options"].get("batch", loops.BATCH)


def get_into(job):
    """Batches into one reused array."""
    ds = connect(job)
    groups = loops.batches(loops.shuffled(len(ds)), batch(job))
    buffer = numpy.zeros(batch(job) * job["files"].size, numpy.uint8)
    return lambda: loops.places(lambda group: ds.get_many(group, into=buffer), groups)


def view_many(job):
    """Batches of views."""
    ds = connect(job)
    groups = loops.batches(loops.shuffled(len(ds)))
    return lambda: loops.many(ds.view_many, groups)


def epochs(job, loader=bytes):
    """Epochs in the chunk-wise shuffled order, as bytes; every pass is another epoch."""
    from libdiesel.torch import Epochs

    samples = Epochs(connect(job), batch_size=loops.BATCH, seed=0, loader=loader)

    def one_pass():
        samples.set_epoch(samples.epoch + 1)
        return loops.epoch(samples)

    return one_pass


def epochs_of_views(job):
    """Epochs without a copy of the bytes."""
    return epochs(job, loader=lambda view: view)


def folder(job, transform):
    """The torch dataset that replaces ImageFolder, and the sampler of its indices."""
    from libdiesel.torch import ChunkSampler, Folder

    found = Folder(
        f"dl://{NAME}/train", server=job["server"], task=job["task"], transform=transform
    )
    return found, ChunkSampler(found, seed=0)


def token(job):
    """Token of an epoch after nine tenths of its batches."""
    from libdiesel.torch import Epochs

    ds = connect(job)
    return Epochs(ds, batch_size=loops.BATCH, seed=0).token(len(ds) * 9 // 10 // loops.BATCH)


def resumed(job):
    """First batch after a restart from a token."""
    from libdiesel.torch import Epochs

    samples = iter(Epochs(connect(job), batch_size=loops.BATCH, seed=0, resume=job["token"]))
    return [next(samples) for _ in range(loops.BATCH)]


READERS = {
    "get": get_by_number,
    "get by path": get_by_path,
    "get_many": get_many,
    "get_many by path": get_many_by_path,
    "get_many into": get_into,
    "fsspec cat": cat,
    "view_many": view_many,
    "epochs": epochs,
    "epochs of views": epochs_of_views,
}
