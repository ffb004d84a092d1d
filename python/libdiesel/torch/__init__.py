"""Datasets and samplers for PyTorch, in chunk-wise shuffled order, which go on exactly where they stopped.

``Folder`` stands for ``torchvision.datasets.ImageFolder``, and ``ChunkSampler`` gives its samples in an
order that reads whole chunks. ``Epochs`` is both in one, as an iterable dataset. A state that was saved in
the middle of an epoch is loaded by ``load_state_dict``; ``resume`` takes a token out of it with which
another number of workers or ranks goes on.
"""

from libdiesel.torch._epochs import Epochs
from libdiesel.torch._folder import Folder, image, tensor
from libdiesel.torch._order import resume
from libdiesel.torch._sampler import ChunkSampler, DistributedChunkSampler

__all__ = [
    "ChunkSampler",
    "DistributedChunkSampler",
    "Epochs",
    "Folder",
    "image",
    "resume",
    "tensor",
]
