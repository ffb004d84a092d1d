"""Lightning, Accelerate and Hugging Face's Trainer on two processes read each file once in each epoch."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "trainers.py"


@pytest.mark.parametrize("trainer", ["accelerate", "lightning", "transformers", "accelerate on disks"])
def test_a_trainer_of_two_processes_reads_each_file_once_per_epoch(scene, tmp_path, trainer):
    told, disk = tmp_path / "told", tmp_path / "disk"
    on_disks = trainer.endswith(" on disks")
    environment = {"HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore", "TMPDIR": str(tmp_path)}
    # The processes meet on the loopback, also on machines whose name has another address.
    environment["GLOO_SOCKET_IFNAME"] = "lo"
    if on_disks:
        disk.mkdir()
        environment |= {"DIESEL_AGENT_TIERS": f"{disk}:64MiB", "DIESEL_AGENT_MEMORY": "8MiB"}
        with contextlib.suppress(AssertionError):
            scene.dlcmd("agent", "stop", "--task", "trainers")
    done = subprocess.run(
        [
            *(sys.executable, "-B", "-m", "torch.distributed.run"),
            *("--standalone", "--nproc-per-node", "2", SCRIPT, trainer.split()[0], told),
        ],
        cwd=tmp_path,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    ranks = json.loads(told.read_text())
    for scenario, found in ranks[0].items():
        others = [rank[scenario] for rank in ranks]
        if scenario.startswith("refused"):
            for text in others:
                assert text.startswith("ConflictError: ") and "ChunkSampler" in text, (scenario, text)
            continue
        assert set(found) == {"0", "1"}, (scenario, others)
        orders = {}
        for epoch in found:
            both = [rank[epoch] for rank in others]
            assert len(both[0]) == len(both[1]) == 300, (scenario, epoch, [len(one) for one in both])
            assert sorted(both[0] + both[1]) == list(range(600)), (scenario, epoch)
            orders[epoch] = both
        # Each epoch has its own order.
        assert orders["0"] != orders["1"], scenario
    if on_disks:
        status = json.loads(scene.dlcmd("--json", "agent", "status", "--task", "trainers"))
        assert status["chunks_from_disk"] > status["chunks"], status
        scene.dlcmd("agent", "stop", "--task", "trainers")
