"""Makes the torch of this Python usable on a machine without a GPU.

The torch on the package index links NVIDIA's libraries, which are several gigabytes large, and does not load
without them, not even for the CPU. Each missing library gets a stand-in of the same name: a small
library with the symbols that torch imports. Every function in it reports that no device exists. torch
then finds no GPU on any machine, and computes on the CPU. The stand-ins are in torch's own library
folder, which the loader searches by default.
"""

import argparse
import dataclasses
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

# Names of NVIDIA's libraries, and of their symbols without versions.
LIBRARY = re.compile(r"lib(cuda|cudart|cublas|cudnn|cufft|cufile|cupti|curand|cusolver|cusparse|nccl|nv)")
SYMBOL = re.compile(r"_*(cu|nccl|nv)\w+")

# Functions that return a text instead of a number.
TEXT = re.compile(r"Get(LastError|Error|ErrorName|ErrorString|StatusName|StatusString)$")

# CUDA's number for "no device".
NO_DEVICE = 100

# Patterns of the output of `readelf -W --dynamic --version-info --dyn-syms`.
NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
FROM_FILE = re.compile(r"\s+\w+: Version: \d+\s+File: (\S+)")
FROM_VERSION = re.compile(r"\s+\w+:\s+Name: (\S+)\s+Flags:")
DYNAMIC = re.compile(
    r"\s*\d+: [0-9a-f]+\s+\S+\s+(?P<kind>\w+)\s+(?P<bind>GLOBAL|WEAK)\s+\w+\s+(?P<at>\w+)"
    r"\s+(?P<name>[^\s@]+)(@@?(?P<version>\S+))?"
)


@dataclasses.dataclass(frozen=True, order=True)
class Symbol:
    """Exported symbol of a library: a function, or data when `data` is set."""

    name: str
    version: str
    data: bool


@dataclasses.dataclass
class Linked:
    """Exports of a library, and its imports from other libraries."""

    needed: set[str] = dataclasses.field(default_factory=set)
    # Library of each symbol version.
    file_of: dict[str, str] = dataclasses.field(default_factory=dict)
    wanted: set[Symbol] = dataclasses.field(default_factory=set)
    exported: set[str] = dataclasses.field(default_factory=set)


def read(path: pathlib.Path) -> Linked:
    """Reads the dynamic section of the library at `path` as Linked."""
    command: list[str | pathlib.Path] = ["readelf", "-W", "--dynamic", "--version-info", "--dyn-syms", path]
    # The C locale prevents translated words of readelf.
    lines = run(command, env=os.environ | {"LC_ALL": "C"}).splitlines()
    linked, file = Linked(), ""
    for line in lines:
        if found := NEEDED.search(line):
            linked.needed.add(found[1])
        elif found := FROM_FILE.match(line):
            file = found[1]
        elif found := FROM_VERSION.match(line):
            linked.file_of[found[1]] = file
        elif found := DYNAMIC.match(line):
            if found["at"] != "UND":
                linked.exported.add(found["name"])
            elif found["bind"] == "GLOBAL":
                symbol = Symbol(found["name"], found["version"] or "", found["kind"] == "OBJECT")
                linked.wanted.add(symbol)
    return linked


def missing(torch: pathlib.Path) -> dict[str, set[Symbol]]:
    """Symbols of each of NVIDIA's libraries that torch links but its folder `torch` lacks."""
    paths = [path for path in [*torch.glob("lib/*.so*"), *torch.glob("*.so")] if path.is_file()]
    own = {path.name for path in paths}
    linked = [read(path) for path in paths]
    exported = set[str]().union(*(each.exported for each in linked))
    stand_ins: dict[str, set[Symbol]] = {}
    for each in linked:
        absent = {name for name in each.needed - own if LIBRARY.match(name)}
        for name in absent:
            stand_ins.setdefault(name, set())
        for symbol in each.wanted:
            if symbol.version:
                files = absent & {each.file_of.get(symbol.version, "")}
            elif SYMBOL.fullmatch(symbol.name) and symbol.name not in exported:
                # The file names no library for it, and the loader accepts any.
                files = absent
            else:
                files = set()
            for name in files:
                stand_ins[name].add(symbol)
    return stand_ins


def source(symbols: set[Symbol]) -> str:
    """A C program with all of `symbols`."""
    lines = []
    for symbol in sorted(symbols):
        if symbol.data:
            lines.append(f"char {symbol.name}[64];")
        elif TEXT.search(symbol.name):
            lines.append(f'const char *{symbol.name}(void) {{ return "no CUDA here"; }}')
        else:
            lines.append(f"long {symbol.name}(void) {{ return {NO_DEVICE}; }}")
    return "\n".join(lines) + "\n"


def versions(symbols: set[Symbol]) -> str:
    """Linker script that gives `symbols` their versions; empty without versions."""
    nodes: dict[str, list[str]] = {}
    for symbol in sorted(symbols):
        if symbol.version:
            nodes.setdefault(symbol.version, []).append(symbol.name)
    return "".join(f"{version} {{ global: {'; '.join(names)}; }};\n" for version, names in nodes.items())


def build(name: str, symbols: set[Symbol], folder: pathlib.Path) -> pathlib.Path:
    """Compiles the stand-in `name` in `folder` and returns its path."""
    library, code, script = folder / name, folder / "code.c", folder / "versions.map"
    code.write_text(source(symbols))
    command: list[str | pathlib.Path] = ["cc", "-shared", "-fPIC", "-O1", "-w", "-fno-builtin", "-nostdlib"]
    command += ["-o", library, f"-Wl,-soname,{name}", code]
    if text := versions(symbols):
        script.write_text(text)
        command.append(f"-Wl,--version-script,{script}")
    run(command)
    return library


def run(command: Sequence[str | pathlib.Path], env: Mapping[str, str] | None = None) -> str:
    """Output of the program; a failure ends this process with its message."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    if done.returncode != 0:
        sys.exit(f"torch_cpu: {' '.join(map(str, command))} failed:\n{done.stderr}")
    return done.stdout


def installed() -> pathlib.Path:
    """Folder of the torch that this Python imports."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        sys.exit(f"torch_cpu: there is no torch for {sys.executable}")
    return pathlib.Path(spec.origin).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--torch", type=pathlib.Path, help="torch's folder (default: of this Python's torch)")
    arguments = parser.parse_args()
    for program, package in (("readelf", "binutils"), ("cc", "gcc")):
        if shutil.which(program) is None:
            sys.exit(f"torch_cpu: {program} is missing: the package {package} has it")
    torch = arguments.torch or installed()
    if not (torch / "lib").is_dir():
        sys.exit(f"torch_cpu: {torch} has no folder lib")
    with tempfile.TemporaryDirectory() as folder:
        for name, symbols in sorted(missing(torch).items()):
            # A copy works where a move fails: the temporary folder may be on another disk.
            shutil.copy(build(name, symbols, pathlib.Path(folder)), torch / "lib" / name)
    # -P: files of the current folder are no modules.
    check = "import torch; assert torch.ones(2).sum() == 2 and not torch.cuda.is_available()"
    if arguments.torch is None:
        run([sys.executable, "-P", "-c", check])


if __name__ == "__main__":
    main()
