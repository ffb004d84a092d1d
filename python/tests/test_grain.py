"""Grain reads in the order of the library, and resumes from its own checkpoints."""

import itertools
import json
import os
import pickle

import grain
import numpy
import pytest

import libdiesel
from libdiesel.grain import Shuffled, Source

OPTIONS = {"seed": 5, "group": 2}

#: Elements of a batch.
BATCH = 16


def name_of(view):
    """The path of a file, from its content."""
    return bytes(memoryview(view)[:60]).partition(b"#")[0].decode()


def fail(view):
    raise ValueError("no image")


def shuffled(scene, epochs=2, **options):
    scene.tasks.add("grain")
    return Shuffled("dl://files", task="grain", epochs=epochs, loader=name_of, **OPTIONS, **options)


def loader(source, workers):
    """Grain's loader of batches."""
    sampler = grain.samplers.SequentialSampler(len(source), grain.sharding.NoSharding())
    batches = [grain.transforms.Batch(BATCH)]
    return grain.DataLoader(data_source=source, sampler=sampler, operations=batches, worker_count=workers)


def paths(batches):
    return [str(path) for batch in batches for path in batch]


@pytest.fixture(scope="module")
def order(scene):
    """The paths of two epochs."""
    with scene.connect("files", task=False) as dataset:
        return [path for epoch in (0, 1) for path, _ in dataset.shuffle(epoch=epoch, **OPTIONS)]


def test_elements_are_the_files_of_the_dataset_or_of_a_folder(scene, contents):
    source = Source("dl://files", task=False)
    assert isinstance(source, grain.sources.RandomAccessDataSource)
    assert len(source) == 600
    assert {source.dataset.path(source.number(index)): source[index] for index in range(600)} == contents
    assert source._getitems([7, 3, 7]) == [source[7], source[3], source[7]]
    folder = Source("dl://files/003", task=False, loader=name_of)
    assert sorted(folder) == sorted(path for path in contents if path.startswith("003/"))
    assert Source(source.dataset)[numpy.int64(5)] == source[5]
    for none in (600, -1):
        with pytest.raises(IndexError):
            source[none]
    with pytest.raises(FileNotFoundError):
        len(Source("dl://files/none", task=False))
    with pytest.raises(ValueError, match="no image") as raised:
        Source("dl://files", task=False, loader=fail)[3]
    assert raised.value.__notes__ == [f"the sample is dl://files/{source.dataset.path(3)}"]


def test_the_order_is_that_of_the_library(scene, order, contents):
    source = shuffled(scene)
    assert len(source) == 2 * 600 and list(source) == order
    for epoch in (0, 1):
        assert sorted(order[600 * epoch : 600 * epoch + 600]) == sorted(contents)
    assert order[:600] != order[600:]
    # From any place, in any direction, in batches, and in another process.
    for index in (1199, 0, 255, 256, 900, 257, 599, 600, 3):
        assert source[index] == order[index]
    indexes = [int(number) for number in numpy.random.default_rng(1).integers(0, 1200, 300)]
    again = pickle.loads(pickle.dumps(source))
    assert again._getitems(indexes) == [order[index] for index in indexes]
    assert repr(again) == repr(source)
    part = Shuffled("dl://files/003", task=False, loader=name_of, **OPTIONS)
    assert sorted(part) == sorted(path for path in contents if path.startswith("003/"))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_resumes_exactly(scene, order, workers):
    source = shuffled(scene)
    whole = list(iter(loader(source, workers)))
    assert sorted(paths(whole)) == sorted(order)
    if workers == 0:
        assert paths(whole) == order
    for taken in (5, len(whole) - 1):
        begun = iter(loader(source, workers))
        first = list(itertools.islice(begun, taken))
        state = begun.get_state()
        again = iter(loader(shuffled(scene), workers))
        again.set_state(state)
        assert paths(first) + paths(again) == paths(whole), taken


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pipeline_resumes_exactly(scene, order, workers):
    def pipeline(workers=workers, start=0):
        batches = grain.MapDataset.source(shuffled(scene))[start:].batch(BATCH).to_iter_dataset()
        return batches.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(workers)) if workers else batches

    whole = paths(pipeline())
    assert whole == order
    begun = iter(pipeline())
    first = paths(itertools.islice(begun, 41))
    again = iter(pipeline())
    again.set_state(begun.get_state())
    assert first + paths(again) == order
    assert first + paths(pipeline(1, start=41 * BATCH)) == order


def test_a_checkpoint_of_another_version_is_refused(scene):
    name = f"grain{os.urandom(4).hex()}"
    scene.put(name, {f"{number:03}": b"a#" for number in range(40)})
    options = {"task": False, "loader": name_of, "seed": 1}
    begun = iter(loader(Shuffled(f"dl://{name}", **options), 0))
    next(begun)
    scene.put(name, {"007": b"b#"})
    again = iter(loader(Shuffled(f"dl://{name}", **options), 0))
    with pytest.raises(ValueError, match="version"):
        again.set_state(begun.get_state())
    libdiesel.delete_dataset(f"dl://{name}")


def test_a_pass_is_read_from_the_cache_of_the_node(scene, order):
    with scene.connect("files", task="grain-pass") as dataset:
        source = Shuffled(dataset, loader=name_of, **OPTIONS)
        batches = [source._getitems(range(start, start + 50)) for start in range(0, 600, 50)]
        assert list(itertools.chain(*batches)) == order[:600]
        status = json.loads(scene.dlcmd("--json", "agent", "status", "--task", "grain-pass"))
        assert status["hits"] == 600 and status["fallbacks"] == 0
        # The agent knows the order, along which it fetches ahead.
        assert [one["dataset"] for one in status["orders"]] == ["files"]
