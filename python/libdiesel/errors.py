"""The exceptions of the package: a tree whose root is :class:`DieselError`.

Each class says what the caller can do about it. Where Python has an exception of the same meaning, a class
is one of these too, so that ``except FileNotFoundError`` works.
"""


class DieselError(Exception):
    """The root of all exceptions of the package."""


class NotFoundError(DieselError, FileNotFoundError):
    """There is no such file or dataset."""


class InvalidError(DieselError, ValueError):
    """The request makes no sense; change it."""


class ClosedError(InvalidError):
    """The handle was closed; connect again."""


class ConflictError(DieselError):
    """Something else stands in its place; look first."""


class NeedsRecoveryError(DieselError):
    """The metadata of the servers is not whole; run ``dlcmd recover``."""


class FullError(DieselError, OSError):
    """A store is full, or a quota is reached; stop writing, reading goes on."""


class CorruptError(DieselError):
    """Stored bytes are not the bytes that were written."""


class PermissionDenied(DieselError, PermissionError):
    """Another user, key or role is needed."""


class UnavailableError(DieselError):
    """The servers can't do it now; try again later."""


class Timeout(DieselError, TimeoutError):
    """No server answered in time; try again later."""


class CancelledError(DieselError):
    """A server that stops gave the request up; try again."""


class InternalError(DieselError):
    """A fault of the software; report it."""


class UnreachableError(DieselError, ConnectionError):
    """No server can be reached; check the addresses and the network."""


class LocalError(DieselError, OSError):
    """A file of this machine, or its agent, can't be used."""
