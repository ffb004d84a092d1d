"""Datasets by fsspec: the suite of fsspec itself, and programs on top of it."""

import io
import multiprocessing
import os
import pickle

import fsspec
import numpy
import pytest
from fsspec.tests import abstract

import libdiesel
from libdiesel.fsspec import DieselFileSystem


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class")
    @classmethod
    def fs(cls, scene):
        return DieselFileSystem(skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self, fs):
        name = f"abstract{os.urandom(4).hex()}"
        fs.mkdir(name)
        yield name
        if fs.exists(name):
            fs.rm(name, recursive=True)

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def supports_empty_directories(self):
        return False


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


def test_files_are_read_by_path_and_by_range(scene, contents):
    fs = fsspec.filesystem("dl", skip_instance_cache=True)
    assert "files" in fs.ls("", detail=False)
    path, data = max(contents.items(), key=lambda item: len(item[1]))
    assert fs.cat(f"files/{path}") == data
    assert fs.cat_file(f"dl://files/{path}", -10) == data[-10:]
    assert fs.cat_ranges([f"files/{path}"] * 2, [0, 5], [5, 9]) == [data[:5], data[5:9]]
    some = list(contents)[:50]
    assert fs.cat([f"files/{one}" for one in some]) == {f"files/{one}": contents[one] for one in some}
    assert sorted(fs.find("files")) == sorted(f"files/{one}" for one in contents)
    assert fs.find("files", detail=True)[f"files/{path}"]["size"] == len(data)
    assert set(fs.find("files", withdirs=True)) > set(fs.find("files"))
    assert len(fs.glob("files/00[01]/*.bin")) == sum(one[:3] in ("000", "001") for one in contents)
    with fsspec.open(f"dl://files/{path}") as file:
        file.seek(7)
        assert file.read(4) == data[7:11] and file.size == len(data)
    for none in ("files/none", "none/a", "none"):
        assert not fs.exists(none)
        with pytest.raises(FileNotFoundError):
            fs.info(none)
    assert fs.ukey(f"files/{path}") == fs.ukey(f"files/{path}")
    assert fs.created(f"files/{path}") is not None


def test_a_write_is_durable_or_absent(scene):
    fs = DieselFileSystem(skip_instance_cache=True)
    with fs.open("by-fsspec/a", "wb") as file:
        file.write(b"one")
    with libdiesel.connect("dl://by-fsspec", task=False) as other:
        assert other.get("a") == b"one"
    with pytest.raises(RuntimeError), fs.open("by-fsspec/b", "wb") as file:
        file.write(b"two")
        raise RuntimeError
    assert not fs.exists("by-fsspec/b")
    with fs.open("by-fsspec/a", "ab") as file:
        file.write(b" more")
    assert fs.cat("by-fsspec/a") == b"one more"
    with fs.transaction, fs.open("by-fsspec/c", "wb") as file:
        file.write(b"in a transaction")
        assert not fs.exists("by-fsspec/c")
    assert fs.cat("by-fsspec/c") == b"in a transaction"
    with pytest.raises(RuntimeError), fs.transaction, fs.open("by-fsspec/d", "wb") as file:
        file.write(b"given up")
        file.close()
        raise RuntimeError
    assert not fs.exists("by-fsspec/d")
    with pytest.raises(FileExistsError):
        fs.open("by-fsspec/a", "xb")
    fs.mv("by-fsspec/c", "by-fsspec/moved/c")
    assert fs.ls("by-fsspec/moved", detail=False) == ["by-fsspec/moved/c"] and not fs.exists("by-fsspec/c")
    fs.rm("by-fsspec", recursive=True)
    assert not fs.exists("by-fsspec")


def read_elsewhere(fs, path, data):
    assert fs.cat(path) == data


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_filesystem_goes_into_other_processes(scene, contents, method):
    fs = DieselFileSystem(skip_instance_cache=True)
    path, data = next(iter(contents.items()))
    assert fs.cat(f"files/{path}") == data
    assert pickle.loads(pickle.dumps(fs)).cat(f"files/{path}") == data
    process = multiprocessing.get_context(method).Process(target=read_elsewhere, args=(fs, f"files/{path}", data))
    process.start()
    process.join(60)
    assert process.exitcode == 0


def test_numpy_reads_and_writes(scene):
    array = numpy.arange(3_000_000, dtype=numpy.float32)
    with fsspec.open("dl://fsspec-arrays/a.npy", "wb", skip_instance_cache=True) as file:
        numpy.save(file, array)
    fs = DieselFileSystem(skip_instance_cache=True)
    with fs.open("fsspec-arrays/a.npy") as file:
        assert (numpy.load(file) == array).all()
    assert (numpy.load(io.BytesIO(fs.cat("fsspec-arrays/a.npy"))) == array).all()
    fs.rm("fsspec-arrays", recursive=True)
