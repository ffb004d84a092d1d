"""Wrong options are named at once; errors, reports and types tell what they can."""

import errno
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import libdiesel
from libdiesel import errors
from libdiesel.torch import ChunkSampler, DistributedChunkSampler, Epochs, Folder

PACKAGE = Path(libdiesel.__file__).parent


def epochs(**options):
    """All files."""
    return Epochs("dl://files", task="torch", **{"batch_size": 2, **options})


def folder(**options):
    """All files, in seven classes."""
    return Folder("dl://files", task="torch", **{"extensions": None, **options})


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda: epochs(seed=-1), ValueError, "seed=-1"),
        (lambda: epochs(seed="a"), TypeError, "seed='a'"),
        (lambda: epochs(seed=2**64), ValueError, "seed="),
        (lambda: epochs(batch_size=1.5), TypeError, "batch_size=1.5"),
        (lambda: epochs(batch_size=0), ValueError, "batch_size=0"),
        (lambda: epochs(epoch=-1), ValueError, "epoch=-1"),
        (lambda: epochs(group=0), ValueError, "group=0"),
        (lambda: epochs(loader="png"), TypeError, "loader='png'"),
        (lambda: epochs(transform=3), TypeError, "transform=3"),
        (lambda: epochs(resume={}), ValueError, "resume token"),
        (lambda: epochs(rank=0, world=1.5), TypeError, "world=1.5"),
        (lambda: epochs(on_bad="skip"), ValueError, "on_bad='skip'"),
        (lambda: epochs().set_epoch(1.5), TypeError, "epoch=1.5"),
        (lambda: epochs().set_epoch(-1), ValueError, "epoch=-1"),
        (lambda: epochs().state_dict(batches=-1), ValueError, "batches=-1"),
        (lambda: folder(extensions=".png"), TypeError, "extensions='.png'"),
        (lambda: folder(extensions=[1]), TypeError, "extensions="),
        (lambda: folder(loader=3), TypeError, "loader=3"),
        (lambda: folder(target_transform="x"), TypeError, "target_transform='x'"),
        (lambda: ChunkSampler(folder(), seed=-1), ValueError, "seed=-1"),
        (lambda: DistributedChunkSampler(folder(), 0, 2, group=1.5), TypeError, "group=1.5"),
        (lambda: DistributedChunkSampler(folder(), "0", 2), TypeError, "rank='0'"),
        (lambda: libdiesel.connect("dl://files", chunk_size=-1), ValueError, "chunk_size=-1"),
        (lambda: libdiesel.connect("dl://files", chunk_size=0.5), TypeError, "chunk_size=0.5"),
    ],
)
def test_a_wrong_option_is_named_at_once(scene, call, kind, text):
    with pytest.raises(kind, match=text):
        call()


def test_errors_have_the_number_and_the_file(scene):
    with scene.connect("files", task=False) as dataset:
        for call in (lambda: dataset.get("nowhere"), lambda: dataset.stat("nowhere")):
            with pytest.raises(FileNotFoundError) as raised:
                call()
            for error in (raised.value, pickle.loads(pickle.dumps(raised.value))):
                assert error.errno == errno.ENOENT and error.filename == "dl://files/nowhere"
                assert str(error).startswith(("read dl://files/nowhere", "stat dl://files/nowhere"))
    with scene.connect("written", create=True) as dataset:
        with pytest.raises(OSError) as raised:
            dataset.put_file("a", "/nowhere")
        assert isinstance(raised.value, errors.LocalError) and raised.value.errno == errno.ENOENT


def test_the_version_and_each_object_show_themselves(scene):
    assert libdiesel.__version__.count(".") == 2
    assert "epoch 3, rank 0 of 1" in repr(epochs(epoch=3))
    assert repr(ChunkSampler(folder())) == "ChunkSampler('dl://files'): epoch 0, rank 0 of 1"
    shown = repr(DistributedChunkSampler(folder(), 1, 2))
    assert shown == "DistributedChunkSampler('dl://files'): epoch 0, rank 1 of 2"


def test_a_program_that_ends_without_a_flush_is_warned(scene, tmp_path):
    program = """
import libdiesel
ds = libdiesel.connect("dl://ended", create=True)
ds.put("a", b"x")
assert ds.unflushed == 1
"""
    for rest, is_warned in (("", True), ("del ds", True), ("ds.flush()", False), ("ds.close()", False)):
        command = [sys.executable, "-B", "-c", program + rest]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert ("flush" in done.stderr) == is_warned, (rest, done.stderr)


@pytest.mark.parametrize(
    ("variable", "value"), [("DIESEL_AGENT", "/nowhere/dlcmd"), ("DIESEL_AGENT_MEMORY", "much")]
)
def test_what_keeps_an_agent_from_starting_is_named(scene, caplog, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with scene.connect("files", task=f"no-{variable}") as dataset:
        assert dataset.get(0)
    [note] = [record.message for record in caplog.records if "node's cache" in record.message]
    assert variable in note and value in note, note


def test_a_server_that_is_away_is_reported_long_before_the_call_fails(scene, caplog):
    with scene.connect("files", task=False, timeout=60.0) as dataset:
        scene.pause()
        begun = time.monotonic()
        timer = threading.Timer(25, scene.go_on)
        timer.start()
        try:
            reader = threading.Thread(target=lambda: dataset.get(0))
            reader.start()
            while not any("trying for" in record.message for record in caplog.records):
                assert time.monotonic() - begun < 20
                libdiesel._native.deliver_notes()
                time.sleep(0.05)
        finally:
            timer.cancel()
            scene.go_on()
        reader.join(30)
        assert not reader.is_alive()


def test_what_documents_show_satisfies_a_type_checker(tmp_path):
    (tmp_path / "use.py").write_text(
        """
import io
import numpy
import libdiesel

dataset = libdiesel.connect("dl://pets")
view = dataset.view(0)
numpy.asarray(view)
numpy.frombuffer(memoryview(view), numpy.uint8)
io.BytesIO(view)
bytes(view)
dataset.get_many([0], into=bytearray(3))
for other in dataset.view_many([0]):
    numpy.frombuffer(memoryview(other), "f4")
print(libdiesel.__version__, dataset.unflushed)
"""
    )
    command = [sys.executable, "-B", "-m", "mypy", "--cache-dir", os.devnull, "--strict", "use.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout
