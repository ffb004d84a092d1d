"""Files of every side: the same bytes for all, made from fixed seeds."""

import io
import os

import numpy as np
from PIL import Image

# Number of encodings; pictures of the same encoding differ in the number at their end.
DISTINCT = 256
CLASSES = 100


class Bytes:
    """Files of one size with random bytes from one block in memory."""

    def __init__(self, count, size=4096):
        self.count, self.size = count, size
        self.block = np.random.default_rng(1).bytes(max(1 << 20, 4 * size))

    def __len__(self):
        return self.count

    def bytes(self):
        """Bytes of all files together."""
        return self.count * self.size

    def name(self, number):
        """Path of a file; paths sort like file numbers."""
        return f"part{number // 1000:05}/{number:08}.bin"

    def __getitem__(self, number):
        """Contents of a file; no two files have the same contents."""
        at = number * 8191 % (len(self.block) - self.size)
        head = number.to_bytes(8, "little")
        return head + self.block[at : at + self.size - 8]

    def __iter__(self):
        """Name and contents of every file."""
        for number in range(self.count):
            yield self.name(number), self[number]


class Tree:
    """Files of a folder `train/CLASS/NAME`, the layout of ImageFolder."""

    def __init__(self, folder):
        self.folder = folder
        train = os.path.join(folder, "train")
        self.names = [
            f"train/{label}/{name}"
            for label in sorted(os.listdir(train))
            for name in sorted(os.listdir(os.path.join(train, label)))
        ]

    def __len__(self):
        return len(self.names)

    def bytes(self):
        """Bytes of all files together."""
        return sum(os.path.getsize(os.path.join(self.folder, name)) for name in self.names)

    def name(self, number):
        """Path of a file below the folder."""
        return self.names[number]

    def __getitem__(self, number):
        """Contents of a file."""
        with open(os.path.join(self.folder, self.names[number]), "rb") as file:
            return file.read()

    def __iter__(self):
        """Name and contents of every file."""
        for number, name in enumerate(self.names):
            yield name, self[number]


def picture(rng, kind):
    """A smooth random picture with a little noise, encoded to about 110 KB."""
    size, noise = ((500, 375), 18) if kind == "jpeg" else ((320, 240), 2)
    coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC)).astype(np.int16)
    grain = rng.integers(-noise, noise + 1, smooth.shape[:2])[:, :, None]
    pixels = Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8))
    encoded = io.BytesIO()
    options = {"quality": 95} if kind == "jpeg" else {}
    pixels.save(encoded, kind, **options)
    return encoded.getvalue()


def write_tree(folder, count, kind="jpeg"):
    """Writes `count` pictures, in classes of equal size, and gives the tree.

    A number behind the end of each picture, which decoders pass over, makes all files different.
    """
    rng = np.random.default_rng(2)
    encoded = [picture(rng, kind) for _ in range(min(count, DISTINCT))]
    suffix = "jpg" if kind == "jpeg" else "png"
    for label in range(min(count, CLASSES)):
        os.makedirs(os.path.join(folder, "train", f"class{label:03}"))
    for number in range(count):
        path = f"train/class{number % CLASSES:03}/{number:08}.{suffix}"
        with open(os.path.join(folder, path), "wb") as file:
            file.write(encoded[number % len(encoded)] + number.to_bytes(8, "little"))
    return Tree(folder)
