"""Programs on top of fsspec read and write datasets unchanged."""

import io
import multiprocessing
import os
import pickle

import dask
import dask.bag
import dask.dataframe
import datasets
import fsspec
import h5py
import numpy
import pandas
import pyarrow.dataset
import pyarrow.fs
import pytest
import upath
import zarr

from libdiesel.fsspec import DieselFileSystem

TABLE = pandas.DataFrame({"number": range(2000), "name": [f"row {number}" for number in range(2000)]})


@pytest.fixture
def root(scene):
    """The name of a new dataset."""
    name = f"users{os.urandom(4).hex()}"
    yield name
    fs = DieselFileSystem(skip_instance_cache=True)
    if fs.exists(name):
        fs.rm(name, recursive=True)
    DieselFileSystem.clear_instance_cache()


@pytest.fixture
def hub(tmp_path):
    """A cache folder of Hugging Face."""
    datasets.disable_progress_bars()
    return str(tmp_path / "cache")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_pandas(root, form):
    address = f"dl://{root}/tables/a.{form}"
    if form == "csv":
        TABLE.to_csv(address, index=False)
        read = pandas.read_csv(address)
    else:
        TABLE.to_parquet(address)
        read = pandas.read_parquet(address, columns=["number"])
        assert list(read.columns) == ["number"]
        read = pandas.read_parquet(address)
    pandas.testing.assert_frame_equal(read, TABLE, check_dtype=False)


def test_pyarrow_writes_and_filters_a_partitioned_dataset(root):
    fs = fsspec.filesystem("dl")
    table = pyarrow.Table.from_pandas(TABLE.assign(part=TABLE.number % 3))
    pyarrow.dataset.write_dataset(
        table, f"{root}/parts", filesystem=fs, format="parquet", partitioning=["part"], partitioning_flavor="hive"
    )
    assert len(fs.find(f"{root}/parts")) == 3
    found = pyarrow.dataset.dataset(f"{root}/parts", filesystem=fs, partitioning="hive")
    some = found.to_table(filter=(pyarrow.dataset.field("part") == 1) & (pyarrow.dataset.field("number") < 10))
    assert sorted(some["number"].to_pylist()) == [1, 4, 7]
    assert found.count_rows() == len(TABLE)
    by_arrow = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    assert by_arrow.get_file_info(f"{root}/none").type == pyarrow.fs.FileType.NotFound


def test_zarr(root):
    array = numpy.arange(200 * 300).reshape(200, 300)
    group = zarr.open_group(f"dl://{root}/a.zarr", mode="w")
    group.create_array("x", data=array, chunks=(50, 50))
    group["x"].attrs["unit"] = "m"
    again = zarr.open_group(f"dl://{root}/a.zarr", mode="r")
    assert (again["x"][:] == array).all() and again["x"].attrs["unit"] == "m"
    assert (again["x"][17:60, 250] == array[17:60, 250]).all()
    assert list(again.array_keys()) == ["x"]
    # A changed part, and shards, which are read by ranges.
    writable = zarr.open_group(f"dl://{root}/a.zarr", mode="r+")
    writable["x"][0, 0] = 77
    assert writable["x"][0, 0] == 77 and writable["x"][0, 1] == 1
    sharded = zarr.create_array(
        f"dl://{root}/b.zarr", shape=(200, 300), dtype="i8", chunks=(10, 10), shards=(100, 100), overwrite=True
    )
    sharded[:] = array
    assert (zarr.open_array(f"dl://{root}/b.zarr", mode="r")[95:105, 99:101] == array[95:105, 99:101]).all()


def test_universal_pathlib(root):
    folder = upath.UPath(f"dl://{root}/texts")
    (folder / "deep").mkdir(parents=True, exist_ok=True)
    (folder / "deep/a.txt").write_text("meow")
    (folder / "b.bin").write_bytes(b"woof")
    assert (folder / "deep/a.txt").read_text() == "meow"
    assert sorted(path.name for path in folder.iterdir()) == ["b.bin", "deep"]
    assert [path.name for path in folder.rglob("*.txt")] == ["a.txt"]
    assert folder.is_dir() and (folder / "b.bin").is_file() and not (folder / "c").exists()
    assert (folder / "b.bin").stat().st_size == 4 and (folder / "b.bin").stat().st_mtime > 0
    (folder / "b.bin").rename(folder / "c.bin")
    assert (folder / "c.bin").read_bytes() == b"woof" and not (folder / "b.bin").exists()
    (folder / "c.bin").unlink()
    assert not (folder / "c.bin").exists()
    with pytest.raises(FileNotFoundError):
        (folder / "none").read_bytes()


def test_h5py_reads_a_file_larger_than_a_chunk(root):
    fs = fsspec.filesystem("dl")
    array = numpy.random.default_rng(1).random((1500, 1000))
    file = io.BytesIO()
    with h5py.File(file, "w") as stored:
        stored.create_dataset("large", data=array, chunks=(100, 100))
        stored.create_dataset("small", data=[1, 2, 3])
    fs.pipe(f"{root}/a.h5", file.getvalue())
    with fs.open(f"{root}/a.h5") as source, h5py.File(source) as stored:
        assert stored["small"][:].tolist() == [1, 2, 3]
        assert (stored["large"][1400:, 3] == array[1400:, 3]).all()
        assert (stored["large"][:] == array).all()
    with fs.open(f"{root}/b.h5", "wb") as target:
        target.write(file.getvalue())
    assert fs.cat(f"{root}/b.h5") == file.getvalue()


def test_numpy(root):
    fs = fsspec.filesystem("dl")
    arrays = {"a": numpy.arange(1_000_000), "b": numpy.eye(3)}
    with fs.open(f"{root}/a.npz", "wb") as file:
        numpy.savez(file, **arrays)
    with fs.open(f"{root}/a.npz") as file, numpy.load(file) as found:
        assert set(found) == {"a", "b"} and all((found[name] == arrays[name]).all() for name in arrays)


@pytest.mark.parametrize("streaming", [False, True])
def test_hugging_face_reads_a_folder_of_images(tree, hub, streaming):
    found = datasets.load_dataset(
        "imagefolder", data_files={"train": "dl://images/train/**"}, split="train", streaming=streaming, cache_dir=hub,
        drop_labels=True,
    )
    read = sorted(numpy.asarray(row["image"])[0, 0].tolist()[0] for row in found)
    assert read == sorted(number % 256 for number in [*range(150), 999])


@pytest.mark.parametrize("streaming", [False, True])
def test_hugging_face_reads_parquet(root, hub, streaming):
    for part in range(3):
        TABLE[part::3].to_parquet(f"dl://{root}/train-{part}.parquet", index=False)
    files = {"train": f"dl://{root}/train-*.parquet"}
    found = datasets.load_dataset("parquet", data_files=files, split="train", streaming=streaming, cache_dir=hub)
    assert sorted(row["number"] for row in found) == list(range(2000))


def test_hugging_face_reads_in_worker_processes(root, hub):
    for part in range(4):
        TABLE[part::4].to_parquet(f"dl://{root}/train-{part}.parquet", index=False)
    files = {"train": f"dl://{root}/train-*.parquet"}
    found = datasets.load_dataset("parquet", data_files=files, split="train", num_proc=2, cache_dir=hub)
    assert sorted(found["number"]) == list(range(2000))
    from torch.utils.data import DataLoader

    streamed = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True, cache_dir=hub)
    loader = DataLoader(streamed, batch_size=50, num_workers=2)
    assert sorted(number for batch in loader for number in batch["number"].tolist()) == list(range(2000))


def test_hugging_face_saves_and_loads(root, hub):
    made = datasets.Dataset.from_pandas(TABLE)
    made.save_to_disk(f"dl://{root}/saved", num_shards=2)
    found = datasets.load_from_disk(f"dl://{root}/saved")
    assert found["number"][:] == list(range(2000))
    assert fsspec.filesystem("dl").exists(f"{root}/saved/dataset_info.json")
    made.to_parquet(f"dl://{root}/whole.parquet")
    assert pandas.read_parquet(f"dl://{root}/whole.parquet").number.tolist() == list(range(2000))


@pytest.mark.parametrize(("scheduler", "options"), [("threads", {}), ("processes", {"follow": True})])
def test_dask(root, scheduler, options):
    with dask.config.set(scheduler=scheduler, num_workers=2):
        frame = dask.dataframe.from_pandas(TABLE, npartitions=4)
        frame.to_parquet(f"dl://{root}/frame", storage_options=options)
        read = dask.dataframe.read_parquet(f"dl://{root}/frame", storage_options=options)
        assert read.number.sum().compute() == TABLE.number.sum()
        texts = dask.bag.from_sequence(map(str, range(100)), npartitions=4)
        texts.to_textfiles(f"dl://{root}/bag/*.txt", storage_options=options)
        texts = dask.bag.read_text(f"dl://{root}/bag/*.txt", storage_options=options)
        assert sorted(map(int, texts.compute())) == list(range(100))


def read_all(fs, root, told):
    told.put({path: fs.open(path).read() for path in fs.find(root)})


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("pickled", [False, True])
def test_a_filesystem_is_used_in_several_processes(root, method, pickled):
    fs = fsspec.filesystem("dl", timeout=30.0, skip_instance_cache=True)
    files = {f"{root}/{number}": bytes([number]) * 1000 for number in range(20)}
    fs.pipe(files)
    assert fs.cat(list(files)) == files
    context = multiprocessing.get_context(method)
    given = pickle.loads(pickle.dumps(fs)) if pickled else fs
    told = context.Queue()
    readers = [context.Process(target=read_all, args=(given, root, told)) for _ in range(2)]
    for reader in readers:
        reader.start()
    assert [told.get(timeout=60) for _ in readers] == [files, files]
    for reader in readers:
        reader.join(60)
        assert reader.exitcode == 0
