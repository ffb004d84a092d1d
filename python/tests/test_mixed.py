"""Mixes of datasets."""

import collections

import pytest

from libdiesel import errors
from libdiesel.torch import Epochs, Mixed
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
BATCH = 5
LENGTHS = {"mix-a": 300, "mix-b": 100, "mix-c": 57}


@pytest.fixture(scope="module", autouse=True)
def datasets(scene):
    """Datasets whose files name them."""
    for name, files in LENGTHS.items():
        scene.put(name, {f"{number:04}": f"{name}/{number}".encode() * 300 for number in range(files)}, chunk_size=1 << 20)


def mixed(scene, **options):
    sources = [
        Epochs(f"dl://{name}", batch_size=BATCH, seed=3, with_path=True, server=scene.address, task="mixed",
               loader=lambda view: bytes(view).partition(b"/")[0].decode())
        for name in LENGTHS
    ]
    return Mixed(sources, **options)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mix_gives_each_sample_once_by_its_weight(scene, workers):
    mix = mixed(scene)
    loader = DataLoader(mix, BATCH, num_workers=workers, collate_fn=list)
    orders = []
    for epoch in range(2):
        mix.set_epoch(epoch)
        read = [(name, path) for batch in loader for path, name in batch]
        assert len(set(read)) == len(read) == len(mix) == sum(LENGTHS.values())
        assert collections.Counter(name for name, _ in read) == LENGTHS
        # About as many of each in the first half.
        half = collections.Counter(name for name, _ in read[: len(read) // 2])
        assert all(abs(half[name] - length / 2) < 25 for name, length in LENGTHS.items())
        orders.append(read)
    assert orders[0] != orders[1]
    mix.set_epoch(0)
    assert [(name, path) for batch in loader for path, name in batch] == orders[0]


def test_weights_decide_until_a_source_ends(scene):
    mix = mixed(scene, weights=[1, 1, 8], stop="first", seed=4)
    names = [name for _, name in mix]
    assert names.count("mix-c") == LENGTHS["mix-c"] and 60 <= len(names) < 95
    rest = [name for _, name in mixed(scene, weights=[1, 1, 8], seed=4)]
    assert rest[: len(names)] == names and collections.Counter(rest) == LENGTHS


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("step", [1, 13, 60])
def test_a_mix_goes_on_exactly(scene, workers, step):
    def loader():
        return StatefulDataLoader(mixed(scene, seed=9), BATCH, num_workers=workers, collate_fn=list)

    whole = list(loader())
    first = loader()
    iterator = iter(first)
    begun = [next(iterator) for _ in range(step)]
    state = first.state_dict()
    del iterator
    second = loader()
    second.load_state_dict(state)
    assert begun + list(second) == whole


def test_wrong_mixes_are_refused(scene):
    some = mixed(scene).sources
    for wrong, error in [
        (lambda: Mixed([]), errors.InvalidError), (lambda: Mixed([3]), TypeError),
        (lambda: Mixed(some, weights=[1]), errors.InvalidError),
        (lambda: Mixed(some, weights=[1, 0, 1]), errors.InvalidError),
        (lambda: Mixed(some, stop="never"), errors.InvalidError),
        (lambda: mixed(scene).load_state_dict({}), errors.InvalidError),
        (lambda: mixed(scene).load_state_dict(mixed(scene, weights=[1, 2, 3]).state_dict()), errors.ConflictError),
    ]:
        with pytest.raises(error):
            wrong()
