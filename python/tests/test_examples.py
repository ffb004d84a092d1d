"""The examples run, and the documents are correct."""

import doctest
import importlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).parent
EXAMPLE = HERE.parent / "examples/digits.py"
MODULES = ["libdiesel", "libdiesel._options", "libdiesel._ranks", "libdiesel.torch"]


@pytest.mark.parametrize("module", MODULES)
def test_the_examples_in_docstrings_are_true(scene, module):
    done = doctest.testmod(importlib.import_module(module))
    assert done.failed == 0


@pytest.mark.parametrize("document", ["README.md", "docs/PYTHON.md"])
def test_the_python_in_documents_runs(scene, document, digits):
    text = (HERE.parents[1] / document).read_text()
    pieces = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert pieces, f"{document} shows no Python"
    for piece in pieces:
        done = run(digits, "-c", piece)
        assert done.returncode == 0, f"{piece}\n{done.stderr}"


@pytest.fixture(scope="module")
def digits(scene, tmp_path_factory):
    """Working folder and the dataset `digits`."""
    folder = tmp_path_factory.mktemp("digits")
    done = run(folder, EXAMPLE, "--put")
    assert "1797 images" in done.stdout, done.stderr
    return folder


def run(folder, *arguments):
    """Runs a Python program in a folder to its end."""
    return subprocess.run(
        [sys.executable, "-B", *arguments], cwd=folder, capture_output=True, text=True, timeout=120
    )


def steps(file):
    """Values of each step in a trace; a repeated step has the same values."""
    found = {}
    for line in file.read_text().splitlines():
        step, checksum = line.split()
        assert found.setdefault(int(step), checksum) == checksum, f"step {step} read other samples"
    return found


def test_the_example_trains(digits):
    done = run(digits, EXAMPLE, "--epochs", "8", "--trace", "whole", "--checkpoint", "whole.save")
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) > 0.9, done.stdout


def test_a_killed_training_goes_on_with_the_same_samples(digits):
    options = ["--epochs", "3", "--every", "7", "--checkpoint", "killed.save"]
    expected = digits / "undisturbed"
    run(digits, EXAMPLE, "--epochs", "3", "--checkpoint", "u.save", "--trace", expected)
    trace = digits / "killed"
    for wait in (30, 80):
        command = [sys.executable, "-B", EXAMPLE, *options, "--trace", trace]
        with subprocess.Popen(
            command, cwd=digits, stderr=subprocess.DEVNULL, start_new_session=True
        ) as training:
            until = time.monotonic() + 60
            while not trace.exists() or len(steps(trace)) < wait:
                assert time.monotonic() < until and training.poll() is None
                time.sleep(0.005)
            os.killpg(training.pid, signal.SIGKILL)
    done = run(digits, EXAMPLE, *options, "--trace", trace)
    assert done.returncode == 0, done.stderr
    assert steps(trace) == steps(expected)


def test_two_processes_train_together(digits):
    done = run(
        digits,
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *(EXAMPLE, "--epochs", "2", "--workers", "1", "--checkpoint", "two.save"),
    )
    assert done.returncode == 0, done.stderr
    assert "epoch 1" in done.stdout
