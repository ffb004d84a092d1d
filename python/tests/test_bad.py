"""Bad samples: errors name the file, an iteration goes on, and a substitute takes the place of the sample."""

import os
import signal
import traceback

import pytest
import torch
from scene import wait_for
from torch.utils.data import DataLoader

from libdiesel.torch import ChunkSampler, Epochs, Folder

BATCH = 7

#: Numbers of the files that `bad` can't decode.
BAD = {17, 18, 411}


def number_of(view):
    """Number of a file of `files`."""
    return int(bytes(view)[4:9])


def decode(view):
    """The same; a few files are bad."""
    if (number := number_of(view)) in BAD:
        raise KeyError("no such header")
    return number


def refuse(number):
    """A transform that fails for the same files."""
    return decode(b"000/%05d.bin#" % number)


def collate(batch):
    """Returns a batch unchanged."""
    return list(batch)


def read(iterator):
    """All items of an iterator, and the errors in between."""
    items, errors = [], []
    iterator = iter(iterator)
    while True:
        try:
            items.append(next(iterator))
        except StopIteration:
            return items, errors
        except Exception as error:
            errors.append(error)


def folder(**options):
    """All files, in seven classes."""
    return Folder("dl://files", extensions=None, task="torch", **options)


def all_of(kind, **options):
    """The files in the order of an epoch: of a dataset or of a folder."""
    if kind == "files":
        return Epochs("dl://files", batch_size=BATCH, seed=3, group=2, task="torch", **options)
    return Epochs(folder(**options), batch_size=BATCH, seed=3, group=2)


def numbers_of(kind, items):
    """The numbers of samples."""
    return [number if kind == "files" else number[0] for number in items]


@pytest.mark.parametrize("kind", ["files", "folder"])
@pytest.mark.parametrize("wrong", ["loader", "transform"])
def test_an_epoch_goes_on_behind_a_bad_sample_and_names_it(scene, kind, wrong):
    options = {"loader": decode} if wrong == "loader" else {"loader": number_of, "transform": refuse}
    items, errors = read(all_of(kind, **options))
    whole = numbers_of(kind, all_of(kind, loader=number_of))
    assert numbers_of(kind, items) == [number for number in whole if number not in BAD]
    assert len(errors) == len(BAD)
    for error in errors:
        assert type(error) is KeyError
        assert any("dl://files/" in note for note in error.__notes__), error.__notes__
    named = "".join("".join(traceback.format_exception(error)) for error in errors)
    assert all(f"dl://files/{number % 7:03}/{number:05}.bin" in named for number in BAD)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_goes_on_behind_a_bad_sample(scene, workers):
    def loader(data):
        return DataLoader(data, batch_size=BATCH, num_workers=workers, collate_fn=collate)

    batches, errors = read(loader(all_of("files", loader=decode)))
    seen = [number for batch in batches for number in batch]
    assert len(errors) == len(BAD) and all("dl://files/" in trace(error) for error in errors)
    assert len(seen) == len(set(seen)) >= 600 - len(BAD) * BATCH and not BAD & set(seen)
    data = folder(loader=decode)
    sampler = ChunkSampler(data, seed=3)
    loader = DataLoader(data, BATCH, sampler=sampler, num_workers=workers, collate_fn=collate)
    batches, errors = read(loader)
    assert 0 < len(errors) <= len(BAD) and all("dl://files/" in trace(error) for error in errors)
    assert len(batches) + len(errors) == len(loader)


def trace(error):
    """The text of an error as Python shows it."""
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("kind", ["files", "folder"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_can_not_be_decoded_has_a_substitute(scene, caplog, kind, workers):
    data = all_of(kind, loader=decode, on_bad="substitute")
    loader = DataLoader(data, batch_size=BATCH, num_workers=workers, collate_fn=collate)
    orders = []
    for epoch in (0, 0):
        data.set_epoch(epoch)
        orders.append([number for batch in loader for number in numbers_of(kind, batch)])
    assert orders[0] == orders[1] and len(orders[0]) == 600 and not BAD & set(orders[0])
    warned = [record.message for record in caplog.records if "replaces it" in record.message]
    assert workers or (len(warned) == len(BAD) and "00017.bin: KeyError" in "".join(warned))
    # A loader that decodes nothing has no substitutes.
    with pytest.raises(ZeroDivisionError):
        next(iter(all_of(kind, loader=lambda view: 1 // 0, on_bad="substitute")))


def test_options_of_a_folder_are_not_given_to_its_epochs(scene):
    for options in ({"loader": decode}, {"transform": refuse}, {"on_bad": "substitute"}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} belongs to the folder"):
            Epochs(folder(), batch_size=BATCH, **options)


def first_bytes(view):
    """The start of a file."""
    return bytes(view)[:5]


def test_a_server_that_is_away_for_a_while_loses_no_sample(scene):
    scene.put("away", {f"{number:04}": b"%05d" % number * 30_000 for number in range(200)})
    options = {"batch_size": BATCH, "task": False, "timeout": 1.0, "loader": first_bytes}
    iterator = iter(Epochs("dl://away", **options))
    scene.pause()
    try:
        for _ in range(2):
            with pytest.raises((TimeoutError, ConnectionError)):
                next(iterator)
    finally:
        scene.go_on()
    assert sorted(iterator) == [b"%05d" % number for number in range(200)]


def test_a_forked_child_opens_folders_and_epochs(scene):
    assert len(all_of("folder", loader=decode, on_bad="substitute")) == 600
    # Starts the threads of OpenMP, which a child does not have.
    torch.zeros(1 << 20).add_(1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            files = list(all_of("files", loader=number_of, on_bad="substitute"))
            samples = list(all_of("folder", loader=number_of, on_bad="substitute"))
            status = 0 if len(files) == len(samples) == 600 else 2
        finally:
            os._exit(status)
    ended = []
    try:
        wait_for(lambda: ended.extend(one for one in [os.waitpid(child, os.WNOHANG)] if one[0]) or ended)
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        raise
    assert ended[0][1] == 0


def same(view):
    """A view as it is."""
    return view


def test_views_leave_the_workers_of_a_loader_as_bytes(scene, contents):
    data = Epochs("dl://files", batch_size=BATCH, task="torch", loader=same)
    loader = DataLoader(data, batch_size=BATCH, num_workers=2, collate_fn=collate)
    files = [file for batch in loader for file in batch]
    assert all(type(file) is bytes for file in files)
    assert sorted(files) == sorted(contents.values())
