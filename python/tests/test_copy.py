"""Copies between datasets and other filesystems: whole files, resumed, with errors that name the remedy."""

import os
import signal
import subprocess
import sys
import time
import urllib.request

import fsspec
import pytest
from scene import PROGRAMS, bytes_of, wait_for

import libdiesel
import libdiesel.copy
from libdiesel.__main__ import main
from libdiesel.copy import copy
from libdiesel.errors import InvalidError, LocalError

#: A large time, with a part of a second.
TIME = 1_700_000_000.25

CONTENTS = {f"{number % 5}/{number:03} [a] ü?.bin": bytes_of(f"{number}", number * 331) for number in range(200)}


@pytest.fixture
def root(scene):
    """The address of a dataset that does not exist yet."""
    name = f"copy{os.urandom(4).hex()}"
    yield f"dl://{name}"
    if name in libdiesel.datasets():
        libdiesel.delete_dataset(f"dl://{name}")


@pytest.fixture
def folder(tmp_path):
    """A folder of local files with times."""
    for path, data in CONTENTS.items():
        (tmp_path / "in" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / path).write_bytes(data)
        os.utime(tmp_path / "in" / path, (TIME, TIME))
    return tmp_path / "in"


def contents_of(address):
    with libdiesel.connect(address, task=False) as dataset:
        return {path: dataset.get(path) for path in dataset.walk()}


def local_contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """Moto's server, with a bucket."""
    program = PROGRAMS.parents[1] / "tools/moto/bin/moto_server"
    if not program.is_file():
        pytest.skip(f"{program} is missing: run `make buckets`")
    log = tmp_path_factory.mktemp("s3") / "log"
    with open(log, "w") as file:
        server = subprocess.Popen([program, "-H", "127.0.0.1", "-p", "0"], stdout=file, stderr=file)
    wait_for(lambda: "Press CTRL" in log.read_text())
    address = next(word for word in log.read_text().split() if word.startswith("http://"))
    with urllib.request.urlopen(urllib.request.Request(f"{address}/bucket", method="PUT")):
        pass
    yield {"endpoint_url": address, "key": "key", "secret": "secret"}
    server.kill()
    server.wait()


@pytest.mark.parametrize("batch_bytes", [64 << 20, 20_000])
def test_local_files_come_and_go(root, folder, tmp_path, monkeypatch, batch_bytes):
    # Small batches, and files that pass through a temporary file.
    monkeypatch.setattr(libdiesel.copy, "BATCH_BYTES", batch_bytes)
    reports = []
    report = copy(str(folder), f"{root}/deep", progress=lambda report: reports.append(report.copied))
    assert (report.files, report.copied, report.skipped) == (200, 200, 0)
    assert report.bytes == sum(map(len, CONTENTS.values()))
    assert reports[-1] == 200 and len(reports) == 1 if batch_bytes > 1 << 20 else len(reports) > 100
    assert contents_of(root) == {f"deep/{path}": data for path, data in CONTENTS.items()}
    copy(f"{root}/deep", str(tmp_path / "out"))
    assert local_contents(tmp_path / "out") == CONTENTS
    assert all(abs(path.stat().st_mtime - TIME) < 1e-6 for path in (tmp_path / "out").rglob("*.bin"))
    # Both directions again: nothing to do.
    assert copy(str(folder), f"{root}/deep").skipped == 200
    assert copy(f"{root}/deep", str(tmp_path / "out")).skipped == 200


def test_only_changed_files_are_copied(root, folder, scene):
    copy(folder.as_uri(), root)
    names = sorted(CONTENTS)
    (folder / names[0]).write_bytes(b"longer" * 100_000)
    os.utime(folder / names[0], (TIME, TIME))
    os.utime(folder / names[1], (TIME + 5, TIME + 5))
    assert copy(folder.as_uri(), root, is_size_enough=True).copied == 1
    os.utime(folder / names[0], (TIME + 5, TIME + 5))
    assert copy(folder.as_uri(), root).copied == 2
    assert copy(folder.as_uri(), root).copied == 0
    with libdiesel.connect(root, task=False) as dataset:
        assert dataset.get(names[0]) == b"longer" * 100_000
        times = [dataset.stat(name).mtime for name in names[:3]]
        assert times == pytest.approx([TIME + 5, TIME + 5, TIME], abs=1e-6, rel=0)


def test_a_file_and_a_folder_of_a_dataset_are_copied(root, folder, tmp_path):
    name = sorted(CONTENTS)[7]
    copy(str(folder / name), f"{root}/one")
    base = name.partition("/")[2]
    assert contents_of(root) == {f"one/{base}": CONTENTS[name]}
    copy(f"{root}/one/{base}", f"{root}/two/three")
    assert contents_of(root) == {f"one/{base}": CONTENTS[name], f"two/three/{base}": CONTENTS[name]}
    copy(f"{root}/two", str(tmp_path / "out"))
    assert local_contents(tmp_path / "out") == {f"three/{base}": CONTENTS[name]}


def test_memory_comes_and_goes(root):
    memory = fsspec.filesystem("memory")
    memory.pipe({f"/{root[5:]}/{path}": data for path, data in CONTENTS.items()})
    copy(f"memory://{root[5:]}", root)
    assert contents_of(root) == CONTENTS
    copy(root, f"memory://{root[5:]}-out")
    assert {path: memory.cat_file(f"/{root[5:]}-out/{path}") for path in CONTENTS} == CONTENTS
    assert copy(root, f"memory://{root[5:]}-out").skipped == 200
    for name in (f"/{root[5:]}", f"/{root[5:]}-out"):
        memory.rm(name, recursive=True)


@pytest.mark.parametrize("batch_bytes", [64 << 20, 30_000])
def test_a_bucket_comes_and_goes(root, s3, folder, monkeypatch, batch_bytes):
    monkeypatch.setattr(libdiesel.copy, "BATCH_BYTES", batch_bytes)
    copy(str(folder), f"{root}/a")
    prefix = f"s3://bucket/{root[5:]}"
    assert copy(f"{root}/a", prefix, destination_options=s3).copied == 200
    assert copy(f"{root}/a", prefix, destination_options=s3).skipped == 200
    assert copy(prefix, f"{root}/b", source_options=s3).copied == 200
    assert copy(prefix, f"{root}/b", source_options=s3).skipped == 200
    found = contents_of(root)
    assert {path[2:]: data for path, data in found.items() if path.startswith("b/")} == CONTENTS
    with pytest.raises(FileNotFoundError):
        copy("s3://bucket/none", root, source_options=s3)
    with pytest.raises(FileNotFoundError):
        copy("s3://no-bucket/none", root, source_options=s3)


def test_keys_that_lead_elsewhere_are_refused(root, s3, tmp_path):
    fs = fsspec.filesystem("s3", **s3)
    fs.pipe_file(f"bucket/{root[5:]}/a//b", b"data")
    with pytest.raises(InvalidError, match="rename the file"):
        copy(f"s3://bucket/{root[5:]}", root, source_options=s3)
    assert root[5:] not in libdiesel.datasets()


def test_an_error_leaves_whole_files_and_the_copy_goes_on(root, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(libdiesel.copy, "BATCH_BYTES", 100_000)
    copy(str(folder), root)
    bad = sorted(CONTENTS)[150]
    blocked = tmp_path / "out" / bad
    (blocked / "folder").mkdir(parents=True)
    with pytest.raises(LocalError, match="goes on") as raised:
        copy(root, str(tmp_path / "out"))
    assert blocked.name in str(raised.value)
    found = local_contents(tmp_path / "out")
    assert 0 < len(found) < 200 and all(CONTENTS[path] == data for path, data in found.items())
    (blocked / "folder").rmdir()
    blocked.rmdir()
    report = copy(root, str(tmp_path / "out"))
    assert report.skipped == len(found) and local_contents(tmp_path / "out") == CONTENTS


def test_a_killed_copy_goes_on(root, tmp_path):
    contents = {f"{number:04}": bytes_of(f"{number}", 20_000) for number in range(1500)}
    (tmp_path / "in").mkdir()
    for path, data in contents.items():
        (tmp_path / "in" / path).write_bytes(data)
    slow = "import libdiesel.copy as c, sys; c.BATCH_FILES = 50; from libdiesel.__main__ import main; sys.exit(main())"
    command = [sys.executable, "-B", "-c", slow, "copy", str(tmp_path / "in"), root, "--quiet"]
    process = subprocess.Popen(command, cwd=tmp_path)
    until = time.monotonic() + 30
    while root[5:] not in libdiesel.datasets() or not contents_of(root):
        assert time.monotonic() < until and process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = contents_of(root)
    assert all(contents[path] == data for path, data in found.items())
    done = subprocess.run(command[:-1], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stdout == ""
    skipped = int(done.stderr.split()[-2])
    assert len(found) <= skipped < 1500 and f"copied {1500 - skipped} of 1500 files" in done.stderr
    assert contents_of(root) == contents


def test_the_program_has_the_exit_codes_of_dlcmd(root, folder, tmp_path, capfd):
    def run(*arguments):
        return main(["copy", *map(str, arguments)]), capfd.readouterr()

    assert run(folder, root)[0] == 0
    code, told = run(folder, root)
    assert code == 0 and told.err.startswith("copied 0 of 200 files") and "200 unchanged" in told.err
    assert run(folder, root, "--quiet") == (0, ("", ""))
    for arguments in ((tmp_path / "none", root), (f"{root}/none", tmp_path / "out"), ("dl://none", tmp_path / "out")):
        code, told = run(*arguments)
        assert code == 3 and told.err.startswith("error: ") and "none" in told.err
    usage = [(folder, tmp_path / "out"), (folder, "dl://"), ("nofs://a", root), (folder, root, "--jobs", "0")]
    usage += [(folder, root, "--destination-option", "wrong=1"), (folder, f"{root}/{sorted(CONTENTS)[0]}")]
    for arguments in usage:
        code, told = run(*arguments)
        assert code == 2 and told.err.startswith("error: "), arguments
    with pytest.raises(SystemExit) as stopped:
        run(folder, root, "--source-option", "none")
    assert stopped.value.code == 2 and "NAME=VALUE" in capfd.readouterr().err
    (tmp_path / "file").write_text("no folder")
    code, told = run(root, tmp_path / "file/below")
    assert code == 1 and "the same command goes on" in told.err
    options = ("--source-option", "server=127.0.0.1:1", "--source-option", "timeout=0.5")
    code, told = run(root, tmp_path / "out", *options)
    assert code == 5 and "127.0.0.1:1" in told.err
    assert not (tmp_path / "out").exists()
