"""A server of this machine, for trying things out and for programs of one machine."""

from __future__ import annotations

import collections
import os
import select
import subprocess
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Union

from libdiesel import errors
from libdiesel._programs import program

Path = Union[str, "os.PathLike[str]"]

#: Seconds for the end of a server, whose last requests go on for half a minute at most.
PATIENCE = 60.0

#: Lines of the log that an error shows.
LINES = 20


class Server:
    """A running ``dlserver``, of :func:`serve`. As a context manager it gives its address, and ends with the
    block."""

    def __init__(self, arguments: list[str], timeout: float):
        self._process = subprocess.Popen(
            [program("dlserver", "DIESEL_DLSERVER"), *arguments, "--until-eof"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._log: collections.deque[str] = collections.deque(maxlen=LINES)
        assert self._process.stdout is not None and self._process.stderr is not None
        self._reading = threading.Thread(target=self._read, args=(self._process.stderr,), daemon=True)
        self._reading.start()
        is_there, _, _ = select.select([self._process.stdout], [], [], timeout)
        if not is_there:
            self._process.kill()
            self.stop()
            raise errors.Timeout(f"dlserver did not start in {timeout} s: {self.log.strip()}")
        told = self._process.stdout.readline()
        if not told.startswith("listening on "):
            code = self._process.wait(PATIENCE)
            self._reading.join(PATIENCE)
            self._close()
            why = "".join(self._log).strip() or f"exit code {code}"
            raise (errors.InvalidError if code == 2 else errors.LocalError)(f"dlserver did not start: {why}")
        #: ``HOST:PORT``, for ``connect(..., server=)``.
        self.address = told.removeprefix("listening on ").strip()

    def _read(self, log: IO[str]) -> None:
        for line in log:
            self._log.append(line)

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    @property
    def log(self) -> str:
        """The last lines of its log."""
        return "".join(self._log)

    @property
    def running(self) -> bool:
        """Whether the server runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """Ends the server, and waits for its end. A second call has no effect."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        if self.running:
            # Forked processes may hold its input open.
            self._process.terminate()
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reading.join(PATIENCE)
        self._close()

    def __enter__(self) -> str:
        return self.address

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<libdiesel.Server at {self.address}>"


def serve(
    folder: Path = "diesel-data", *, listen: str = "127.0.0.1:0", options: Sequence[str] = (), timeout: float = 300.0
) -> Server:
    """Starts the server of the package with all its data in a folder: ``with libdiesel.serve("folder") as
    address:``. It ends with the block, or with this program. The data stay, for the next server.

    :param listen: ``IP:PORT``; port 0 takes a free one
    :param options: further options of ``dlserver``, as ``["--grace", "5s"]`` (docs/CONFIGURATION.md)
    :param timeout: seconds until the server listens; a lost index is rebuilt first
    :raises InvalidError: for a wrong option
    :raises LocalError: if the server can't start, as while another one uses the folder
    """
    return Server(["--data", os.fspath(folder), "--listen", listen, "--http", "none", "--log", "warn", *options], timeout)
