"""A dataset as a folder, for libraries that only know files."""

import os

import h5py
import numpy
import pytest
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms.functional import pil_to_tensor

import libdiesel
from libdiesel import errors

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK),
    reason="a mount needs root and /dev/fuse",
)


@pytest.fixture
def folder(tmp_path):
    """An empty folder."""
    folder = tmp_path / "mnt"
    folder.mkdir()
    return folder


def test_a_dataset_is_a_folder_for_the_block(scene, contents, folder):
    with libdiesel.mount("dl://files", folder, task="mounted") as mount:
        scene.tasks.add("mounted")
        for path in list(contents)[::17]:
            assert (folder / path).read_bytes() == contents[path]
        assert mount.path == str(folder) and mount.status()["state"] == "held"
        held = (folder / next(iter(contents))).open("rb")
        with pytest.raises(errors.LocalError, match="in use by"):
            mount.unmount()
        held.close()
    assert os.listdir(folder) == []
    with pytest.raises(errors.NotFoundError, match="no dataset is mounted"):
        mount.unmount()


def test_a_mount_that_can_not_be_raises(scene, folder):
    for dataset, kind in [("dl://none", errors.NotFoundError), ("files", errors.InvalidError)]:
        with pytest.raises(kind):
            libdiesel.mount(dataset, folder)
    with pytest.raises(errors.InvalidError, match="no such option"):
        libdiesel.mount("dl://files", folder, options=["speed"])
    with pytest.raises(errors.UnreachableError):
        libdiesel.mount("dl://files", folder, server="127.0.0.1:9")
    (folder / "file").write_text("text")
    with pytest.raises(errors.ConflictError, match="not empty"):
        libdiesel.mount("dl://files", folder)


@pytest.mark.parametrize("workers", [0, 4])
def test_image_folder_reads_a_mount_as_local_files(scene, tree, folder, workers):
    with libdiesel.mount("dl://images/train", folder, task="mounted"):
        scene.tasks.add("mounted")
        read, local = (
            [
                (batch.numpy().tobytes(), targets.tolist())
                for batch, targets in DataLoader(
                    ImageFolder(root, pil_to_tensor), batch_size=8, num_workers=workers
                )
            ]
            for root in (folder, tree)
        )
        assert len(read) == 19 and read == local
        names = [dataset.classes for dataset in map(ImageFolder, (folder, tree))]
        assert names[0] == names[1] == ["ant", "bee", "cat"]


def test_h5py_reads_a_mount(scene, folder, tmp_path):
    numbers = numpy.random.default_rng(1).integers(0, 1 << 30, (500, 1_000))
    local = tmp_path / "numbers.h5"
    with h5py.File(local, "w") as file:
        file["plain"] = numbers
        file.create_dataset("group/packed", data=numbers, chunks=(50, 100), compression="gzip")
        file["plain"].attrs["unit"] = "m"
    scene.put("hdf5", {"numbers.h5": local.read_bytes()}, chunk_size=1 << 20)
    with libdiesel.mount("dl://hdf5", folder, task="mounted"):
        scene.tasks.add("mounted")
        for options in ({}, {"driver": "stdio"}, {"driver": "core"}):
            with h5py.File(folder / "numbers.h5", "r", **options) as file:
                assert file["plain"].attrs["unit"] == "m"
                assert (file["plain"][7:400:13] == numbers[7:400:13]).all()
                assert (file["group/packed"][:, 123:456] == numbers[:, 123:456]).all()
        with pytest.raises(OSError, match="Read-only file system"):
            h5py.File(folder / "numbers.h5", "a")
