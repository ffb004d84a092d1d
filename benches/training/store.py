"""A dlserver of our own, and what dlcmd does with it."""

import json
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import numpy as np


class Store:
    """Datasets on a server that ends with this object. Everything lies in one folder."""

    def __init__(self, programs, folder):
        self.folder = folder
        self.dlcmd = os.path.join(programs, "dlcmd")
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("DIESEL_")}
        self.environment["XDG_CACHE_HOME"] = os.path.join(folder, "cache")
        self.server = subprocess.Popen(
            [os.path.join(programs, "dlserver"), "--listen", "127.0.0.1:0", "--http", "none",
             "--data", os.path.join(folder, "data"), "--log", "error"],
            stdout=subprocess.PIPE, env=self.environment, text=True,
        )
        told = self.server.stdout.readline()
        if not told.startswith("listening on "):
            raise RuntimeError(f"dlserver said {told!r}")
        self.address = told.removeprefix("listening on ").strip()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.send_signal(signal.SIGTERM)
        self.server.wait(timeout=60)

    def run(self, *words, stdin=b"", cwd=None):
        command = [self.dlcmd, "--server", self.address, "--quiet", *map(str, words)]
        done = subprocess.run(
            command, input=stdin, cwd=cwd, env=self.environment, capture_output=True, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr.decode()}")
        return done.stdout

    def put(self, name, samples, labels, chunks):
        """One file for each sample, in a folder for its class; one put, so one chunk, for each list of
        numbers. Gives the path of each sample."""
        source = os.path.join(self.folder, "source", name)
        paths = [f"class{label:03}/{number:06}" for number, label in enumerate(labels)]
        for folder in {os.path.dirname(path) for path in paths}:
            os.makedirs(os.path.join(source, folder), exist_ok=True)
        for path, sample in zip(paths, samples):
            with open(os.path.join(source, path), "wb") as file:
                file.write(sample.tobytes())

        def put(chunk):
            listed = b"".join(paths[number].encode() + b"\0" for number in chunk)
            self.run("put", "-0", "-", f"dl://{name}", "--threads", 1, stdin=listed, cwd=source)

        put(chunks[0])
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(put, chunks[1:]))
        return paths

    def get(self, name, paths):
        """The samples as they are stored."""
        target = os.path.join(self.folder, "got", name)
        self.run("get", f"dl://{name}", target)
        rows = [np.fromfile(os.path.join(target, path), np.float32) for path in paths]
        return np.stack(rows)

    def listed(self, name):
        return self.run("ls", "-R", f"dl://{name}").decode().split()

    def order(self, name, seed, epoch, group):
        words = ["--seed", seed, "--epoch", epoch]
        words += [] if group is None else ["--group-size", group]
        return self.run("shuffle", f"dl://{name}", *words).decode().split()

    def report(self, name, group, window):
        words = ["--window", window]
        words += [] if group is None else ["--group-size", group]
        return json.loads(self.run("shuffle", f"dl://{name}", "--report", "--json", *words))
