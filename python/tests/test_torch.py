"""PyTorch: folders, samplers, epochs, and exact resumption of states."""

import itertools
import multiprocessing
import os
import pickle
import signal

import pytest
import torch
from scene import private_bytes, wait_for
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader
from torchvision.datasets import ImageFolder

import libdiesel
from libdiesel.errors import ConflictError, InvalidError
from libdiesel.torch import (
    ChunkSampler,
    DistributedChunkSampler,
    Epochs,
    Folder,
    resume,
    tensor,
)

BATCH = 7
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


def number_of(picture) -> int:
    """Number in the pixels of an image."""
    low, high, _ = picture.getpixel((0, 0))
    return low + 256 * high


def folder(scene, **options):
    """Number in the pixels of an image of the dataset."""
    return Folder("dl://images/train", number_of, server=scene.address, task="torch", **options)


def test_a_folder_has_what_an_image_folder_has(scene, tree):
    here, there = folder(scene), ImageFolder(tree, number_of)
    assert (here.classes, here.class_to_idx) == (there.classes, there.class_to_idx)
    assert len(here) == len(there)
    assert sorted(here) == sorted(there)
    names = [(path.removeprefix("dl://images/train/"), target) for path, target in here.samples]
    assert sorted(names) == sorted((os.path.relpath(path, tree), at) for path, at in there.samples)
    assert here.targets == there.targets
    assert here.samples[-1] == here.samples[len(here) - 1] and len(here.samples[3:5]) == 2
    with pytest.raises(IndexError):
        here[len(here)]
    assert len(folder(scene, extensions=None)) == len(here) + 1


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_folder_works_in_workers_of_every_kind(scene, tree, method):
    here = folder(scene)
    assert here[3]
    loader = DataLoader(
        here,
        batch_size=BATCH,
        sampler=ChunkSampler(here, group=1),
        num_workers=2,
        multiprocessing_context=method,
        persistent_workers=True,
    )
    for _ in range(2):
        seen = [int(number) for numbers, _ in loader for number in numbers]
        assert sorted(seen) == list(range(150))


def test_a_tensor_shares_the_memory_of_a_view(scene, contents):
    with scene.connect("files", task="torch") as dataset:
        view, path = dataset.view(0), dataset.path(0)
    for made in (tensor(view), tensor(view, share=True), torch.from_dlpack(view)):
        assert made.dtype == torch.uint8 and made.numpy().tobytes() == contents[path]
    tensor(view).add_(1)
    assert bytes(view) == contents[path]


def epochs(scene, **options):
    """Paths of the files of an epoch, from the beginning of their contents."""
    options = {"batch_size": BATCH, "seed": 5, "epoch": 1, "group": 2, "task": "torch", **options}
    return Epochs("dl://files", server=scene.address, loader=name_of, **options)


def name_of(view) -> str:
    """Path of a file of `files`."""
    return bytes(view).partition(b"#")[0].decode()


def collate(batch):
    """Returns a batch unchanged."""
    return list(batch)


def loaders(scene, kind, ranks, workers, state=None, token=None):
    """Loader and dataset of each rank."""
    made = []
    for rank in range(ranks):
        dataset = epochs(scene, rank=rank, world=ranks, nodes=1, resume=token)
        loader = kind(dataset, batch_size=BATCH, num_workers=workers, collate_fn=collate)
        if state is not None:
            (loader if kind is StatefulDataLoader else dataset).load_state_dict(state[rank])
        made.append((dataset, loader))
    return made


def steps(made, count=None):
    """Files read by all ranks, step by step."""
    batches = [itertools.islice(loader, count) for _, loader in made]
    return [[name for batch in step for name in batch] for step in zip(*batches)]


def global_order(scene, ranks):
    """Sequence of an undisturbed run: the files of each step of all ranks, as a set."""
    return steps(loaders(scene, DataLoader, ranks, 0))


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
def test_workers_and_ranks_read_one_order(scene, ranks, workers):
    made = loaders(scene, DataLoader, ranks, workers)
    whole = [list(itertools.chain(*loader)) for _, loader in made]
    assert len({len(one) for one in whole}) == 1
    # File k of rank r is file k x ranks + r of the only rank.
    together = [name for step in zip(*whole) for name in step]
    alone = list(epochs(scene, rank=0, world=1))
    assert together == alone[: len(together)] and len(alone) - len(together) < ranks


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("ranks", [1, 3])
def test_a_state_goes_on_exactly(scene, kind, ranks, workers):
    expected = global_order(scene, ranks)
    taken = 9
    made = loaders(scene, kind, ranks, workers)
    assert steps(made, taken) == expected[:taken]
    states = []
    for dataset, loader in made:
        if kind is StatefulDataLoader:
            states.append(loader.state_dict())
        else:
            states.append(dataset.state_dict(batches=taken))
    states = pickle.loads(pickle.dumps(states))
    del made
    assert steps(loaders(scene, kind, ranks, workers, states)) == expected[taken:]


@pytest.mark.parametrize("before", [(1, 0), (2, 2), (3, 4), (3, 0)])
@pytest.mark.parametrize("after", [(1, 2), (2, 0), (3, 1)])
def test_another_number_of_ranks_and_workers_goes_on(scene, before, after):
    ranks, workers = before
    taken = 4
    made = loaders(scene, StatefulDataLoader, ranks, workers)
    read = set(itertools.chain(*steps(made, taken)))
    tokens = {resume(pickle.loads(pickle.dumps(loader.state_dict()))) for _, loader in made}
    [token] = tokens
    assert len(read) == ranks * taken * BATCH
    ranks, workers = after
    rest = [list(itertools.chain(*loader)) for _, loader in loaders(scene, DataLoader, ranks, workers, token=token)]
    together = [name for step in zip(*rest) for name in step]
    alone = list(epochs(scene, rank=0, world=1))
    assert set(alone[: len(read)]) == read
    expected = alone[len(read) :]
    assert together == expected[: len(together)] and len(expected) - len(together) < ranks


@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_goes_on_exactly(scene, tree, kind, workers):
    def loader(rank, state=None):
        here = folder(scene)
        sampler = DistributedChunkSampler(here, rank, 2, seed=4, group=1)
        made = kind(here, batch_size=BATCH, sampler=sampler, num_workers=workers)
        if state is not None:
            (made if kind is StatefulDataLoader else sampler).load_state_dict(state)
        return sampler, made

    whole = [numbers.tolist() for numbers, _ in loader(0)[1]]
    sampler, made = loader(0)
    assert len(made) == len(whole)
    first = [numbers.tolist() for numbers, _ in itertools.islice(made, 3)]
    state = made.state_dict() if kind is StatefulDataLoader else sampler.state_dict(3 * BATCH)
    rest = [numbers.tolist() for numbers, _ in loader(0, state)[1]]
    assert first + rest == whole
    token = resume(state)
    again = ChunkSampler(folder(scene), resume=token)
    left = len(again)
    assert left == len(set(again)) == 150 - 2 * 3 * BATCH


def test_every_epoch_has_another_order_also_in_workers_that_persist(scene):
    dataset = epochs(scene)
    loader = DataLoader(
        dataset, batch_size=BATCH, num_workers=2, persistent_workers=True, collate_fn=collate
    )
    orders = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        orders.append(list(itertools.chain(*loader)))
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_a_state_of_other_settings_is_refused(scene):
    state = epochs(scene, rank=0, world=2).state_dict(batches=1)
    with pytest.raises(ConflictError, match="resume"):
        epochs(scene, rank=0, world=1).load_state_dict(state)
    for wrong in ({}, {"a": [1]}, {"libdiesel": 99}, 3):
        with pytest.raises(InvalidError):
            resume(wrong)
    with pytest.raises(InvalidError):
        epochs(scene, batch_size=0)
    with pytest.raises(InvalidError, match="give both"):
        epochs(scene, rank=1)


def test_a_worker_that_is_killed_is_an_error_within_seconds(scene):
    loader = DataLoader(epochs(scene), batch_size=1, num_workers=2, collate_fn=collate)
    batches = iter(loader)
    next(batches)
    os.kill(batches._workers[0].pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="killed|exited"):
        for _ in batches:
            pass
    assert len(list(loader)) == 600


def descriptors() -> int:
    """Open descriptors of this process."""
    return len(os.listdir("/proc/self/fd"))


def test_loaders_that_start_and_stop_leave_nothing_behind(scene):
    dataset = epochs(scene)
    assert len(dataset.dataset.get_many(range(100))) == 100
    kept = dataset.dataset.view(0)

    def turn():
        loader = DataLoader(dataset, batch_size=BATCH, num_workers=2, collate_fn=collate)
        assert len(next(iter(loader))) == BATCH

    for _ in range(5):
        turn()
    before, memory = descriptors(), private_bytes()
    for _ in range(200):
        turn()
    # The queues of the last loader close a little later.
    wait_for(lambda: descriptors() <= before + 1)
    assert private_bytes() - memory < 8 << 20
    assert multiprocessing.active_children() == []
    assert len(kept) > 0


def test_a_view_is_read_in_a_child_after_its_parent_dropped_it(scene, contents):
    with scene.connect("files", task="torch") as dataset:
        views = list(dataset.view_many(range(40)))
        paths = [dataset.path(number) for number in range(40)]
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.read(reader, 1)
            right = all(bytes(view) == contents[path] for view, path in zip(views, paths))
            os._exit(0 if right else 1)
        views.clear()
        for number in range(600):
            dataset.get(number)
        os.write(writer, b"x")
        _, status = os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
    assert os.waitstatus_to_exitcode(status) == 0


def test_ranks_are_found_in_what_launchers_say():
    for variables, expected in [
        ({"RANK": "1", "WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "2"}, (1, 4, 2)),
        (
            {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_NUM_NODES": "3"},
            (3, 6, 3),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "6"}, (0, 1, 1)),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}, (0, 2, 1)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2, 1)),
        ({"RANK": "x", "WORLD_SIZE": "4"}, (0, 1, 1)),
        ({}, (0, 1, 1)),
    ]:
        found = libdiesel.Ranks.find(variables)
        assert (found.rank, found.world, found.nodes) == expected
    with pytest.raises(InvalidError, match="count from 0"):
        libdiesel.Ranks.find({"RANK": "4", "WORLD_SIZE": "4"})
