"""What is trained on: real digits, and made up classes.

Every set gives its training samples sorted by class, as somebody puts a folder for each class.
"""

from dataclasses import dataclass

import numpy as np
from sklearn.datasets import load_digits


@dataclass
class Dataset:
    name: str
    classes: int
    train: np.ndarray  # one row of float32 for each sample, sorted by class
    labels: np.ndarray
    test: np.ndarray
    test_labels: np.ndarray
    per_chunk: int  # samples of one chunk
    batch: int
    epochs: int
    rate: float  # of learning
    hidden: int  # units of the hidden layer


def digits(per_chunk=5, epochs=20):
    """1,797 handwritten digits of 8 by 8 pixels, which come with scikit-learn; 1,400 to train with."""
    found = load_digits()
    pixels = (found.data / 16.0).astype(np.float32)
    picked = np.random.default_rng(0).permutation(len(pixels))
    train, test = picked[:1400], picked[1400:]
    train = train[np.argsort(found.target[train], kind="stable")]
    return Dataset(
        "digits", 10, pixels[train], found.target[train], pixels[test], found.target[test],
        per_chunk=per_chunk, batch=32, epochs=epochs, rate=0.05, hidden=64,
    )


def clusters(classes, per_chunk, spread, train=40_000, test=8_000, modes=3, width=32, epochs=10):
    """Classes of several Gaussian clusters each, which overlap."""
    rng = np.random.default_rng(classes)
    centres = rng.normal(size=(classes, modes, width))

    def draw(count):
        labels = np.arange(count) * classes // count
        modes_of = rng.integers(modes, size=count)
        noise = rng.normal(scale=spread, size=(count, width))
        return (centres[labels, modes_of] + noise).astype(np.float32), labels

    samples, labels = draw(train)
    tests, test_labels = draw(test)
    return Dataset(
        f"clusters, {classes} classes", classes, samples, labels, tests, test_labels,
        per_chunk=per_chunk, batch=128, epochs=epochs, rate=0.05, hidden=128,
    )


def every():
    return [digits(), clusters(20, 50, 1.3), clusters(200, 50, 0.8)]
