"""The peer libraries: how each one writes and reads the files.

`write` makes a dataset below a folder from the files of `data.py`; it returns with a complete
dataset. A reader takes an opened dataset and returns one pass over it: a function that returns the
number of samples and their bytes.
"""

import glob
import os

import loops

# Bytes of a shard, for configurable libraries: the default size of MosaicML Streaming and LitData.
SHARD = 64 << 20


class Lmdb:
    """LMDB: a key is the number of a file in eight bytes; reads share one transaction."""

    def __init__(self, folder):
        self.folder = os.path.join(folder, "lmdb")

    @staticmethod
    def key(number):
        """Key of a file."""
        return number.to_bytes(8, "big")

    def write(self, files):
        """Puts all files in one transaction, in the order of the keys."""
        import lmdb

        size = 2 * files.bytes() + 8192 * len(files) + (64 << 20)
        with lmdb.open(self.folder, map_size=size) as env:
            with env.begin(write=True) as txn:
                for number, (_, data) in enumerate(files):
                    txn.put(self.key(number), data, append=True)

    def begin(self, buffers):
        """Opens the dataset for reading."""
        import lmdb

        self.env = lmdb.open(self.folder, readonly=True, readahead=False, lock=False)
        return self.env.begin(buffers=buffers)

    def keys(self):
        """All keys in a shuffled order, made before the measurement."""
        return [self.key(number) for number in loops.shuffled(self.env.stat()["entries"])]

    def get(self, buffers=False):
        """Single gets in sequence."""
        txn = self.begin(buffers)
        keys = self.keys()
        return lambda: loops.one_by_one(txn.get, keys)

    def get_multi(self, buffers=False):
        """Batches of `Cursor.getmulti`."""
        txn = self.begin(buffers)
        groups = loops.batches(self.keys())

        def get_many(group):
            return [value for _, value in txn.cursor().getmulti(group)]

        return lambda: loops.many(get_many, groups)

    def epoch(self, buffers=False):
        """A typical torch dataset around LMDB, and a random order."""
        from torch.utils.data import Dataset

        txn = self.begin(buffers)
        keys = [self.key(number) for number in range(self.env.stat()["entries"])]

        class Stored(Dataset):
            """Samples by number."""

            def __getitem__(self, number):
                return txn.get(keys[number])

        samples = Stored()
        order = loops.shuffled(len(keys))
        return lambda: loops.epoch(samples[number] for number in order)


class Mds:
    """MosaicML Streaming: shards of its own format, read in place."""

    def __init__(self, folder):
        self.folder = os.path.join(folder, "mds")

    def write(self, files):
        """Writes the samples in sequence."""
        from streaming import MDSWriter

        with MDSWriter(out=self.folder, columns={"data": "bytes"}, size_limit=SHARD) as out:
            for _, data in files:
                out.write({"data": data})

    def epoch(self):
        """Epochs in the default shuffled order."""
        from streaming import StreamingDataset

        dataset = StreamingDataset(local=self.folder, shuffle=True, batch_size=loops.BATCH)
        return lambda: loops.epoch(sample["data"] for sample in dataset)


class LitData:
    """LitData: chunks written by `optimize`, read in place."""

    def __init__(self, folder):
        self.folder = os.path.join(folder, "litdata")

    def write(self, files):
        """Writes with LitData's default number of workers, one for each core."""
        from litdata import optimize

        optimize(
            fn=files.__getitem__, inputs=list(range(len(files))), output_dir=self.folder,
            chunk_bytes=SHARD, start_method="fork", verbose=False,
        )

    def epoch(self):
        """Epochs in the default shuffled order."""
        from litdata import StreamingDataset

        dataset = StreamingDataset(self.folder, shuffle=True)
        return lambda: loops.epoch(dataset)


class WebDataset:
    """WebDataset: tar files in a shuffled order, and a buffer of 1,000 samples."""

    def __init__(self, folder):
        self.folder = os.path.join(folder, "webdataset")

    def write(self, files):
        """Writes the samples in sequence."""
        import webdataset

        os.makedirs(self.folder)
        pattern = os.path.join(self.folder, "%05d.tar")
        with webdataset.ShardWriter(pattern, maxsize=SHARD, verbose=0) as out:
            for number, (_, data) in enumerate(files):
                out.write({"__key__": f"{number:08}", "bin": data})

    def epoch(self):
        """Epochs through the shuffle buffer."""
        import webdataset

        shards = sorted(glob.glob(os.path.join(self.folder, "*.tar")))
        dataset = webdataset.WebDataset(shards, shardshuffle=len(shards)).shuffle(1000)
        return lambda: loops.epoch(sample["bin"] for sample in dataset)


class Lance:
    """Lance: a table with one column, read by `take`."""

    def __init__(self, folder):
        self.folder = os.path.join(folder, "lance")

    def write(self, files):
        """Writes batches of 1,024 rows."""
        import lance
        import pyarrow

        schema = pyarrow.schema([("data", pyarrow.large_binary())])

        def rows():
            batch = []
            for _, data in files:
                batch.append(data)
                if len(batch) == 1024:
                    yield pyarrow.record_batch([pyarrow.array(batch, schema.types[0])], schema)
                    batch = []
            if batch:
                yield pyarrow.record_batch([pyarrow.array(batch, schema.types[0])], schema)

        lance.write_dataset(rows(), self.folder, schema=schema)

    def taken(self):
        """A function that reads a batch, and the batches in a shuffled order."""
        import lance

        dataset = lance.dataset(self.folder)
        groups = loops.batches(loops.shuffled(dataset.count_rows()))

        def take(group):
            return dataset.take(group, columns=["data"]).column(0).to_pylist()

        return take, groups

    def get_many(self):
        """Batches."""
        take, groups = self.taken()
        return lambda: loops.many(take, groups)

    def epoch(self):
        """Single samples from batches."""
        take, groups = self.taken()
        return lambda: loops.epoch(sample for group in groups for sample in take(group))


class Numpy:
    """NumPy: rows of one array in memory, copied to rows of another array. Both arrays begin 64 bytes
    behind a page, so no copy meets the slow offsets of any processor."""

    def __init__(self, folder):
        self.file = os.path.join(folder, "rows.npy")

    @staticmethod
    def rows(count, size):
        """An array of rows of a size."""
        import numpy

        room = numpy.zeros(count * size + 4096, numpy.uint8)
        skipped = (64 - room.ctypes.data) % 4096
        return room[skipped : skipped + count * size].reshape(count, size)

    def write(self, files):
        """Writes the rows to a file."""
        import numpy

        shape = (len(files), files.size)
        stored = numpy.lib.format.open_memmap(self.file, "w+", "u1", shape)
        for number, (_, data) in enumerate(files):
            stored[number] = numpy.frombuffer(data, "u1")

    def copy(self, batch):
        """Batches of copied rows."""
        import numpy

        stored = numpy.load(self.file, mmap_mode="r")
        source, target = self.rows(*stored.shape), self.rows(batch, stored.shape[1])
        source[:] = stored

        def copy_group(group):
            places, end = [], 0
            for row, number in enumerate(group):
                target[row] = source[number]
                places.append(slice(end, end := end + target.shape[1]))
            return places

        groups = loops.batches(loops.shuffled(len(source)), batch)
        return lambda: loops.places(copy_group, groups)


PEERS = {
    "numpy": Numpy,
    "lmdb": Lmdb,
    "mds": Mds,
    "litdata": LitData,
    "webdataset": WebDataset,
    "lance": Lance,
}
