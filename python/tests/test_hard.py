"""Robustness: crashes, hangs, leaks and wrong bytes never happen."""

import gc
import os
import random
import re
import subprocess
import sys
import threading
import time

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scene import private_bytes
from torch.utils.data import DataLoader

import libdiesel
from libdiesel import errors
from libdiesel.torch import ChunkSampler, Epochs, Folder, resume

BATCH = 8

#: Long loops have a large size too.
MANY = int(os.environ.get("DIESEL_FILES", "100000"))

RAISED = (libdiesel.DieselError, TypeError, ValueError, IndexError, OverflowError, BufferError)

THINGS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.sampled_from(["003/00003.bin", "003", "a/../b", "\udcff", "x" * 5000, "order=1;at=1@2"]),
    st.lists(st.integers(-5, 700), max_size=5),
    st.just(bytearray(10)),
    st.just(torch.zeros(3)),
)

CALLS = [
    "get",
    "get_many",
    "view",
    "view_many",
    "stat",
    "ls",
    "walk",
    "path",
    "put",
    "put_file",
    "delete",
    "shuffle",
    "classes",
    "prefetch",
    "load_meta",
    "__getitem__",
    "__contains__",
]


@settings(
    max_examples=int(os.environ.get("DIESEL_MISUSES", "300")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(
    name=st.sampled_from(CALLS),
    arguments=st.lists(THINGS, max_size=3),
    named=st.dictionaries(
        st.sampled_from(["into", "seed", "epoch", "group", "rank", "world", "worker", "resume"]),
        THINGS,
        max_size=2,
    ),
)
def test_misuse_is_an_exception(misused, name, arguments, named):
    try:
        made = getattr(misused, name)(*arguments, **named)
    except RAISED:
        return
    repr(made)
    for method in ("read", "take", "token", "locate", "indexes", "classes_of", "__getitem__"):
        for argument in arguments:
            try:
                getattr(made, method, repr)(argument)
            except RAISED:
                pass


@pytest.fixture(scope="module")
def misused(scene):
    """Opens a separate handle of a dataset."""
    scene.put("misused", {f"003/{number:05}.bin": b"x" * number for number in range(50)})
    with scene.connect("misused", task="misused", timeout=5.0) as dataset:
        yield dataset


def test_threads_that_close_a_handle_under_each_other_are_told(scene, contents):
    wrong = []

    def read(dataset):
        dice = random.Random(1)
        try:
            while True:
                numbers = [dice.randrange(600) for _ in range(5)]
                batch = dataset.view_many(numbers)
                for number, view in zip(numbers, batch):
                    if bytes(view) != contents[dataset.path(number)]:
                        wrong.append(number)
        except errors.ClosedError:
            pass
        except Exception as error:
            wrong.append(error)

    for turn in range(10):
        dataset = scene.connect("files", task="tests" if turn % 2 else False)
        threads = [threading.Thread(target=read, args=(dataset,)) for _ in range(3)]
        threads += [threading.Thread(target=dataset.close) for _ in range(2)]
        for thread in threads:
            thread.start()
            time.sleep(0.02)
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
    assert not wrong


@pytest.mark.parametrize("task", ["tests", False])
def test_an_interpreter_ends_with_views_and_waits_alive(scene, task, tmp_path):
    program = f"""
import libdiesel, threading
ds = libdiesel.connect("dl://files", task={task!r})
views = list(ds.view_many(range(100)))
memory = [memoryview(view) for view in views]
epoch = ds.shuffle()
epoch.read(10)
threading.Thread(target=lambda: [ds.get(n % 600) for n in range(10**7)], daemon=True).start()
libdiesel.kept = (ds, views, memory, epoch)
"""
    for _ in range(3):
        command = [sys.executable, "-B", "-c", program]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=30)
        assert (done.returncode, done.stderr) == (0, "")


class Weighed(torch.utils.data.IterableDataset):
    """Private memory of a worker after a part of an epoch."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        for _ in zip(range(20_000), self.data):
            pass
        gc.collect()
        yield private_bytes()


def weigh(data, method) -> int:
    """Private memory of workers."""
    loader = DataLoader(
        Weighed(data), batch_size=None, num_workers=2, multiprocessing_context=method
    )
    return max(loader)


@pytest.fixture(scope="module")
def many(scene):
    """Dataset of very many files."""
    with scene.connect("many", create=True) as dataset:
        for number in range(MANY):
            dataset.put(f"{number // 5000:04}/{number:08}.bin", b"%d" % number)
        dataset.flush()
    return "many"


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_worker_needs_little_memory(scene, many, method):
    folder = Folder(f"dl://{many}", loader=bytes, extensions=None, task="many")
    data = Epochs(folder, batch_size=BATCH)
    assert len(folder) == MANY and next(iter(data))
    more = weigh(data, method) - weigh([b"x"], method)
    print(f"{method}: {more >> 10} KiB for {MANY} files")
    assert more < 10 << 20


@pytest.fixture(scope="module")
def damaged(scene):
    """Dataset of three classes with two damaged files in the store."""
    files = {
        f"{name}/{number:03}.bin": f"{name} {number}#".encode() * 1000
        for name in ("ant", "bee", "cat")
        for number in range(40)
    }
    scene.put("damaged", files)
    for path in ("bee/007.bin", "bee/008.bin"):
        scene.damage(files[path])
    return "dl://damaged"


def test_a_damaged_file_is_an_error_or_has_a_substitute(scene, damaged, caplog):
    folder = Folder(damaged, loader=bytes, extensions=None, task=False)
    first = [index for index, (path, _) in enumerate(folder.samples) if "bee/007" in path][0]
    with pytest.raises(errors.CorruptError, match="bee/007.bin"):
        folder[first]
    with pytest.raises(errors.CorruptError):
        list(Epochs(folder, batch_size=BATCH))
    folder = Folder(damaged, loader=bytes, extensions=None, task=False, on_bad="substitute")
    read = dict(zip(range(len(folder)), folder.__getitems__(range(len(folder)))))
    assert len(read) == 120
    assert read[first][0].startswith(b"bee 9#") and read[first + 1][0].startswith(b"bee 9#")
    # Each damaged file gives one warning, for any number of reads.
    assert folder[first] == read[first]
    warned = [record.message for record in caplog.records if "replaces it" in record.message]
    assert len(warned) == 2 and "bee/007.bin" in warned[0]
    # The warning is the same in each order, with any number of workers, and within an epoch.
    expected = [read[index] for index in ChunkSampler(folder, seed=3)]
    for workers in (0, 2):
        data = Epochs(folder, batch_size=BATCH, seed=3)
        loader = DataLoader(data, BATCH, num_workers=workers, collate_fn=list)
        assert [sample for batch in loader for sample in batch] == expected
    token = resume(data.state_dict(batches=3))
    assert list(Epochs(folder, batch_size=BATCH, resume=token)) == expected[3 * BATCH :]


def test_a_server_that_comes_back_is_waited_for(scene):
    with scene.connect("files", task=False, timeout=30.0) as dataset:
        scene.pause()
        timer = threading.Timer(1.0, scene.go_on)
        timer.start()
        assert len(dataset.get_many(range(300))) == 300
        timer.join()


def test_a_training_that_goes_on_at_the_end_of_a_long_epoch_is_there_at_once(scene, many):
    data = Epochs(f"dl://{many}", batch_size=BATCH, seed=9, task="many")
    whole = len(data)
    begun = time.monotonic()
    state = data.state_dict(batches=whole * 9 // 10 // BATCH)
    data = Epochs(f"dl://{many}", batch_size=BATCH, seed=9, task="many")
    data.load_state_dict(state)
    first = next(iter(data))
    assert first and time.monotonic() - begun < 1


def test_many_files_come_through_few_slots_without_a_stall(scene, monkeypatch):
    monkeypatch.setenv("DIESEL_AGENT_MEMORY", "24MiB")
    count, size = 6_000, 10_000
    scene.put("wide", {f"{number:05}": b"%05d" % number * (size // 5) for number in range(count)})
    with scene.connect("wide", task="narrow") as dataset:
        kept = []
        for numbers in (range(0, count, 50), random.Random(1).sample(range(count), 200)):
            begun = time.monotonic()
            read = dataset.get_many(numbers)
            kept.append(dataset.view_many(numbers))
            assert time.monotonic() - begun < 4
            for number, data, view in zip(numbers, read, kept[-1]):
                expected = dataset.path(number).encode() * (size // 5)
                assert data == expected and bytes(view) == expected
    status = scene.dlcmd("agent", "status", "--task", "narrow")
    # With full memory, a file comes alone where the call has no other file of its chunk.
    alone = int(re.search(r"read from the servers instead: (\d+) file", status).group(1))
    assert alone < 100, status


def test_a_view_that_is_kept_does_not_keep_its_batch(scene):
    with scene.connect("files", task="tests") as dataset:
        batch = dataset.view_many(range(600))
        one = batch[3]
        expected = bytes(one)
        del batch
        gc.collect()
        pinned = scene.dlcmd("agent", "status", "--task", "tests").split(f"worker {os.getpid()}: ")[1]
        assert pinned.startswith("1 pinned"), pinned
        assert bytes(one) == expected == dataset.get(3)


FAULTS_OF_BATCHES = """
import resource
import libdiesel

def faults():
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt

dataset = libdiesel.connect("dl://even", task="tests")
batch = list(range(256))
for _ in range(5):
    dataset.get_many(batch)
before = faults()
for _ in range(20):
    dataset.get_many(batch)
print(faults() - before)
"""


def test_batches_of_bytes_reuse_the_memory_of_earlier_batches(scene, tmp_path):
    scene.put("even", {f"{number:03}": bytes(4096) for number in range(256)})
    command = [sys.executable, "-c", FAULTS_OF_BATCHES]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 500, "page faults of 20 batches of 256 pages"
