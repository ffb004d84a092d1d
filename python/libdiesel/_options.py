"""Checks of options: a wrong option is an error at once, with its name."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from libdiesel.errors import InvalidError

#: Limits of the library's numbers.
U32, U64 = 2**32 - 1, 2**64 - 1


def whole(name: str, value: Any, least: int = 0, most: int = U32) -> int:
    """A whole number within limits.

    >>> whole("seed", 3)
    3
    >>> whole("batch_size", 1.5)
    Traceback (most recent call last):
    TypeError: batch_size=1.5 has to be a whole number
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r} has to be a whole number") from None
    if not least <= number <= most:
        raise InvalidError(f"{name}={number} has to be from {least} to {most}")
    return number


def names(name: str, value: Iterable[str] | None) -> list[str] | None:
    """A list of texts; None stays.

    >>> names("extensions", ".png")
    Traceback (most recent call last):
    TypeError: extensions='.png' has to be a list of texts: ['.png']
    """
    if value is None:
        return None
    if isinstance(value, str):
        raise TypeError(f"{name}={value!r} has to be a list of texts: [{value!r}]")
    found = list(value) if isinstance(value, Iterable) else [value]
    for text in found:
        if not isinstance(text, str):
            raise TypeError(f"{name}={value!r} has to be a list of texts, and {text!r} is none")
    return found


def functions(**options: Any) -> None:
    """Raises an error for an option that is neither None nor a function."""
    for name, value in options.items():
        if value is not None and not callable(value):
            raise TypeError(f"{name}={value!r} has to be a function")
