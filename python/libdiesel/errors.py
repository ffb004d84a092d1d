"""The exceptions of the package: a tree whose root is :class:`DieselError`.

Each class stands for a remedy. Classes also derive from Python's exceptions of the same meaning, so
``except FileNotFoundError`` works.
"""


class DieselError(Exception):
    """The root of all exceptions of the package."""


class NotFoundError(DieselError, FileNotFoundError):
    """The file or dataset does not exist."""


class InvalidError(DieselError, ValueError):
    """The request is invalid; change it."""


class ClosedError(InvalidError):
    """The handle is closed; connect again."""


class ConflictError(DieselError):
    """Another object is in the way; check first."""


class NeedsRecoveryError(DieselError):
    """The metadata of the servers is incomplete; run ``dlcmd recover``."""


class FullError(DieselError, OSError):
    """A store is full, or a quota is reached; writing fails, reading works."""


class CorruptError(DieselError):
    """Stored bytes differ from the written bytes."""


class PermissionDenied(DieselError, PermissionError):
    """Another user, key or role is needed."""


class UnavailableError(DieselError):
    """The servers can't answer the request now; try again later."""


class Timeout(DieselError, TimeoutError):
    """No server answered in time; try again later."""


class CancelledError(DieselError):
    """A stopping server cancelled the request; try again."""


class InternalError(DieselError):
    """A fault of the software; report it."""


class UnreachableError(DieselError, ConnectionError):
    """No server can be reached; check the addresses and the network."""


class LocalError(DieselError, OSError):
    """A file of this machine, or its agent, can't be used."""
