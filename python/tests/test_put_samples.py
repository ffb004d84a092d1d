"""Samples of other formats become files, and are read again."""

import io
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pandas
import pytest
import tfrecord
from PIL import Image

import libdiesel
from libdiesel.errors import InvalidError
from libdiesel.torch import Samples

DOCUMENT = Path(__file__).parents[2] / "docs/PYTHON.md"
ARRAY = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)


@pytest.fixture
def target(scene):
    """A handle of a new dataset."""
    name = f"put{os.urandom(4).hex()}"
    with scene.connect(name, create=True) as dataset:
        yield dataset
    libdiesel.delete_dataset(f"dl://{name}")


def contents_of(dataset):
    with libdiesel.connect(f"dl://{dataset.name}", task=False) as newest:
        return {path: newest.get(path) for path in newest.walk()}


def jpeg():
    """An image as a decoder gives it."""
    file = io.BytesIO()
    Image.effect_noise((64, 48), 90).convert("RGB").save(file, "JPEG", quality=70)
    return Image.open(file)


def test_each_value_has_its_form(target):
    image = Image.new("RGB", (5, 4), (1, 2, 3))
    sample = {
        "bin": b"bytes", "buffer": bytearray(b"more"), "view": memoryview(b"view"), "txt": "tëxt", "int": -7,
        "float": 0.5, "number": numpy.int16(300), "real": numpy.float64(0.1), "array": ARRAY, "npy": ARRAY,
        "picture": image, "png": image, "jpg": jpeg(), "photo": jpeg(), "seg.npy": ARRAY, "__key__": "left out",
    }
    assert libdiesel.put_samples(target, [sample]) == len(sample) - 1
    found = {path.removeprefix("00000000."): data for path, data in contents_of(target).items()}
    texts = {name: found.pop(name) for name in ("bin", "buffer", "view", "txt", "int", "float", "number", "real")}
    assert list(texts.values()) == [
        b"bytes", b"more", b"view", "tëxt".encode(), b"-7", b"0.5", b"300", b"0.1",
    ]
    for name in ("array.npy", "npy", "seg.npy"):
        read = numpy.load(io.BytesIO(found.pop(name)))
        assert (read == ARRAY).all() and read.dtype == ARRAY.dtype
    for name in ("picture.png", "png"):
        read = Image.open(io.BytesIO(found.pop(name)))
        assert read.format == "PNG" and read.getpixel((0, 0)) == (1, 2, 3)
    for name in ("jpg", "photo.jpg"):
        read = Image.open(io.BytesIO(found.pop(name)))
        # The tables of the source: no further loss but rounding.
        assert read.format == "JPEG" and read.quantization == jpeg().quantization
    assert found == {}


def test_names_come_from_index_and_fields(target):
    samples = [{"cls": number % 2, "txt": f"{number}", "__key__": f"k/{number}"} for number in range(6)]
    assert libdiesel.put_samples(target, iter(samples), "train/{cls}/{index:03}") == 12
    assert contents_of(target)["train/1/003.txt"] == b"3"
    assert libdiesel.put_samples(target, iter(samples), "{__key__}") == 12
    data = Samples(f"dl://{target.name}/k", task=False, batch_size=4)
    assert {sample["__key__"]: bytes(sample["txt"]) for sample in data} == {f"k/{n}": b"%d" % n for n in range(6)}


def test_nothing_is_visible_after_an_error(target):
    wrong = {
        "type": ([{"a": 1}, {"b": None}], TypeError, "None has to be"),
        "bool": ([{"a": True}], TypeError, "True has to be"),
        "object": ([{"a": numpy.array([None])}], ValueError, "Object arrays"),
        "field": ([{"a/b": 1}], InvalidError, "field 'a/b'"),
        "empty": ([{"": 1}], InvalidError, "field ''"),
        "twice": ([{"a": ARRAY, "a.npy": b""}], InvalidError, "two fields"),
    }
    for samples, kind, text in wrong.values():
        with pytest.raises(kind, match=text):
            libdiesel.put_samples(target, samples)
    with pytest.raises(TypeError) as raised:
        libdiesel.put_samples(target, wrong["type"][0])
    assert raised.value.__notes__ == ["the value is the field 'b' of sample 1"]
    wrong_names = {"{none}": "has no field 'none'", "{}": "has no field", "{a}": "two samples", "": "empty"}
    for name, text in wrong_names.items():
        with pytest.raises(InvalidError, match=text):
            libdiesel.put_samples(target, [{"a": "same"}] * 2, name)
    assert contents_of(target) == {}


OPTIMIZE = """
import litdata

def make(number):
    return {"jpg": b"pixels %d" % number, "cls": number}

if __name__ == "__main__":
    litdata.optimize(fn=make, inputs=list(range(5)), output_dir="lit", chunk_bytes="1MB", num_workers=1)
"""


def parquet(folder):
    table = pandas.DataFrame({"jpg": [b"pixels %d" % number for number in range(5)], "cls": range(5)})
    table.to_parquet(folder / "train.parquet")


def tfrecords(folder):
    writer = tfrecord.TFRecordWriter(str(folder / "train.tfrecord"))
    for number in range(5):
        writer.write({"image": (b"pixels %d" % number, "byte"), "label": (number, "int")})
    writer.close()


def litdata(folder):
    (folder / "optimize.py").write_text(OPTIMIZE)
    subprocess.run([sys.executable, "-B", "optimize.py"], cwd=folder, check=True, capture_output=True, timeout=120)


@pytest.mark.parametrize("make", [parquet, tfrecords, litdata])
def test_the_recipe_of_the_document_runs(scene, tmp_path, make):
    peer = {parquet: "pyarrow", tfrecords: "tfrecord", litdata: "litdata"}[make]
    text = DOCUMENT.read_text()
    recipes = [piece for piece in re.findall(r"```py\n(.*?)```", text, re.DOTALL) if f"import {peer}" in piece]
    assert len(recipes) == 1, peer
    make(tmp_path)
    command = [sys.executable, "-B", "-c", recipes[0]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    with libdiesel.connect(f"dl://from-{peer}", task=False) as dataset:
        found = {path: dataset.get(path) for path in dataset.walk()}
    libdiesel.delete_dataset(f"dl://from-{peer}")
    expected = {f"{number:08}.jpg": b"pixels %d" % number for number in range(5)}
    assert found == expected | {f"{number:08}.cls": b"%d" % number for number in range(5)}
