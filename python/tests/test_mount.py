"""A dataset as a folder, for libraries that only know files."""

import os

import pytest
from PIL import Image
from torch.utils.data import DataLoader

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


class ImageFolder:
    """As torchvision's: the folders are classes, and the samples are found by a walk."""

    def __init__(self, root):
        self.classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
        self.samples = [
            (os.path.join(folder, file), number)
            for number, name in enumerate(self.classes)
            for folder, _, files in sorted(os.walk(os.path.join(root, name)))
            for file in sorted(files)
            if file.endswith(".png")
        ]

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        path, target = self.samples[index]
        with open(path, "rb") as file:
            return target, Image.open(file).convert("RGB").tobytes()


@pytest.mark.parametrize("workers", [0, 4])
def test_a_folder_of_images_is_read_by_workers(scene, tree, folder, workers):
    with libdiesel.mount("dl://images/train", folder, task="mounted"):
        scene.tasks.add("mounted")
        dataset, local = ImageFolder(folder), ImageFolder(tree)
        loader = DataLoader(dataset, batch_size=8, num_workers=workers, collate_fn=list)
        read = [pair for batch in loader for pair in batch]
        assert len(read) == len(local) > 0
        assert read == [local[at] for at in range(len(local))]
