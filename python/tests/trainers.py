"""Trainings by real trainers, to be started by torchrun: each rank writes the samples of each of its epochs.

The last argument is a file for rank 0: a list, for each rank, of the numbers of the read files by scenario and
epoch. Every scenario that ends with an error has its text instead. A rank that hangs ends with the name of its
scenario, and with the stacks of its threads and of its workers.
"""

import contextlib
import datetime
import faulthandler
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from libdiesel.torch import ChunkSampler, DistributedChunkSampler, Epochs, Folder

EPOCHS, BATCH = 2, 10

#: Batches of a rank before the stop in the second epoch.
STOP = 4

#: Seconds for all scenarios, and for one answer of another rank.
TIME, ANSWER = 240, 60


def number_of(view):
    """Number of a file of `files`."""
    return int(bytes(view)[4:9])


def folder():
    """All files, in seven classes."""
    return Folder("dl://files", loader=number_of, extensions=None, task="trainers")


def shares(**options):
    """The share of this rank, as an iterable dataset."""
    return Epochs(folder(), batch_size=BATCH, seed=1, **options)


def loader(data, kind=DataLoader, sampler=None, **options):
    """A loader with workers."""
    return kind(data, batch_size=BATCH, sampler=sampler, num_workers=1, **options)


def dealt(**options):
    """A loader of the whole order, for trainers that deal batches to ranks."""
    data = folder()
    return loader(data, sampler=ChunkSampler(data, seed=1), **options)


def share(kind=DataLoader, **options):
    """A loader of this rank's share."""
    data = folder()
    return loader(data, kind, DistributedChunkSampler(data, seed=1), **options)


class Seen(dict):
    """Numbers of the files read, by epoch."""

    def add(self, epoch, batch):
        """Adds a batch, and returns a loss without a meaning."""
        numbers = batch[0] if isinstance(batch, (list, tuple)) else batch
        self.setdefault(epoch, []).extend(numbers.tolist())


def with_accelerate():
    """The scenarios of Accelerate."""
    from accelerate import Accelerator, DataLoaderConfiguration

    def accelerator(**options):
        return Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))

    def train(loader, seen, start=(0, 0), stop=None):
        for epoch in range(start[0], EPOCHS):
            loader.set_epoch(epoch)
            batches = loader
            if epoch == start[0] and start[1]:
                batches = plain.skip_first_batches(loader, start[1])
            for step, batch in enumerate(batches):
                if (epoch, step) == stop:
                    return seen
                seen.add(epoch, batch)
        return seen

    def own():
        data, seen = shares(), Seen()
        for epoch in range(EPOCHS):
            data.set_epoch(epoch)
            for batch in loader(data, persistent_workers=True):
                seen.add(epoch, batch)
        return seen

    def by_token():
        seen = train(plain.prepare(dealt()), Seen(), stop=(1, STOP))
        data = folder()
        sampler = ChunkSampler(data, seed=1)
        sampler.set_epoch(1)
        state = sampler.state_dict(STOP * BATCH * plain.num_processes)
        sampler = ChunkSampler(data, seed=1)
        sampler.load_state_dict(state)
        again = plain.prepare(loader(data, sampler=sampler))
        return train(again, seen, start=(sampler.epoch, 0))

    plain = accelerator()
    stopped = train(plain.prepare(dealt()), Seen(), stop=(1, STOP))
    whole = {"rank": 0, "world": 1}
    return {
        "sampler": lambda: train(plain.prepare(dealt()), Seen()),
        "persistent": lambda: train(plain.prepare(dealt(persistent_workers=True)), Seen()),
        "split": lambda: train(accelerator(split_batches=True).prepare(dealt()), Seen()),
        "dispatched": lambda: train(accelerator(dispatch_batches=True).prepare(dealt()), Seen()),
        "stateful": lambda: train(
            accelerator(use_stateful_dataloader=True).prepare(dealt()), Seen()
        ),
        "skipped": lambda: train(plain.prepare(dealt()), stopped, start=(1, STOP)),
        "by token": by_token,
        "own epochs": own,
        "whole epochs": lambda: train(plain.prepare(loader(shares(**whole))), Seen()),
        "whole epochs, sharded": lambda: train(
            accelerator(dispatch_batches=False).prepare(loader(shares(**whole))), Seen()
        ),
        "refused epochs": lambda: train(plain.prepare(loader(shares())), Seen()),
        "refused epochs, sharded": lambda: train(
            accelerator(dispatch_batches=False).prepare(loader(shares())), Seen()
        ),
        "refused share": lambda: train(plain.prepare(share()), Seen()),
    }


def with_lightning():
    """The scenarios of Lightning."""
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self, seen, stop=None):
            super().__init__()
            self.layer, self.seen, self.stop = torch.nn.Linear(1, 1), seen, stop

        def training_step(self, batch, number):
            self.seen.add(self.current_epoch, batch)
            return self.layer(batch[0][:, None].float()).mean() * 0

        def on_train_batch_end(self, result, batch, number):
            if (self.current_epoch, number + 1) == self.stop:
                self.trainer.save_checkpoint(checkpoint)
                self.trainer.should_stop = True
                self.trainer.limit_train_batches = 0

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

    class SetEpoch(lightning.Callback):
        def on_train_epoch_start(self, trainer, model):
            trainer.train_dataloader.dataset.set_epoch(trainer.current_epoch)

    checkpoint = str(files / "lightning.ckpt")

    def train(loader, seen, callbacks=(), stop=None, resume=False):
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=2,
            strategy="ddp",
            max_epochs=EPOCHS,
            callbacks=list(callbacks),
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=files,
        )
        trainer.fit(Model(seen, stop), loader, ckpt_path=checkpoint if resume else None)
        return seen

    def resumed(make, callbacks=()):
        seen = train(make(), Seen(), callbacks, stop=(1, STOP))
        seen = Seen({epoch: list(numbers) for epoch, numbers in seen.items()})
        seen[1] = seen[1][: STOP * BATCH]
        return train(make(), seen, callbacks, resume=True)

    return {
        "share": lambda: train(share(), Seen()),
        "persistent": lambda: train(share(persistent_workers=True), Seen()),
        "dealt": lambda: train(dealt(), Seen()),
        "epochs": lambda: train(loader(shares()), Seen(), [SetEpoch()]),
        "share, resumed": lambda: resumed(lambda: share(StatefulDataLoader)),
        "epochs, resumed": lambda: resumed(
            lambda: loader(shares(), StatefulDataLoader), [SetEpoch()]
        ),
    }


def with_transformers():
    """The scenarios of Hugging Face's Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Model(torch.nn.Module):
        def __init__(self, seen):
            super().__init__()
            self.layer, self.seen = torch.nn.Linear(1, 1), seen

        def forward(self, numbers):
            self.seen.add(int(trainer_of[0].state.epoch), numbers)
            return {"loss": self.layer(numbers[:, None].float()).mean() * 0}

    class ChunkTrainer(Trainer):
        def _get_train_sampler(self, train_dataset=None):
            return ChunkSampler(self.train_dataset, seed=1)

    class Stop(TrainerCallback):
        def on_step_end(self, arguments, state, control, **rest):
            if state.global_step == stop:
                control.should_save = control.should_training_stop = True

    trainer_of = [None]
    stop = 600 // BATCH // 2 + STOP

    def train(data, seen, kind=ChunkTrainer, callbacks=(), name="plain", resume=False, **options):
        arguments = TrainingArguments(
            output_dir=files / name,
            per_device_train_batch_size=BATCH,
            num_train_epochs=EPOCHS,
            use_cpu=True,
            dataloader_num_workers=1,
            remove_unused_columns=False,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **options,
        )
        trainer_of[0] = kind(
            Model(seen),
            arguments,
            train_dataset=data,
            data_collator=lambda batch: {"numbers": torch.tensor([number for number, _ in batch])},
            callbacks=list(callbacks),
        )
        trainer_of[0].train(resume_from_checkpoint=resume)
        return seen

    def resumed():
        seen = train(folder(), Seen(), callbacks=[Stop()], name="resumed")
        return train(folder(), seen, name="resumed", resume=True)

    return {
        "sampler": lambda: train(folder(), Seen()),
        "persistent": lambda: train(folder(), Seen(), dataloader_persistent_workers=True),
        "resumed": resumed,
        "refused epochs": lambda: train(shares(), Seen(), kind=Trainer),
    }


@contextlib.contextmanager
def limited_time():
    """Ends a rank that hangs; it and its workers tell their stacks."""

    def ask_workers():
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGUSR1)

    # Children of a fork inherit it.
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    asking = threading.Timer(TIME, ask_workers)
    asking.daemon = True
    asking.start()
    faulthandler.dump_traceback_later(TIME + 5, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
    asking.cancel()
    asking.join()


def main():
    """All scenarios of a trainer."""
    made = {"accelerate": with_accelerate, "lightning": with_lightning}
    scenarios = {**made, "transformers": with_transformers}[sys.argv[1]]()
    found = {}
    for name, run in scenarios.items():
        print(f"rank {dist.get_rank()}: {name}", file=sys.stderr, flush=True)
        try:
            found[name] = run()
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
            print(f"rank {dist.get_rank()}: {found[name]}", file=sys.stderr, flush=True)
    everything = [None] * dist.get_world_size()
    dist.all_gather_object(everything, found)
    if dist.get_rank() == 0:
        Path(sys.argv[2]).write_text(json.dumps(everything))
    dist.destroy_process_group()


if __name__ == "__main__":
    with limited_time():
        dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=ANSWER))
        places = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
        dist.broadcast_object_list(places)
        files = Path(places[0])
        main()
