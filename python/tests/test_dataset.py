"""Reading, writing and describing a dataset."""

import array
import io
import json
import logging
import os
import pickle
import signal
import threading
import time

import numpy
import pytest
import torch
from scene import wait_for

import libdiesel
from libdiesel import errors


@pytest.fixture(params=["cached", "plain"])
def dataset(request):
    """A handle with or without an agent."""
    return request.getfixturevalue(request.param)


def test_files_are_read_by_path_and_by_number(dataset, contents):
    for path in list(contents)[::37]:
        number = dataset.stat(path).number
        assert dataset.get(path) == dataset.get(number) == dataset[path] == contents[path]
        assert dataset.path(number) == path
        assert bytes(dataset.view(path)) == contents[path]
    assert len(dataset) == len(contents)
    assert dataset[-1] == dataset[len(dataset) - 1]


def test_ranges_of_files_are_read(dataset, contents):
    for path in list(contents)[::41]:
        data = contents[path]
        for offset, length in [(0, 3), (5, None), (len(data) // 2, 10), (len(data), 1), (2**40, None)]:
            expected = data[offset:] if length is None else data[offset : offset + length]
            assert dataset.get(path, offset=offset, length=length) == expected
            assert dataset.get(dataset.stat(path).number, offset=offset, length=length) == expected
    with pytest.raises(errors.NotFoundError):
        dataset.get("no/such", offset=1)
    with pytest.raises(OverflowError):
        dataset.get(0, offset=-1)


def test_a_file_that_is_still_to_be_put_is_awaited(scene):
    scene.put("produced", {"first": b"1"})
    with scene.connect("produced", task="consumer") as dataset:
        began = time.monotonic()
        with pytest.raises(errors.NotFoundError):
            dataset.get("second", wait=0.3)
        assert 0.3 <= time.monotonic() - began < 5
        with pytest.raises(errors.NotFoundError):
            dataset.get("second", wait=0)
        later = threading.Timer(0.5, scene.put, ["produced", {"second": b"2"}])
        with pytest.raises(errors.NotFoundError):
            dataset.get("second")
        later.start()
        assert dataset.get("second", wait=20) == b"2"
        assert dataset.get("first", wait=20) == b"1"
        later.join()
        for wrong in ({"file": 0}, {"file": "first", "offset": 1}, {"file": "first", "wait": -1}):
            with pytest.raises(errors.InvalidError, match="wait|path"):
                dataset.get(**{"wait": 1, **wrong})


def test_a_job_has_local_disks(scene, contents, tmp_path):
    tiers = f"memory:8MiB,{tmp_path}:64MiB"
    for job in ("cold", "warm"):
        with scene.connect("files", task=job, tiers=tiers) as dataset:
            assert [dataset.get(path) for path in contents] == list(contents.values())
            handle = pickle.loads(pickle.dumps(dataset))
            status = json.loads(scene.dlcmd("--json", "agent", "status", "--task", job))
            assert status["tiers"][0]["path"] == str(tmp_path)
            assert status["memory_bytes"] == 8 << 20
            wait_for(lambda: '"disk_writes":0' in scene.dlcmd("--json", "agent", "status", "--task", job))
            assert handle.get(0) == dataset.get(0)
            handle.close()
        scene.dlcmd("agent", "stop", "--task", job)
    scene.dlcmd("agent", "clean", str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_many_files_are_read_in_their_order(dataset, contents):
    paths = list(contents)[::-3]
    expected = [contents[path] for path in paths]
    numbers = [dataset.stat(path).number for path in paths]
    assert dataset.get_many(paths) == expected
    for asked in (
        numbers,
        tuple(numbers),
        iter(numbers),
        numpy.array(numbers),
        numpy.array(numbers, dtype=numpy.int32),
        array.array("I", numbers),
        torch.tensor(numbers),
    ):
        assert dataset.get_many(asked) == expected
    batch = dataset.view_many(numbers)
    assert len(batch) == len(numbers)
    assert [bytes(view) for view in batch] == expected
    assert bytes(batch[-1]) == expected[-1]
    with pytest.raises(IndexError):
        batch[len(numbers)]


@pytest.mark.parametrize(
    "make",
    [
        lambda n: memoryview(bytearray(n)),
        lambda n: numpy.zeros(n, numpy.uint8),
        lambda n: torch.zeros(n).byte(),
    ],
)
def test_many_files_are_read_into_memory_of_the_caller(dataset, contents, make):
    paths = list(contents)[:100]
    total = sum(len(contents[path]) for path in paths)
    buffer = make(total)
    slices = dataset.get_many(paths, into=buffer)
    for path, place in zip(paths, slices):
        assert memoryview(numpy.asarray(buffer)[place]) == contents[path]
    with pytest.raises(errors.InvalidError, match=f"{total} bytes are needed"):
        dataset.get_many(paths, into=make(total - 1))


def test_folders_are_listed_and_walked(dataset, contents):
    assert dataset.ls() == [f"{number:03}/" for number in range(7)]
    assert dataset.ls("003/") == sorted(path[4:] for path in contents if path.startswith("003/"))
    assert list(dataset.walk()) == sorted(contents)
    assert "003/00003.bin" in dataset and "003" not in dataset
    assert dataset.stat("003").is_folder
    assert dataset.stat("003/00003.bin").size == len(contents["003/00003.bin"])


def test_views_outlive_their_handle_and_the_agent(scene, contents):
    dataset = scene.connect("files", task="outlive")
    paths = list(contents)[:50]
    batch, one = dataset.view_many(paths), dataset.view(paths[7])
    memory = memoryview(one)
    dataset.close()
    for pid in scene.agents():
        os.kill(pid, signal.SIGKILL)
    assert [bytes(view) for view in batch] == [contents[path] for path in paths]
    del one
    assert memory == contents[paths[7]] and memory.readonly
    with pytest.raises(TypeError, match="read-write"):
        io.BytesIO(b"x").readinto(batch[0])


def test_a_closed_handle_says_so(scene):
    dataset = scene.connect("files", task=False)
    dataset.close()
    dataset.close()
    assert dataset.closed and "closed" in repr(dataset)
    for call in (lambda: dataset.get(0), lambda: len(dataset), lambda: pickle.dumps(dataset)):
        with pytest.raises(errors.ClosedError, match="connect again"):
            call()


def test_what_was_put_is_read_again(scene):
    with scene.connect("written", create=True) as dataset:
        odd = b"\xff\xfe/n\xc3\xa4me".decode(errors="surrogateescape")
        dataset.put(odd, b"odd", mtime=1.5, mode=0o600)
        dataset.put("a/b", bytearray(b"x" * 5_000_000))
        dataset.put_file("c", __file__)
        assert dataset.flush() == 3
    with scene.connect("written", task="written") as dataset:
        assert dataset.get(odd) == b"odd"
        assert dataset.stat(odd).mtime == 1.5 and dataset.stat(odd).mode == 0o600
        assert set(dataset.walk()) == {odd, "a/b", "c"}
        assert dataset.get("a/b") == b"x" * 5_000_000
        with open(__file__, "rb") as file:
            assert dataset.get("c") == file.read()
    with scene.connect("written", task=False) as dataset:
        assert dataset.delete("c", "nothing", missing_ok=True) == 1
        with pytest.raises(FileNotFoundError):
            dataset.delete("c")
        assert "c" not in dataset
        assert dataset.purge(grace=0.0, dry_run=True).reclaimable_bytes > 0


def test_a_snapshot_is_saved_and_answers(scene, tmp_path, contents):
    file = tmp_path / "snapshot"
    with scene.connect("files", task=False) as dataset:
        dataset.save_meta(file)
        again = dataset.load_meta(file)
    assert len(again) == len(contents)
    with scene.connect("files", snapshot=file) as dataset:
        assert dataset.get("003/00003.bin") == contents["003/00003.bin"]
        assert dataset.version == again.version


def test_a_pickled_handle_answers_from_the_same_version(scene):
    scene.put("changing", {"a": b"1", "b": b"2"})
    with scene.connect("changing", task=False) as dataset:
        pickled = pickle.dumps(dataset)
        scene.put("changing", {"c": b"3"})
        again = pickle.loads(pickled)
        assert again.version == dataset.version and len(again) == 2
        assert len(scene.connect("changing", task=False)) == 3


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda ds: ds.get("nowhere"), FileNotFoundError, "nowhere"),
        (lambda ds: ds.get("/absolute"), errors.InvalidError, "absolute"),
        (lambda ds: ds.get(10**6), IndexError, "no file 1000000"),
        (lambda ds: ds.get(-1), IndexError, "no file -1"),
        (lambda ds: ds.get(2**70), IndexError, "no file"),
        (lambda ds: ds.get(1.5), TypeError, "by its path"),
        (lambda ds: ds.get(None), TypeError, "by its path"),
        (lambda ds: ds.get("003"), errors.ConflictError, "folder"),
        (lambda ds: ds.get_many("003/00003.bin"), TypeError, "one name"),
        (lambda ds: ds.get_many(3), TypeError, "iterable"),
        (lambda ds: ds.get_many([0], into=b"xx"), errors.InvalidError, "writable"),
        (lambda ds: ds.shuffle(group=0), errors.InvalidError, "at least one chunk"),
        (lambda ds: ds.shuffle(resume="x"), errors.InvalidError, "no resume token"),
        (lambda ds: ds.ls("nowhere"), errors.NotFoundError, "nowhere"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(dataset, call, kind, text):
    with pytest.raises(kind, match=text):
        call(dataset)


def test_wrong_options_say_what_to_do(scene):
    for options, kind, text in [
        ({"dataset": "dl://"}, errors.InvalidError, "dl://NAME"),
        ({"dataset": 3}, TypeError, "dataset=3"),
        ({"dataset": "dl://files", "timeout": -1.0}, errors.InvalidError, "timeout"),
        ({"dataset": "dl://files", "task": "a b"}, errors.InvalidError, "characters"),
        ({"dataset": "dl://files", "tiers": "/nowhere:1GiB"}, errors.InvalidError, "is no tier"),
        ({"dataset": "dl://files", "tiers": "memory"}, errors.InvalidError, "is no tier"),
        ({"dataset": "dl://files", "key_file": "/nowhere"}, errors.LocalError, "/nowhere"),
        ({"dataset": "dl://no-such", "task": False}, errors.NotFoundError, "no-such"),
        ({"dataset": "dl://no-such", "task": "none"}, errors.NotFoundError, "no-such"),
        ({"dataset": "dl://files", "nonsense": 1}, TypeError, "nonsense"),
    ]:
        with pytest.raises(kind, match=text):
            libdiesel.connect(**{"server": scene.address, **options})


def test_a_server_that_is_not_there_is_named(scene):
    with pytest.raises(ConnectionError, match="127.0.0.1:9"):
        libdiesel.connect("dl://files", server="127.0.0.1:9", task=False)


def test_a_wait_ends_by_ctrl_c_and_lets_other_threads_run(scene):
    with scene.connect("files", task=False) as dataset:
        turns, pressed, took = [], [], []

        def press():
            # A Python thread runs meanwhile.
            for _ in range(20):
                time.sleep(0.01)
                turns.append(1)
            pressed.append(time.monotonic())
            signal.raise_signal(signal.SIGINT)

        scene.pause()
        try:
            for _ in range(3):
                other = threading.Thread(target=press)
                other.start()
                with pytest.raises(KeyboardInterrupt):
                    dataset.get_many(range(50))
                took.append(time.monotonic() - pressed[-1])
                other.join()
        finally:
            scene.go_on()
        assert len(turns) == 60
        # A busy machine may be late once.
        assert sorted(took)[1] < 0.1 and max(took) < 2, took
        assert dataset.get(0)


def test_notes_go_to_logging(scene, caplog):
    with caplog.at_level(logging.INFO, logger="libdiesel"):
        before = os.environ["DIESEL_AGENT"] if "DIESEL_AGENT" in os.environ else None
        os.environ["DIESEL_AGENT"] = "/nowhere/dlcmd"
        try:
            with scene.connect("files", task="no-agent") as dataset:
                assert dataset.get(0)
        finally:
            del os.environ["DIESEL_AGENT"]
            if before:
                os.environ["DIESEL_AGENT"] = before
    assert any("not from the node's cache" in record.message for record in caplog.records)


def test_every_object_shows_itself(dataset):
    assert "dl://files" in repr(dataset) and "600 files" in repr(dataset)
    assert repr(dataset.view(0)).endswith("bytes>")
    assert "2 views" in repr(dataset.view_many([0, 1]))
    assert "0 of 600 files" in repr(dataset.shuffle())


def test_an_epoch_reads_every_file_once(dataset, contents):
    epoch = dataset.shuffle(seed=3, group=2)
    assert dict(epoch) == contents
    halves = [dataset.shuffle(seed=3, group=2, rank=rank, world=2) for rank in range(2)]
    paths = [dict(half) for half in halves]
    assert len(paths[0]) == len(paths[1]) and not paths[0].keys() & paths[1].keys()


def test_an_epoch_goes_on_by_its_token(dataset):
    whole = [path for path, _ in dataset.shuffle(seed=3, epoch=2, group=2)]
    begun = dataset.shuffle(seed=3, epoch=2, group=2)
    first = [path for path, _ in (next(begun) for _ in range(100))]
    rest = [path for path, _ in dataset.shuffle(resume=begun.token(100))]
    assert first + rest == whole
    assert libdiesel.token_after(begun.token(0), 100, 1, 1) == begun.token(100)
    skipped = [path for path, _ in dataset.shuffle(seed=3, epoch=2, group=2, read=100)]
    assert skipped == rest


def test_many_files_are_put_in_one_call(scene, tmp_path):
    source = tmp_path / "local"
    source.write_bytes(b"from disk")
    source.chmod(0o600)
    os.utime(source, ns=(1_000_000_000, 1_500_000_000))
    seen = []
    with libdiesel.connect("dl://put-many", server=scene.address, create=True) as dataset:
        def files():
            for number in range(3000):
                yield f"a/{number}", b"%d" % number
            yield "local", source
            yield "text", str(source)
            yield "buffer", bytearray(b"mutable")
            for turn in range(50):
                yield "twice", b"%d" % turn

        assert dataset.put_many(files(), workers=3, progress=lambda *so_far: seen.append(so_far)) == 3053
        assert dataset.unflushed == 0
        assert dataset.get("a/2999") == b"2999" and dataset.get("buffer") == b"mutable"
        assert dataset.get("local") == dataset.get("text") == b"from disk"
        assert dataset.stat("local").mode == 0o600 and dataset.stat("local").mtime == 1.5
        assert dataset.get("twice") == b"49"
        assert [count for count, _ in seen] == [1024, 2048, 3053] and seen[-1][1] > seen[0][1] > 0
        assert dataset.put_many([]) == 0
        for bad, error in [
            ([("a", b"x", 1)], TypeError), ([b"ab"], TypeError), ([("a", 3)], TypeError),
            ([("/a", b"x")], errors.InvalidError), ([("gone", tmp_path / "gone")], errors.LocalError),
        ]:
            with pytest.raises(error):
                dataset.put_many(bad)
        with pytest.raises(errors.InvalidError):
            dataset.put_many([("a", b"x")], workers=0)
        with pytest.raises(ZeroDivisionError):
            dataset.put_many((str(one // (5 - one)), b"x") for one in range(9))


def test_times_come_back_as_they_were_put(scene):
    times = [0.0, 1700000000.25, 1.5, -3.75, 1e9 + 1 / 3, -1e9 - 1 / 7]
    with scene.connect("times", create=True) as dataset:
        for number, time_ in enumerate(times):
            dataset.put(str(number), b"", mtime=time_)
        dataset.flush()
        assert [dataset.stat(str(number)).mtime for number in range(len(times))] == times
        for wrong in (float("nan"), float("inf"), 1e11, -1e11):
            with pytest.raises(errors.InvalidError, match="mtime"):
                dataset.put("wrong", b"", mtime=wrong)
