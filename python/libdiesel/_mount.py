"""Mounts of datasets, for programs and libraries that only know files (paper, Table 3: DL_mount)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Union

from libdiesel import errors
from libdiesel._programs import program

Path = Union[str, "os.PathLike[str]"]

# The exit codes of dlcmd.
_ERRORS = {
    2: errors.InvalidError,
    3: errors.NotFoundError,
    4: errors.ConflictError,
    5: errors.UnreachableError,
}


class Mount:
    """A mounted dataset; as a context manager, the mount ends with the block."""

    def __init__(self, path: str, arguments: list[str], environment: dict[str, str]):
        self.path = path
        self._program = program("dlcmd", "DIESEL_AGENT")
        self._environment = environment
        self._run(["mount", *arguments])

    def _run(self, arguments: list[str]) -> str:
        ended = subprocess.run(
            [self._program, *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        if ended.returncode != 0:
            why = ended.stderr.strip().removeprefix("dlcmd: ") or f"dlcmd: exit code {ended.returncode}"
            raise _ERRORS.get(ended.returncode, errors.LocalError)(why)
        return ended.stdout

    def status(self) -> dict[str, Any]:
        """The state of the mount: its processes, and the numbers of reads (docs/JSON.md, ``mount``)."""
        status: dict[str, Any] = json.loads(self._run(["--json", "mounts", self.path]))
        return status

    def refresh(self) -> None:
        """Shows the newest version of the dataset from now on. Open files stay at their version."""
        self._run(["mount", "--refresh", self.path])

    def unmount(self, *, lazy: bool = False) -> None:
        """Ends the mount.

        :param lazy: take the mount away at once; it ends with its last user
        :raises LocalError: if the mount is in use; the text names the processes
        """
        self._run(["umount", *(["--lazy"] if lazy else []), self.path])

    def __enter__(self) -> Mount:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # An error of the block comes first; open files must not keep the mount then.
        self.unmount(lazy=kind is not None)

    def __repr__(self) -> str:
        return f"<libdiesel.Mount at {self.path}>"


def mount(
    dataset: str,
    dir: Path,
    *,
    server: str | Sequence[str] | None = None,
    user: str | None = None,
    key: str | None = None,
    key_file: Path | None = None,
    ca: Path | None = None,
    client_cert: Path | None = None,
    client_key: Path | None = None,
    plain_text_key: bool = False,
    task: str | None = None,
    memory: str | int | None = None,
    options: Sequence[str] = (),
) -> Mount:
    """Mounts a dataset, or a folder of a dataset, at an empty folder: ``with libdiesel.mount("dl://animals/cats",
    "/mnt"):``. The mount serves all programs, and outlives the process unless it is ended.

    :param task: the training job whose cache serves the mount; by default a job of the mount alone
    :param memory: bytes of a new agent, or a text as ``"64GiB"``
    :param options: options of the mount, as ``["allow_other"]`` (docs/MOUNT.md)
    :raises NotFoundError: if the dataset or folder does not exist
    :raises ConflictError: if the folder ``dir`` is not empty
    :raises UnreachableError: if no server answers

    The other parameters are those of :func:`connect`.
    """
    path = os.path.abspath(os.fspath(dir))
    servers = [server] if isinstance(server, str) else list(server or [])
    flags = {
        "--server": ",".join(servers),
        "--user": user,
        "--key-file": key_file,
        "--ca": ca,
        "--client-cert": client_cert,
        "--client-key": client_key,
        "--task": task,
        "--memory": memory,
        "-o": ",".join(options),
    }
    arguments = [dataset, path]
    for flag, value in flags.items():
        if value:
            arguments += [flag, str(value) if isinstance(value, int) else os.fspath(value)]
    if plain_text_key:
        arguments.append("--plain-text-key")
    environment = dict(os.environ)
    if task is None:
        environment.pop("DIESEL_TASK", None)
    if key is not None:
        # Never as an argument, which all users see.
        environment["DIESEL_KEY"] = key
    return Mount(path, arguments, environment)
