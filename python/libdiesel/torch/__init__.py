"""Datasets and samplers for PyTorch, in chunk-wise shuffled order, with exact resume.

``Folder`` replaces ``torchvision.datasets.ImageFolder``, and ``ChunkSampler`` gives its samples in an
order of whole chunks. ``Epochs`` combines both as an iterable dataset, and ``Samples`` joins files of equal stems
as WebDataset does. ``Mixed`` draws from several ``Epochs`` by weights. A state saved in the middle of an
epoch is loaded by ``load_state_dict``. ``resume`` converts the state into a token, from which any number of
workers and ranks can continue.
"""

from libdiesel.torch._epochs import Epochs
from libdiesel.torch._folder import Folder, image, tensor
from libdiesel.torch._mixed import Mixed
from libdiesel.torch._order import resume
from libdiesel.torch._sampler import ChunkSampler, DistributedChunkSampler
from libdiesel.torch._samples import Samples

__all__ = [
    "ChunkSampler",
    "DistributedChunkSampler",
    "Epochs",
    "Folder",
    "Mixed",
    "Samples",
    "image",
    "resume",
    "tensor",
]
