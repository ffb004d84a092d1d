"""A real dlserver and its client programs for the tests."""

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import libdiesel

PROGRAMS = Path(os.environ.get("DIESEL_PROGRAMS", ""))

#: Bytes of memory of the agents that tests start.
MEMORY = "96MiB"


class Scene:
    """A server with its data, and the runtime folder of its agents."""

    def __init__(self, folder: Path, memory: str = MEMORY):
        self.folder = folder
        self.memory = memory
        # Socket paths have a length limit.
        self.runtime = Path(tempfile.mkdtemp(prefix="dl-"))
        self.runtime.chmod(0o700)
        self.tasks: set[str] = set()
        self.address = "127.0.0.1:0"
        self.server = None
        self.start()

    def start(self):
        """Starts the server at its earlier address."""
        program = PROGRAMS / "dlserver"
        assert program.is_file(), f"{program} is missing: run `make test-python`"
        self.server = subprocess.Popen(
            [program, "--listen", self.address, "--http", "none", "--data", self.folder / "data",
             "--log", "error"],
            stdout=subprocess.PIPE,
            text=True,
        )
        told = self.server.stdout.readline()
        assert told.startswith("listening on "), told
        self.address = told.removeprefix("listening on ").strip()

    def stop(self):
        """Kills the server."""
        self.server.kill()
        self.server.wait()
        self.server.stdout.close()

    def pause(self):
        """Pauses the server; a paused server answers nothing."""
        os.kill(self.server.pid, signal.SIGSTOP)
        wait_for(lambda: state_of(self.server.pid) == "T")

    def go_on(self):
        """Continues a paused server."""
        os.kill(self.server.pid, signal.SIGCONT)

    def environment(self) -> dict[str, str]:
        """Environment of other programs."""
        return {
            "DIESEL_SERVER": self.address,
            "DIESEL_RUNTIME_DIR": str(self.runtime),
            "DIESEL_AGENT_MEMORY": self.memory,
        }

    def connect(self, name: str, **options) -> libdiesel.Dataset:
        """Opens a handle of a dataset."""
        options = {"server": self.address, "timeout": 20.0, **options}
        if options.get("task"):
            self.tasks.add(options["task"])
        return libdiesel.connect(f"dl://{name}", **options)

    def put(self, name: str, files: dict, chunk_size: int | None = None):
        """Writes files into a dataset."""
        with self.connect(name, create=True, chunk_size=chunk_size) as dataset:
            for path, data in files.items():
                dataset.put(path, data)
            dataset.flush()

    def damage(self, data: bytes):
        """Changes a byte of a file in the store."""
        for object in (self.folder / "data/chunks").rglob("*"):
            if object.is_file() and (at := object.read_bytes().find(data)) >= 0:
                with open(object, "r+b") as file:
                    file.seek(at + len(data) // 2)
                    file.write(b"!")
                return
        raise AssertionError("no object holds the file")

    def dlcmd(self, *arguments) -> str:
        """Output of dlcmd."""
        command = [PROGRAMS / "dlcmd", *arguments]
        environment = os.environ | self.environment()
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def agents(self) -> list[int]:
        """Agent processes of this scene."""
        found = []
        for lock in self.runtime.glob("*.lock"):
            with contextlib.suppress(ValueError, FileNotFoundError):
                pid = int(lock.read_text())
                if state_of(pid) not in ("", "Z"):
                    found.append(pid)
        return found

    def end(self):
        """Ends all started processes."""
        for pid in self.agents():
            os.kill(pid, signal.SIGKILL)
        self.stop()
        for file in self.runtime.iterdir():
            file.unlink()
        self.runtime.rmdir()


def state_of(pid: int) -> str:
    """State of a process as one letter; empty after its end."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except FileNotFoundError:
        return ""


def wait_for(holds, seconds: float = 20):
    """Waits for a condition."""
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it does not come true"
        time.sleep(0.01)


def bytes_of(path: str, length: int) -> bytes:
    """Content of a file, computed from its path."""
    word = f"{path}#".encode(errors="surrogateescape")
    return (word * (length // len(word) + 1))[:length]


def private_bytes() -> int:
    """Private memory of this process."""
    with open("/proc/self/smaps_rollup") as file:
        words = [line.split() for line in file if line.startswith("Private")]
    return sum(int(size) for _, size, _ in words) << 10
