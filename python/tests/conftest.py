"""What the tests share."""

import os

import pytest
from scene import Scene, bytes_of

#: Files of the dataset `files`.
FILES = 600


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
    """What `files` holds."""
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
