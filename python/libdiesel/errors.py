"""The exceptions of the package: a tree whose root is :class:`DieselError`.

Each class stands for a remedy. Classes also derive from Python's exceptions of the same meaning, so
``except FileNotFoundError`` works.
"""

import errno
from typing import Any


class DieselError(Exception):
    """The root of all exceptions of the package."""


class _SystemError(DieselError, OSError):
    """Errors with the number of a system call's error, and the file or address, where known."""

    errno: int | None = None
    filename: Any = None

    @property
    def strerror(self) -> str | None:  # type: ignore[override]
        """The text of the error."""
        return str(self)


class NotFoundError(_SystemError, FileNotFoundError):
    """The file or dataset does not exist."""

    errno = errno.ENOENT


class InvalidError(DieselError, ValueError):
    """The request is invalid; change it."""


class ClosedError(InvalidError):
    """The handle is closed; connect again."""


class ConflictError(DieselError):
    """Another object is in the way; check first."""


class NeedsRecoveryError(DieselError):
    """The metadata of the servers is incomplete; run ``dlcmd recover``."""


class FullError(_SystemError):
    """A store is full, or a quota is reached; writing fails, reading works."""

    errno = errno.ENOSPC


class CorruptError(DieselError):
    """Stored bytes differ from the written bytes."""


class PermissionDenied(_SystemError, PermissionError):
    """Another user, key or role is needed."""

    errno = errno.EACCES


class UnavailableError(DieselError):
    """The servers can't answer the request now; try again later."""


class Timeout(_SystemError, TimeoutError):
    """No server answered in time; try again later."""

    errno = errno.ETIMEDOUT


class CancelledError(DieselError):
    """A stopping server cancelled the request; try again."""


class InternalError(DieselError):
    """A fault of the software; report it."""


class UnreachableError(_SystemError, ConnectionError):
    """No server can be reached; check the addresses and the network."""


class LocalError(_SystemError):
    """A file of this machine, or its agent, can't be used."""
