"""States at boundaries: between epochs, before the first batch, of resumed runs, of persistent workers."""

import itertools
import json
import os
import pickle
import signal
import threading
import time

import pytest
from scene import Scene, bytes_of
from test_torch import BATCH, collate, epochs, folder, name_of
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from libdiesel.errors import ConflictError, InvalidError
from libdiesel.torch import ChunkSampler, Epochs, resume

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated", "ignore:This DataLoader")

#: Batches of an epoch.
ALL = -(-600 // BATCH)


def stateful(dataset, workers, every=1, persistent=False):
    """The loader of torchdata."""
    return StatefulDataLoader(
        dataset,
        batch_size=BATCH,
        num_workers=workers,
        collate_fn=collate,
        snapshot_every_n_steps=every,
        persistent_workers=persistent,
    )


@pytest.fixture(scope="module")
def orders(scene):
    """Batches of several epochs."""
    found = {}
    for epoch in range(3):
        dataset = epochs(scene, epoch=epoch)
        found[epoch] = list(DataLoader(dataset, batch_size=BATCH, collate_fn=collate))
        assert len(found[epoch]) == ALL
    return found


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_state_between_two_epochs_goes_on_with_the_next(scene, orders, workers, persistent):
    persistent = persistent and workers > 0
    dataset = epochs(scene, epoch=0)
    loader = stateful(dataset, workers, persistent=persistent)
    for epoch in (0, 1):
        dataset.set_epoch(epoch)
        assert list(loader) == orders[epoch]
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    for is_set_first in (True, False):
        dataset = epochs(scene, epoch=0)
        again = stateful(dataset, workers)
        if is_set_first:
            dataset.set_epoch(2)
        again.load_state_dict(state)
        if not is_set_first:
            dataset.set_epoch(2)
        assert list(again) == orders[2]
        dataset.set_epoch(0)
        assert list(again) == orders[0]


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_a_state_of_any_step_goes_on(scene, orders, workers, every, persistent):
    persistent = persistent and workers > 0
    for epoch, taken in itertools.product((0, 1), (0, 1, 2, 5, ALL - 1, ALL)):
        dataset = epochs(scene, epoch=0)
        loader = stateful(dataset, workers, every, persistent)
        if epoch == 1:
            assert list(loader) == orders[0]
            dataset.set_epoch(1)
        batches = iter(loader)
        assert list(itertools.islice(batches, taken)) == orders[epoch][:taken]
        state = pickle.loads(pickle.dumps({"nested": [loader.state_dict()]}))
        rest = orders[epoch][taken:]
        dataset = epochs(scene, epoch=0, resume=resume(state))
        assert dataset.epoch == epoch
        again = DataLoader(dataset, batch_size=BATCH, num_workers=3, collate_fn=collate)
        assert list(again) == rest, (epoch, taken)
        dataset = epochs(scene, epoch=0)
        dataset.set_epoch(epoch)
        again = stateful(dataset, workers, every)
        again.load_state_dict(state["nested"][0])
        assert list(again) == rest, (epoch, taken)
        del batches


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_run_that_went_on_is_saved_and_goes_on_again(scene, orders, workers):
    state, at = None, 0
    for taken in (3, 0, 10, 1):
        dataset = epochs(scene, epoch=0)
        if state:
            dataset.load_state_dict(state)
        assert len(dataset) == 600 - at * BATCH
        loader = DataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=collate)
        assert list(itertools.islice(loader, taken)) == orders[0][at : at + taken]
        state, at = pickle.loads(pickle.dumps(dataset.state_dict(batches=taken))), at + taken
    dataset = epochs(scene, epoch=0, resume=resume(state))
    loader = DataLoader(dataset, batch_size=BATCH, num_workers=workers, collate_fn=collate)
    assert list(loader) == orders[0][at:]
    # The run had passed this position; a whole epoch follows.
    assert list(loader) == orders[0]
    dataset.load_state_dict(dataset.state_dict(batches=ALL + 5))
    assert len(dataset) == 0 and list(loader) == []


def test_what_can_not_go_on_exactly_is_refused(scene, orders):
    dataset = epochs(scene, epoch=0)
    state = dataset.state_dict(batches=3)
    dataset.set_epoch(2)
    with pytest.raises(ConflictError, match="set_epoch"):
        dataset.load_state_dict(state)
    # The loader has another batch size than the dataset.
    loader = StatefulDataLoader(epochs(scene), batch_size=4, num_workers=2, collate_fn=collate)
    for _ in zip(range(3), loader):
        pass
    with pytest.raises(InvalidError, match="batch_size"):
        resume(loader.state_dict())


def test_a_run_resumed_by_its_saved_snapshot_reads_from_the_cache(tmp_path, monkeypatch):
    own = Scene(tmp_path)
    for name, value in own.environment().items():
        monkeypatch.setenv(name, value)
    try:
        paths = [f"{number % 3}/{number:03}" for number in range(200)]
        own.put("run", {path: bytes_of(path, 30_000) for path in paths}, chunk_size=1 << 20)
        options = {"batch_size": BATCH, "seed": 3, "group": 2, "loader": name_of, "server": own.address}
        data = Epochs("dl://run", task="first", **options)
        whole = list(DataLoader(data, batch_size=BATCH, collate_fn=collate))
        data = Epochs("dl://run", task="first", **options)
        loader = DataLoader(data, batch_size=BATCH, collate_fn=collate)
        assert list(itertools.islice(loader, 3)) == whole[:3]
        state = data.state_dict(batches=3)
        file = tmp_path / "run.snapshot"
        with own.connect("run", task="first") as dataset:
            own.put("run", {"later": b"later#"})
            # The version of the handle, not the current version.
            dataset.save_meta(file)
        again = Epochs("dl://run", task="second", snapshot=file, resume=resume(state), **options)
        loader = DataLoader(again, batch_size=BATCH, num_workers=2, collate_fn=collate)
        assert list(loader) == whole[3:]
        status = json.loads(own.dlcmd("--json", "agent", "status", "--task", "second"))
        assert status["hits"] >= sum(map(len, whole[3:])) and status["fallbacks"] == 0
        own.stop()
        again.set_epoch(1)
        assert sorted(itertools.chain(*loader)) == sorted(paths)
        own.start()
    finally:
        own.end()


def test_a_call_that_is_interrupted_loses_no_file_of_an_epoch(scene, contents, monkeypatch):
    # Memory for a part of the dataset: a reader soon waits for the server.
    monkeypatch.setenv("DIESEL_AGENT_MEMORY", "6MiB")
    for task in ("interrupted", False):
        with scene.connect("files", task=task, timeout=20.0) as dataset:
            epoch = dataset.shuffle(seed=2, group=2)
            seen = [path for path, _ in itertools.islice(epoch, 10)]
            assert epoch.position == 10
            scene.pause()
            try:
                for _ in range(2):
                    press = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
                    press.start()
                    with pytest.raises(KeyboardInterrupt):
                        while True:
                            seen.append(next(epoch)[0])
                    press.join()
            finally:
                scene.go_on()
            seen += [path for path, _ in epoch]
        assert sorted(seen) == sorted(contents)
        with scene.connect("files", task=task) as dataset:
            assert seen == [path for path, _ in dataset.shuffle(seed=2, group=2)]


def test_the_error_of_an_interrupted_flush_is_raised_later(tmp_path):
    own = Scene(tmp_path)
    try:
        dataset = own.connect("lost", create=True, timeout=2.0)
        dataset.put("a", b"x")
        own.pause()
        press = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])
        press.start()
        with pytest.raises(KeyboardInterrupt):
            dataset.flush()
        press.join()
        os.kill(own.server.pid, signal.SIGKILL)
        # The flush continues without its caller until the timeout of a request.
        time.sleep(4)
        with pytest.raises((ConnectionError, TimeoutError, OSError)):
            dataset.flush()
    finally:
        own.end()


def test_samplers_are_saved_by_loaders_that_look_at_each_step_only(scene, tree):
    sampler = ChunkSampler(folder(scene), seed=4, group=1)
    loader = StatefulDataLoader(
        sampler.folder, batch_size=BATCH, sampler=sampler, num_workers=2, snapshot_every_n_steps=3
    )
    whole = [numbers.tolist() for numbers, _ in loader]
    first = [numbers.tolist() for numbers, _ in itertools.islice(loader, 5)]
    assert first == whole[:5]
    with pytest.raises(InvalidError, match="snapshot_every_n_steps"):
        resume(loader.state_dict())


def test_an_epoch_that_is_read_twice_is_reported_once(scene, caplog):
    dataset = epochs(scene, epoch=0)
    next(iter(dataset))
    for _ in range(3):
        assert len(list(dataset)) == 600
    reported = [record for record in caplog.records if "set_epoch" in record.message]
    assert len(reported) == 1
    dataset = epochs(scene, epoch=0)
    for epoch in (0, 1, 1):
        dataset.set_epoch(epoch)
        list(dataset)
    assert [record for record in caplog.records if "set_epoch" in record.message] == reported


def test_another_epoch_drops_no_loaded_position_silently(scene, orders):
    token = resume(epochs(scene, epoch=1).state_dict(batches=3))
    dataset = epochs(scene, epoch=0, resume=token)
    with pytest.raises(ConflictError, match=r"set_epoch\(1\) first"):
        dataset.set_epoch(0)
    dataset.set_epoch(1)
    assert list(DataLoader(dataset, batch_size=BATCH, collate_fn=collate)) == orders[1][3:]
    dataset.set_epoch(0)
    over = resume(epochs(scene, epoch=1).state_dict(batches=ALL))
    dataset = epochs(scene, epoch=0, resume=over)
    dataset.set_epoch(2)
    assert dataset.epoch == 2
