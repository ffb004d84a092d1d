"""What the checks of deploy/ share: the image, a server, and the reason for a check that a machine can't run."""

import os
import pathlib
import shutil
import socket
import subprocess
import time
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"


def run(*command, code=0, **more):
    """Runs a program to its end; gives what it wrote."""
    more = {"text": True, "capture_output": True, "timeout": 300, **more}
    ended = subprocess.run([str(word) for word in command], **more)
    assert ended.returncode == code, f"{command}: {ended.stdout}{ended.stderr}"
    return ended.stdout


def podman(*arguments, **more):
    environment = {**os.environ, "CONTAINERS_CONF": str(ROOT / "tests/deploy/containers.conf")}
    return run("podman", *arguments, env=environment, **more)


def program(name):
    return pathlib.Path(os.environ["DIESEL_PROGRAMS"]) / name


def dlcmd(address, *arguments, **more):
    return run(program("dlcmd"), "--server", address, *arguments, **more)


def soon(what, is_so, seconds=60):
    """Waits until something is so."""
    until = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < until, f"not within {seconds} s: {what}"
        time.sleep(0.2)


def answers(url):
    """The answer of an address; None without an answer."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.read().decode()
    except OSError:
        return None


def free_port():
    with socket.socket() as socket_:
        socket_.bind(("127.0.0.1", 0))
        return socket_.getsockname()[1]


def needs(reason):
    """Skips a check, and tells the one who counts."""
    with open(os.environ["DIESEL_SKIPPED"], "a") as skipped:
        skipped.write(f"{os.environ['PYTEST_CURRENT_TEST'].split(' ')[0]}: {reason}\n")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def containers():
    """Skips where no container runs."""
    if os.geteuid() != 0 or shutil.which("podman") is None:
        return lambda: needs("containers need root and podman")
    tried = subprocess.run(
        ["podman", "run", "--rm", "--network", "none", "localhost/diesel", "--version"],
        env={**os.environ, "CONTAINERS_CONF": str(ROOT / "tests/deploy/containers.conf")},
        capture_output=True,
        text=True,
    )
    if tried.returncode == 0:
        return lambda: None
    return lambda: needs(f"no container runs here: {tried.stderr.strip()[-200:]}")
