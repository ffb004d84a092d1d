"""A server started by a Python program."""

import os
import signal
import subprocess
import sys
import time

import pytest

import libdiesel
from libdiesel import errors

from scene import PROGRAMS


@pytest.fixture(autouse=True)
def program(monkeypatch):
    """The server of the same build."""
    monkeypatch.setenv("DIESEL_DLSERVER", str(PROGRAMS / "dlserver"))


def test_a_server_keeps_its_data_over_blocks(tmp_path):
    with libdiesel.serve(tmp_path / "data") as address:
        with libdiesel.connect("dl://kept", server=address, create=True) as dataset:
            dataset.put("file", b"bytes")
    server = libdiesel.serve(tmp_path / "data")
    assert server.running
    with libdiesel.connect("dl://kept", server=server.address, task=False) as dataset:
        assert dataset.get("file") == b"bytes"
    with pytest.raises(errors.LocalError, match="dlserver did not start: .*"):
        libdiesel.serve(tmp_path / "data")
    with pytest.raises(errors.InvalidError, match="--no-such"):
        libdiesel.serve(tmp_path / "other", options=["--no-such"])
    with pytest.raises(errors.Timeout, match="0.0 s"):
        libdiesel.serve(tmp_path / "late", timeout=0.0)
    server.stop()
    server.stop()
    assert not server.running


def test_a_forked_process_does_not_keep_a_server(tmp_path):
    server = libdiesel.serve(tmp_path / "data")
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    began = time.monotonic()
    server.stop()
    took = time.monotonic() - began
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert took < 20


PROGRAM = """
import libdiesel, sys, time
server = libdiesel.serve(sys.argv[1])
print(server._process.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_server_ends_with_its_program(tmp_path, number):
    program = subprocess.Popen([sys.executable, "-P", "-c", PROGRAM, tmp_path / "data"], stdout=subprocess.PIPE, text=True)
    server = int(program.stdout.readline())
    os.kill(server, 0)
    program.send_signal(number)
    program.wait()
    program.stdout.close()
    for _ in range(200):
        try:
            os.kill(server, 0)
        except ProcessLookupError:
            return
        with open(f"/proc/{server}/stat") as stat:
            if stat.read().rpartition(") ")[2].startswith("Z"):
                return
        time.sleep(0.05)
    pytest.fail("the server goes on")
