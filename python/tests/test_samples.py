"""Samples of several files: each once, in the order of the first files, over ranks and workers, with resume."""

import itertools
import os
import pickle

import pytest
import torch.utils.data
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

import libdiesel
from libdiesel.errors import CorruptError, InvalidError
from libdiesel.torch import Samples, resume

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated", "ignore:This DataLoader")

BATCH = 8
STEMS = 300


def text(sample):
    return {field: value if field == "__key__" else bytes(value) for field, value in sample.items()}


def key(sample):
    assert bytes(sample["cls"]) == f"{int(sample['__key__'][-4:])}".encode()
    return sample["__key__"]


def files_of(number):
    """The files of a sample; each tenth has another field."""
    stem = f"{number % 3}/s-{number:04}"
    files = {f"{stem}.jpg": stem.encode() * (number * 37 % 2000 + 1), f"{stem}.cls": b"%d" % number}
    if number % 10 == 0:
        files[f"{stem}.seg.PNG"] = b"mask %d" % number
    return files


@pytest.fixture(scope="module")
def pairs(scene):
    """A dataset of samples, and files that belong to none."""
    name = f"pairs{os.urandom(4).hex()}"
    files = {"README": b"none", "0/.hidden": b"none"}
    for number in range(STEMS):
        files.update(files_of(number))
    scene.put(name, files, chunk_size=1 << 20)
    yield name
    libdiesel.delete_dataset(f"dl://{name}")


def samples(scene, name, **options):
    scene.tasks.add("samples")
    options = {"task": "samples", "seed": 3, "group": 1, "batch_size": BATCH, "transform": key, **options}
    return Samples(f"dl://{name}", **options)


def collate(keys):
    return keys


def test_a_sample_has_all_files_of_its_stem(scene, pairs):
    data = samples(scene, pairs, transform=text)
    found = {sample.pop("__key__"): sample for sample in data}
    assert len(data) == len(found) == STEMS
    for number in range(STEMS):
        files = files_of(number)
        stem = next(iter(files)).partition(".")[0]
        assert found[stem] == {path.partition(".")[2].lower(): value for path, value in files.items()}
    folder = Samples(f"dl://{pairs}/2", task=False, batch_size=BATCH, transform=key)
    assert sorted(folder) == sorted(stem for stem in found if stem.startswith("2/"))
    assert repr(folder).startswith("Samples(")
    both = Samples(f"dl://{pairs}", task=False, batch_size=BATCH, transform=key, paths=["1", "2", "2"])
    assert sorted(both) == sorted(stem for stem in found if stem[:2] in ("1/", "2/"))


def test_the_order_is_that_of_the_first_files(scene, pairs):
    whole = list(samples(scene, pairs))
    with scene.connect(pairs, task=False) as dataset:
        first = [f"{stem}.cls" for stem in whole]
        assert [path for path, _ in dataset.shuffle(seed=3, group=1, paths=sorted(first))] == first
    other = samples(scene, pairs)
    other.set_epoch(1)
    assert list(other) != whole and sorted(other) == sorted(whole)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_ranks_and_workers_read_each_sample_once(scene, pairs, workers):
    whole = list(samples(scene, pairs))
    ranks = []
    for rank in range(2):
        data = samples(scene, pairs, rank=rank, world=2, nodes=1)
        loader = DataLoader(data, batch_size=BATCH, num_workers=workers, collate_fn=collate)
        ranks.append(list(itertools.chain(*loader)))
        assert len(ranks[-1]) == len(data) == STEMS // 2
    assert sorted(ranks[0] + ranks[1]) == sorted(whole)
    assert list(itertools.chain(*zip(*ranks))) == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_goes_on_exactly(scene, pairs, workers):
    def loader(workers=workers, **options):
        data = samples(scene, pairs, **options)
        return StatefulDataLoader(data, batch_size=BATCH, num_workers=workers, collate_fn=collate)

    whole = list(loader())
    begun = loader()
    taken = list(itertools.islice(begun, 11))
    state = pickle.loads(pickle.dumps(begun.state_dict()))
    again = loader()
    again.load_state_dict(state)
    assert taken + list(again) == whole
    assert taken + list(loader(3, resume=resume(state))) == whole


def test_a_damaged_file_is_an_error_of_its_sample(scene):
    name = f"damaged{os.urandom(4).hex()}"
    mask = os.urandom(3000)
    files = {f"{number:02}.{field}": os.urandom(500) for number in range(20) for field in ("a", "b")}
    scene.put(name, files | {"07.b": mask})
    scene.damage(mask)
    found, errors = [], []
    batches = iter(Samples(f"dl://{name}", task=False, batch_size=BATCH))
    while True:
        try:
            found.append(next(batches)["__key__"])
        except StopIteration:
            break
        except CorruptError as error:
            errors.append(str(error))
    assert sorted(found) == [f"{number:02}" for number in range(20) if number != 7]
    assert len(errors) == 1 and "07.b" in errors[0]
    libdiesel.delete_dataset(f"dl://{name}")


def test_what_has_no_samples_is_refused(scene, pairs):
    name = f"refused{os.urandom(4).hex()}"
    scene.put(name, {"plain": b"a", "x/a.jpg": b"b", "x/a.JPG": b"c", "y/plain": b"d"})
    with pytest.raises(InvalidError, match="equal fields"):
        Samples(f"dl://{name}", task=False, batch_size=BATCH)
    with pytest.raises(FileNotFoundError, match="STEM.FIELD"):
        Samples(f"dl://{name}/y", task=False, batch_size=BATCH)
    for option in ({"loader": bytes}, {"with_path": True}, {"on_bad": "substitute"}):
        with pytest.raises(InvalidError, match="transform"):
            samples(scene, pairs, **option)
    assert issubclass(Samples, torch.utils.data.IterableDataset)
    libdiesel.delete_dataset(f"dl://{name}")
