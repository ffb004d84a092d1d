"""The units, under a real systemd: hardened, started again after a kill, and upgraded without an error."""

import os
import pathlib
import re
import time

import pytest

from conftest import DEPLOY, needs, podman, soon

ROOT_FILE = pathlib.Path(os.environ["DIESEL_DEPLOY"]) / "systemd.tar"


@pytest.fixture(scope="module")
def machine(containers):
    containers()
    if not ROOT_FILE.is_file():
        needs(f"there is no root file system with systemd: {ROOT_FILE}")
    name = f"diesel-systemd-{os.getpid()}"
    podman("import", "--quiet", ROOT_FILE, "localhost/diesel-systemd")
    mounts = ["-v", f"{DEPLOY}/systemd:/deploy:ro", "-v", f"{ROOT_FILE.parent}/programs:/programs:ro"]
    podman(
        "run", "-d", "--name", name, "--privileged", "--systemd=always", "--tmpfs", "/run", "--tmpfs", "/tmp",
        "--network", "none", *mounts, "localhost/diesel-systemd", "/sbin/init",
    )
    def inside(script, **more):
        return podman("exec", name, "sh", "-c", script, **more)

    try:
        soon("systemd runs", lambda: "running" in inside("systemctl is-system-running --wait || true"))
        inside("mkdir -p /etc/diesel/mounts && cp /deploy/dlserver.toml /etc/diesel")
        inside("cp /deploy/*.service /etc/systemd/system && cp /programs/dlserver /programs/dlcmd /usr/local/bin")
        inside("systemctl daemon-reload && systemctl start dlserver")
        soon("the server answers", lambda: "ok" in inside("dlcmd datasets && echo ok || true"))
        yield inside
    finally:
        podman("rm", "-f", "-t", "1", name)


def pid_of(machine, unit):
    return machine(f"systemctl show -p MainPID --value {unit}").strip()


def test_the_server_is_hardened(machine):
    said = machine("systemd-analyze security --no-pager dlserver | tail -1")
    exposure = float(re.search(r"level for \S+: ([0-9.]+)", said).group(1))
    assert exposure <= 1.5, said


def test_a_killed_server_starts_again_with_its_files(machine):
    machine("mkdir -p /srv/kept && echo kept > /srv/kept/file && dlcmd put /srv/kept dl://kept")
    before = pid_of(machine, "dlserver")
    machine(f"kill -9 {before}")
    soon("another server", lambda: pid_of(machine, "dlserver") not in (before, "0"))
    soon("the file", lambda: "kept" in machine("dlcmd cat dl://kept/file || true"))


def test_a_mount_is_reloaded_under_a_reader_and_leaves_nothing(machine):
    if "fuse" not in machine("cat /proc/filesystems; ls /dev/fuse || true"):
        needs("containers have no /dev/fuse here")
    machine("mkdir -p /srv/m && head -c 3000000 /dev/urandom > /srv/m/file && dlcmd put /srv/m dl://m")
    machine("printf 'DATASET=dl://m\\nOPTIONS=--follow=1s\\n' > /etc/diesel/mounts/data-m")
    machine("systemctl start diesel-mount@data-m")
    # The unit is started when files can be read.
    machine("cmp /srv/m/file /data/m/file")
    before = pid_of(machine, "diesel-mount@data-m")
    reads = "for i in $(seq 200); do dd if=/data/m/file iflag=direct bs=64k status=none | cmp - /srv/m/file || exit 1; done"
    machine(f"({reads}; echo $? > /srv/reads) > /dev/null 2>&1 &")
    for _ in range(3):
        machine("systemctl reload diesel-mount@data-m")
        time.sleep(0.5)
    soon("the reader ends", lambda: machine("cat /srv/reads 2>/dev/null || true") != "")
    assert machine("cat /srv/reads") == "0\n"
    assert pid_of(machine, "diesel-mount@data-m") == before
    machine(f"kill -9 {before}")
    soon("another mount", lambda: pid_of(machine, "diesel-mount@data-m") not in (before, "0"))
    soon("the file", lambda: machine("cmp /srv/m/file /data/m/file 2>&1 || true") == "")
    machine("systemctl stop diesel-mount@data-m")
    assert "diesel" not in machine("cat /proc/mounts | grep fuse.diesel || true")


def test_the_units_have_no_unknown_word(machine):
    said = machine("systemd-analyze verify /etc/systemd/system/dlserver.service /etc/systemd/system/diesel-mount@data-m.service 2>&1 || true")
    assert "dlserver" not in said and "diesel-mount" not in said, said
