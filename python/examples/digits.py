"""Trains a classifier of handwritten digits from `dl://digits`, and goes on after any crash.

    dlserver &                                            # or a server that runs already
    python digits.py --put                                # writes the images of scikit-learn once
    python digits.py                                      # one process
    torchrun --nproc-per-node 2 digits.py                 # two, which average their gradients (gloo)

Kill it with `kill -9` at any step and start it again, also with another number of processes: it reads exactly
the samples that an undisturbed run would have read next. Each line of `--trace FILE` is a step of rank 0 with a checksum of its samples; a line
that the crash came too late for is written again.
"""

import argparse
import io
import os
import zlib

import numpy
import torch
import torch.distributed as dist
from PIL import Image
from torchdata.stateful_dataloader import StatefulDataLoader

import libdiesel
from libdiesel.torch import Epochs, Folder, resume


def put(name):
    """Writes the digits that come with scikit-learn as PNG files, one folder for each class."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    with libdiesel.connect(name, create=True) as dataset:
        for number, (pixels, label) in enumerate(zip(digits.images, digits.target)):
            file = io.BytesIO()
            Image.fromarray((pixels * 15).astype(numpy.uint8)).save(file, "PNG")
            part = "test" if number % 5 == 0 else "train"
            dataset.put(f"{part}/{label}/{number:05}.png", file.getvalue())
        print(f"{dataset.flush()} images put into {name}")


def to_tensor(image):
    """The pixels of an image, from 0 to 1."""
    return torch.from_numpy(numpy.array(image.convert("L"), dtype=numpy.float32) / 255).flatten()


def save(file, state):
    """Replaces a file as a whole: a crash leaves the old one or the new one."""
    torch.save(state, f"{file}.new")
    os.replace(f"{file}.new", file)


def accuracy(model, name):
    """The share of the test images that the model names rightly."""
    loader = torch.utils.data.DataLoader(Folder(f"{name}/test", to_tensor), batch_size=256)
    with torch.no_grad():
        right = [(model(images).argmax(1) == labels).float() for images, labels in loader]
    return torch.cat(right).mean().item()


def train(options):
    """Trains for some epochs, from the last checkpoint on."""
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    rank, world = libdiesel.Ranks.find().rank, libdiesel.Ranks.find().world
    trained = model
    if world > 1:
        dist.init_process_group("gloo")
        trained = torch.nn.parallel.DistributedDataParallel(model)
    saved = torch.load(options.checkpoint) if os.path.exists(options.checkpoint) else {}
    if saved:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    data = Epochs(
        Folder(f"{options.data}/train", to_tensor),
        batch_size=options.batch,
        seed=1,
        resume=saved.get("token"),
    )
    loader = StatefulDataLoader(data, batch_size=options.batch, num_workers=options.workers)


    trace = open(options.trace, "a") if options.trace and rank == 0 else None
    step = saved.get("step", 0)
    for epoch in range(data.epoch, options.epochs):
        data.set_epoch(epoch)
        loss = None
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(trained(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if trace:
                print(step, f"{zlib.crc32(images.numpy().tobytes()):08x}", file=trace, flush=True)
            if step % options.every == 0 and rank == 0:
                # Where one rank is, all are, and any number of ranks and workers goes on from there.
                state = {"step": step, "token": resume(loader.state_dict())}
                state |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                save(options.checkpoint, state)
        if rank == 0 and loss is not None:
            print(f"epoch {epoch}: loss {loss:.3f}, accuracy {accuracy(model, options.data):.3f}")
    if world > 1:
        dist.destroy_process_group()


def main():
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="dl://digits")
    parser.add_argument("--put", action="store_true", help="write the images, and end")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--checkpoint", default="digits.checkpoint")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--trace", help="a file that gets a line for each step")
    options = parser.parse_args()
    if options.put:
        put(options.data)
    else:
        torch.manual_seed(0)
        train(options)


if __name__ == "__main__":
    main()
