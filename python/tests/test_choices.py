"""Parts of a dataset: valid files, subsets, paths; and samples with their paths."""

import random

import pytest
import torch

from libdiesel import errors
from libdiesel.torch import ChunkSampler, DistributedChunkSampler, Epochs, Folder
from torch.utils.data import DataLoader, Subset, random_split


def test_a_function_chooses_the_valid_files(scene, tree):
    import torchvision

    def is_valid(path):
        return path.endswith(".png") and "/0/" in path

    there = torchvision.datasets.ImageFolder(tree, is_valid_file=is_valid)
    seen = []
    with scene.connect("images", task="valid") as dataset:
        here = Folder("dl://images/train", dataset=dataset, is_valid_file=lambda path: seen.append(path) or is_valid(path))
        assert len(here) == len(there) and here.classes == there.classes
        assert sorted(path.removeprefix("dl://images/train/") for path, _ in here.samples) == sorted(
            path.removeprefix(f"{tree}/") for path, _ in there.samples
        )
        assert here.targets == there.targets and len(seen) == len(set(seen)) > len(here)
        assert {sample.tobytes() for sample, _ in here} == {sample.tobytes() for sample, _ in there}
        sampler = ChunkSampler(here)
        assert sorted(sampler) == list(range(len(here)))
        with pytest.raises(errors.InvalidError, match="extensions and is_valid_file"):
            Folder("dl://images/train", dataset=dataset, is_valid_file=is_valid, extensions=[".png"])
        with pytest.raises(TypeError, match="is_valid_file"):
            Folder("dl://images/train", dataset=dataset, is_valid_file=3)
        with pytest.raises(errors.NotFoundError, match="is_valid_file"):
            Folder("dl://images/train", dataset=dataset, is_valid_file=lambda path: "/ant/" in path)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_orders_a_part_of_a_folder(scene, tree, workers):
    with scene.connect("images", task="subset") as dataset:
        folder = Folder("dl://images/train", dataset=dataset, loader=bytes)
        indexes = random.Random(5).sample(range(len(folder)), 60)
        part = Subset(folder, indexes)
        first, second = random_split(part, [40, 20], torch.Generator().manual_seed(3))
        for chosen in (part, first, second):
            sampler = ChunkSampler(chosen, seed=2)
            assert len(sampler) == len(chosen)
            loader = DataLoader(chosen, 7, sampler=sampler, num_workers=workers, collate_fn=list)
            for epoch in range(2):
                sampler.set_epoch(epoch)
                read = [sample for batch in loader for sample in batch]
                assert sorted(read) == sorted(chosen[index] for index in range(len(chosen)))
        ranks = [list(DistributedChunkSampler(part, rank=rank, world=2)) for rank in range(2)]
        assert sorted(ranks[0] + ranks[1]) == list(range(60))
        # A resumed order goes on with the part.
        sampler = ChunkSampler(part, seed=2)
        order = list(sampler)
        again = ChunkSampler(part, seed=2)
        state = sampler.state_dict(25)
        again.load_state_dict(state)
        assert list(again) == order[25:]
        with pytest.raises(errors.ConflictError):
            other = ChunkSampler(first, seed=2)
            other.load_state_dict(state)
            list(other)
        with pytest.raises(errors.InvalidError, match="twice"):
            ChunkSampler(Subset(folder, [1, 2, 1]))
        with pytest.raises(errors.InvalidError, match="Folder"):
            ChunkSampler(Subset(list(range(9)), [1]))


def test_epochs_read_chosen_paths_and_name_them(scene, tree):
    with scene.connect("images", task="paths") as dataset:
        below = sorted(dataset.walk("train/ant"))
        files = ["train/outside.png", "train/ant"]
        epochs = Epochs(dataset, batch_size=8, paths=files, with_path=True)
        read = dict(epochs)
        assert sorted(read) == sorted([*below, "train/outside.png"]) and len(epochs) == len(read)
        assert all(read[path] == dataset.get(path) for path in read)
        loader = DataLoader(epochs, 8, num_workers=2, collate_fn=list)
        assert sorted(path for batch in loader for path, _ in batch) == sorted(read)
        folder = Folder("dl://images/train", dataset=dataset, loader=bytes)
        for path, sample, target in Epochs(folder, batch_size=8, with_path=True):
            assert sample == dataset.get(path) and folder.classes[target] == path.split("/")[1]
    inside = Epochs("dl://images/train", batch_size=8, paths=["ant"], with_path=True, server=scene.address, task=False)
    assert sorted(path for path, _ in inside) == below
    for wrong, error in [("ant", TypeError), ([], errors.InvalidError)]:
        with pytest.raises(error, match="paths"):
            Epochs("dl://images", batch_size=8, paths=wrong, server=scene.address)
    with pytest.raises(errors.InvalidError, match="paths"):
        Epochs(folder, batch_size=8, paths=["ant"])
    missing = Epochs("dl://images", batch_size=8, paths=["no/such"], server=scene.address, task=False)
    with pytest.raises(errors.NotFoundError, match="no/such"):
        list(missing)


def test_a_wait_for_the_cache_tells_its_progress(scene, contents):
    with scene.connect("files", task="prefetched") as dataset:
        seen = []
        present, chunks = dataset.prefetch(wait=True, progress=lambda *numbers: seen.append(numbers))
        assert present == chunks > 5 and seen[-1] == (present, chunks)
        assert [now for now, _ in seen] == sorted(now for now, _ in seen)
        status = dataset.status()
        assert status["chunks_present"] == chunks and status["misses"] == 0
        assert dataset.prefetch("000", wait=True)[0] > 0
        with pytest.raises(errors.NotFoundError):
            dataset.prefetch("no/such", wait=True)
    with scene.connect("files", task=False) as dataset:
        for call in (dataset.status, dataset.prefetch):
            with pytest.raises(errors.InvalidError, match="task"):
                call()
