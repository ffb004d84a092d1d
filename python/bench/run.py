"""Measures the Python package beside other libraries that feed training.

All arms of a part are measured in turns (A B C A B C ...), each in an interpreter of its own, warm
and in a shuffled order. A bar is on the median over the runs of the ratios of arms that stood
beside each other.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile

import data
import ours
import parts

LIBRARIES = (
    "torch", "torchvision", "pillow", "lmdb", "litdata", "mosaicml-streaming", "webdataset",
    "pylance",
)
# Bytes of a file.
SIZES = {"bytes": 4 << 10, "large": 128 << 10, "tiny": 64}
HERE = os.path.dirname(os.path.abspath(__file__))


class Sources:
    """Files of one kind, and their datasets, made at the first use by a side."""

    def __init__(self, kind, count, folder, options):
        self.folder, self.options = folder, options
        self.store = self.token = None
        self.sides = set()
        os.makedirs(os.path.join(folder, "tmp"))
        if kind in ("jpeg", "png"):
            tree = os.path.join(folder, "tree")
            self.files = data.write_tree(tree, count, kind)
            self.source = ("tree", tree)
        else:
            self.files = data.Bytes(count, SIZES[kind])
            self.source = ("bytes", (count, SIZES[kind]))

    def close(self):
        """Ends the processes, and frees the disk."""
        if self.store:
            self.store.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def job(self, arm, **more):
        """Dataset of an arm."""
        job = {
            "side": arm.side, "do": arm.do, "how": arm.how, "options": dict(arm.options),
            "source": self.source, "folder": os.path.join(self.folder, "datasets"),
            "seconds": self.options.seconds, **more,
        }
        return self.store.job(**job) if arm.ours else job

    def prepare(self, arm):
        """Writes the dataset of an arm, unless it exists."""
        if arm.side in self.sides or arm.side == "imagefolder":
            return
        self.sides.add(arm.side)
        os.makedirs(os.path.join(self.folder, "datasets"), exist_ok=True)
        if arm.ours:
            self.store = ours.Store(self.options.programs, os.path.join(self.folder, "ours"))
            if self.source[0] == "tree":
                self.store.put_tree(self.source[1])
            else:
                self.start(parts.Arm(arm.label, "ours", do="write"))
            self.store.warm()
        else:
            self.start(parts.Arm(arm.label, arm.side, do="write"))

    def environment(self, arm):
        """The environment of an arm: libraries keep their own caches in the temporary folder, and
        ask nobody for newer versions."""
        environment = dict(self.store.environment) if arm.ours else dict(os.environ)
        scratch = os.path.join(self.folder, "tmp")
        return environment | {
            "TMPDIR": scratch, "HOME": scratch, "LITDATA_CACHE_DIR": scratch,
            "DATA_OPTIMIZER_CACHE_FOLDER": os.path.join(scratch, "chunks"),
            "DATA_OPTIMIZER_DATA_CACHE_FOLDER": os.path.join(scratch, "inputs"),
            "LITDATA_DISABLE_VERSION_CHECK": "1", "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }

    def start(self, arm, **more):
        """Runs an arm in a separate process, and returns its result."""
        result = os.path.join(self.folder, "result.json")
        if os.path.exists(result):
            os.remove(result)
        job = self.job(arm, result=result, **more)
        process = subprocess.Popen(
            [sys.executable, "-B", os.path.join(HERE, "arm.py")], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=self.environment(arm), start_new_session=True,
        )
        try:
            said, _ = process.communicate(json.dumps(job), timeout=self.options.limit)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{arm.label} took more than {self.options.limit} s") from None
        finally:
            # The group kill also ends leftover workers of a library.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        if process.returncode != 0 or not os.path.exists(result):
            raise RuntimeError(f"{arm.label} ended with {process.returncode}:\n{said}")
        with open(result, encoding="utf-8") as file:
            return json.load(file)

    def write(self, arm):
        """Writes the dataset of one side again, and removes it. All earlier writes are on disk."""
        again = Sources("bytes", 1, os.path.join(self.folder, "again"), self.options)
        again.files, again.source = self.files, self.source
        try:
            os.makedirs(os.path.join(again.folder, "datasets"))
            if arm.ours:
                again.store = ours.Store(self.options.programs, os.path.join(again.folder, "ours"))
            os.sync()
            return again.start(arm)
        finally:
            again.close()

    def resume(self, arm, number):
        """Resumes from the token of an earlier process, with or without the agent."""
        if self.token is None:
            self.token = self.start(parts.Arm(arm.label, "ours", do="token"))["token"]
        if not arm.fresh:
            return self.start(arm, token=self.token)
        task = f"{ours.TASK}-{number}"
        self.store.tasks.add(task)
        return self.start(arm, token=self.token, task=task)

    def turn(self, arm, number):
        """One run of an arm."""
        if arm.do == "write":
            return self.write(arm)
        if arm.do == "resume":
            return self.resume(arm, number)
        return self.start(arm)


def measure(part, sources, options):
    """All runs of all arms of a part, in turns. A failed arm has no results."""
    arms = [arm for arm in part.arms if not (options.peers and arm.ours)]
    results = {arm.label: [] for arm in arms}

    def attempt(arm, what, *arguments):
        if results[arm.label] is None:
            return None
        try:
            return what(arm, *arguments)
        except RuntimeError as error:
            print(f"\n{part.name}: {error}", file=sys.stderr, flush=True)
            results[arm.label] = None
            return None

    if part.written:
        for arm in arms:
            attempt(arm, sources.prepare)
        os.sync()
    for number in range(options.runs):
        for arm in arms:
            result = attempt(arm, sources.turn, number)
            if result:
                results[arm.label].append(result)
    return results


def shown(value, key):
    """A figure as text for people."""
    if key == "first":
        return f"{value:.2f} s"
    return f"{value / 1000:,.1f} k/s" if value >= 10_000 else f"{value:,.0f}/s"


def arms_told(part, files, results):
    """Prints the figures of the arms of a part; returns one line for each arm."""
    lines = []
    for label, runs in results.items():
        if runs is None:
            print(f"  {label:28} {'failed':>14}")
        for key in ("rate", "first"):
            values = [run[key] for run in runs or () if key in run]
            if not values:
                continue
            middle = shown(parts.median(values), key)
            ends = f"{shown(min(values), key)} to {shown(max(values), key)}"
            print(f"  {label:28} {middle:>14}   {ends}")
            lines.append({"part": part.name, "files": files, "arm": label, key: values})
    return lines


def bars_told(part, files, results):
    """Prints the bars of a part; returns one line for each bar."""
    lines = []
    for bar in part.bars:
        if bar.arm not in results:
            continue
        beside = " and ".join(bar.peers)
        line = {"part": part.name, "files": files, "bar": bar.arm, "beside": bar.peers,
                "kind": bar.kind, "limit": bar.limit, "met": False}
        lines.append(line)
        if any(results[label] is None for label in (bar.arm, *bar.peers)):
            print(f"  MISSED {bar.arm} / {beside}: not measured")
            continue
        mine, theirs, stands, met = parts.verdict(bar, results)
        told = {
            "times": f"{bar.arm} / {beside}: {stands:.2f} x, bar {bar.limit:g} x"
                     + (f" ({bar.goal:g} x wanted with huge pages)" if bar.goal else ""),
            "later": f"{bar.arm}, first batch: {stands:+.2f} s to {beside}, bar +{bar.limit:g} s",
            "seconds": f"{bar.arm}, first batch: {stands:.2f} s, bar {bar.limit:g} s",
        }[bar.kind]
        print(f"  {'met' if met else 'MISSED':6} {told}")
        line |= {"ours": mine, "theirs": theirs, "stands": stands, "met": met}
    return lines


def kept(lines, options):
    """Appends the lines to the output file."""
    if options.out:
        with open(options.out, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


def machine():
    """Description of this machine."""
    model = platform.processor() or platform.machine()
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": len(os.sched_getaffinity(0)), "processor": model, "memory": pages,
        "kernel": platform.release(), "python": platform.python_version(),
        "libraries": {name: importlib.metadata.version(name) for name in LIBRARIES},
    }


def wanted(arguments):
    """Selected parts; parts over the same files are adjacent."""
    names = arguments or list(parts.PARTS)
    for name in names:
        if name not in parts.PARTS:
            sys.exit(f"{name}: no such part; there are {', '.join(parts.PARTS)}")
    groups = {}
    for name in names:
        part = parts.PARTS[name]
        groups.setdefault((part.source, part.files, part.written), []).append(part)
    return groups


def arguments():
    """Command line arguments."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("parts", nargs="*", help=f"some of {', '.join(parts.PARTS)}; all by default")
    asked.add_argument("--programs", default="", help="the folder of dlserver and dlcmd")
    asked.add_argument("--files", type=int, help="files of each part, instead of its own number")
    asked.add_argument("--runs", type=int, default=5)
    asked.add_argument("--seconds", type=float, default=1, help="least time of a measured loop")
    asked.add_argument("--limit", type=float, default=600, help="most seconds of one process")
    asked.add_argument("--dir", help="where the data lie; the usual temporary folder by default")
    asked.add_argument("--out", help="add a line of JSON for each result to this file")
    asked.add_argument("--check", action="store_true",
                       help="exit with 1 when a bar is missed or an arm fails")
    asked.add_argument("--peers", action="store_true", help="measure the peers alone")
    return asked.parse_args()


def main():
    """Measures all selected parts."""
    options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    about = machine()
    print(f"{about['cores']} cores of {about['processor']}, {about['memory'] / 2**30:.0f} GiB, "
          f"Linux {about['kernel']}, Python {about['python']}")
    print(", ".join(f"{name} {version}" for name, version in about["libraries"].items()))
    kept([{"machine": about, "runs": options.runs, "seconds": options.seconds}], options)
    missed = failed = 0
    with tempfile.TemporaryDirectory(prefix="dlpy-", dir=options.dir) as top:
        for number, ((source, count, _), group) in enumerate(wanted(options.parts).items()):
            count = options.files or count
            sources = Sources(source, count, os.path.join(top, str(number)), options)
            try:
                for part in group:
                    if options.peers and all(arm.ours for arm in part.arms):
                        continue
                    results = measure(part, sources, options)
                    print(f"\n{part.name}: {part.what}; {count:,} files; runs: {options.runs}")
                    kept(arms_told(part, count, results), options)
                    bars = bars_told(part, count, results)
                    kept(bars, options)
                    missed += sum(not line["met"] for line in bars)
                    failed += sum(runs is None for runs in results.values())
                    sys.stdout.flush()
            finally:
                sources.close()
    if missed or failed:
        print(f"\nbars that are missed: {missed}; arms that failed: {failed}")
    sys.exit(1 if options.check and (missed or failed) else 0)


if __name__ == "__main__":
    main()
