"""Fixtures of the tests."""

import io
import os
import signal

import numpy
import pytest
from PIL import Image
from scene import Scene, bytes_of

#: Classes of the dataset `images`.
CLASSES = ("ant", "bee", "cat")

#: Files of the dataset `files`.
FILES = 600

# A shell lets its background jobs ignore Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)


def length_of(number: int) -> int:
    """Bytes of a file."""
    return 100 + number * 3701 % 40_000


@pytest.fixture(scope="session")
def scene(tmp_path_factory):
    """A server with the datasets `files` (many chunks) and `images` (classes of PNG files)."""
    scene = Scene(tmp_path_factory.mktemp("scene"))
    before = dict(os.environ)
    os.environ.update(scene.environment())
    paths = [f"{number % 7:03}/{number:05}.bin" for number in range(FILES)]
    contents = {path: bytes_of(path, length_of(at)) for at, path in enumerate(paths)}
    scene.put("files", contents, chunk_size=1 << 20)
    yield scene
    os.environ.clear()
    os.environ.update(before)
    scene.end()


@pytest.fixture(scope="session")
def contents():
    """Contents of `files`."""
    paths = [f"{number % 7:03}/{number:05}.bin" for number in range(FILES)]
    return {path: bytes_of(path, length_of(at)) for at, path in enumerate(paths)}


@pytest.fixture
def cached(scene):
    """A handle of `files` that reads through an agent."""
    with scene.connect("files", task="tests") as dataset:
        yield dataset


@pytest.fixture
def plain(scene):
    """A handle of `files` that reads from the servers."""
    with scene.connect("files", task=False) as dataset:
        yield dataset


def png(number: int) -> bytes:
    """An image whose pixels contain its number, long enough for several chunks."""
    pixels = numpy.random.default_rng(number).integers(0, 255, (90, 90, 3), numpy.uint8)
    pixels[0, 0] = (number % 256, number // 256, 77)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


@pytest.fixture(scope="session")
def tree(scene, tmp_path_factory):
    """Images as files and as the dataset `images`, in 100 times the chunk size."""
    root = tmp_path_factory.mktemp("images")
    files = {}
    for number in range(150):
        name = f"{CLASSES[number % 3]}/{number % 2}/{number:04}.png"
        files[f"train/{name}"] = png(number)
    files["train/ant/notes.txt"] = b"no image"
    files["train/outside.png"] = png(999)
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    scene.put("images", files, chunk_size=1 << 20)
    return root / "train"
