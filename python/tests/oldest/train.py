"""Folders, samplers, epochs, tensors and resumed states with an old PyTorch, as a program without pytest."""

import os
import sys
import tempfile
from pathlib import Path

import torch
from torch.utils.data import DataLoader, DistributedSampler

sys.path.insert(0, str(Path(__file__).parents[1]))

from scene import Scene, bytes_of  # noqa: E402

from libdiesel.torch import (  # noqa: E402
    ChunkSampler,
    DistributedChunkSampler,
    Epochs,
    Folder,
    resume,
    tensor,
)

BATCH = 7


def name_of(view):
    """Path of a file."""
    return bytes(view).partition(b"#")[0].decode()


def shared(view):
    """The size of a tensor without a copy."""
    return tensor(view, share=True).sum()


def main():
    """Reads all files in every way."""
    paths = [f"{number % 3}/{number:03}" for number in range(200)]
    scene.put("old", {path: bytes_of(path, 5_000) for path in paths}, chunk_size=1 << 20)
    folder = Folder("dl://old", loader=name_of, extensions=None, task="old")
    for sampler in (ChunkSampler(folder), DistributedChunkSampler(folder, 0, 1)):
        loader = DataLoader(folder, BATCH, sampler=sampler, num_workers=2)
        assert sorted(name for names, _ in loader for name in names) == sorted(paths)
    assert isinstance(sampler, DistributedSampler)
    data = Epochs("dl://old", batch_size=BATCH, loader=name_of, task="old")
    whole = list(DataLoader(data, BATCH, num_workers=2, collate_fn=list))
    token = resume(data.state_dict(batches=5))
    data = Epochs("dl://old", batch_size=BATCH, loader=name_of, task="old", resume=token)
    assert list(DataLoader(data, BATCH, num_workers=2, collate_fn=list)) == whole[5:]
    data = Epochs("dl://old", batch_size=BATCH, loader=shared, task="old")
    sums = sorted(int(one) for batch in DataLoader(data, BATCH, num_workers=2) for one in batch)
    assert sums == sorted(sum(bytes_of(path, 5_000)) for path in paths)
    print(f"torch {torch.__version__} read {len(paths)} files in every way")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        scene = Scene(Path(place))
        os.environ.update(scene.environment())
        try:
            main()
        finally:
            scene.end()
