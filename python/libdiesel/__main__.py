"""The program ``python -m libdiesel``: copies between a dataset and any filesystem of fsspec."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from libdiesel.copy import Report, copy
from libdiesel.errors import InvalidError, Timeout, UnreachableError

#: Exit codes of dlcmd.
FAILED, USAGE, NOT_FOUND, UNREACHABLE, INTERRUPTED = 1, 2, 3, 5, 130

ABOUT = """Copies all files of SOURCE into the folder DESTINATION; one of the two is a dataset. Files of the same
size and time are skipped, so the same command goes on after an error. Exit codes: 0 done, 1 failed, 2 wrong
arguments, 3 no such source, 5 no server answers."""

#: Seconds between two reports: on a terminal, and in a file.
ON_TERMINAL, IN_FILE = 0.5, 10.0


def main(arguments: list[str] | None = None) -> int:
    """Runs the program, and returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m libdiesel", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("copy", help="copy all files of a folder", description=ABOUT)
    command.add_argument("source", help="dl://DATASET[/DIR], or an address of fsspec: s3://, gs://, hf://, a path")
    command.add_argument("destination", help="the same, to write")
    for side in ("source", "destination"):
        command.add_argument(
            f"--{side}-option", metavar="NAME=VALUE", action="append", default=[], type=_option,
            help=f"of the filesystem of the {side}: server=host:7420, anon=true",
        )
    command.add_argument("--jobs", type=int, default=16, help="files in transfer at a time (default: 16)")
    command.add_argument("--size-only", action="store_true", help="skip files of equal size, whatever their times")
    command.add_argument("--quiet", action="store_true", help="report errors only")
    given = parser.parse_args(arguments)
    watch = _Watch(given.quiet)
    try:
        report = copy(
            given.source,
            given.destination,
            source_options=dict(given.source_option),
            destination_options=dict(given.destination_option),
            jobs=given.jobs,
            is_size_enough=given.size_only,
            progress=watch.show,
        )
    except KeyboardInterrupt:
        watch.say("interrupted; the same command goes on", is_last=True)
        return INTERRUPTED
    except Exception as error:
        watch.say(f"error: {error}", is_last=True)
        return exit_code(error)
    if not given.quiet:
        watch.say(_text(report), is_last=True)
    return 0


def exit_code(error: Exception) -> int:
    """Returns the exit code of dlcmd for an error."""
    if isinstance(error, FileNotFoundError):
        return NOT_FOUND
    if isinstance(error, (UnreachableError, Timeout)):
        return UNREACHABLE
    return USAGE if isinstance(error, (InvalidError, TypeError)) else FAILED


def _option(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} has to be NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _text(report: Report) -> str:
    size = f"{report.bytes / 1e6:.1f} MB"
    left = f", {report.left_out} entries that are no files left out" if report.left_out else ""
    return f"copied {report.copied} of {report.files} files, {size}; {report.skipped} unchanged{left}"


class _Watch:
    """Reports on stderr: a line that is rewritten on a terminal, else lines."""

    def __init__(self, is_quiet: bool) -> None:
        self._is_quiet, self._is_terminal = is_quiet, sys.stderr.isatty()
        self._next = time.monotonic() + (ON_TERMINAL if self._is_terminal else IN_FILE)

    def show(self, report: Report) -> None:
        if not self._is_quiet and time.monotonic() >= self._next:
            self._next = time.monotonic() + (ON_TERMINAL if self._is_terminal else IN_FILE)
            self.say(_text(report))

    def say(self, text: str, is_last: bool = False) -> None:
        start = "\r\x1b[K" if self._is_terminal else ""
        end = "" if self._is_terminal and not is_last else "\n"
        print(f"{start}{text}", end=end, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
