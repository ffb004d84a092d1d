"""The image: small, without rights, and as durable as the program."""

import json
import os
import sys

from conftest import DEPLOY, ROOT, answers, dlcmd, free_port, podman, run, soon

HARD = ["--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges", "--tmpfs", "/tmp"]


def test_the_image_is_small_and_has_no_root(containers):
    containers()
    image = json.loads(podman("image", "inspect", "localhost/diesel"))[0]
    assert image["Size"] <= 60_000_000, image["Size"]
    assert image["Config"]["User"] == "65532:65532"


def test_a_server_without_rights_keeps_what_it_acknowledged(containers, tmp_path):
    containers()
    port, name = free_port(), f"diesel-test-{free_port()}"
    (tmp_path / "file").write_text("kept")
    address = f"127.0.0.1:{port}"
    publish = ["-p", f"{address}:7420", "-v", f"{name}:/var/lib/diesel"]
    try:
        podman("run", "-d", "--name", name, *HARD, *publish, "localhost/diesel", "--without-keys")
        soon("the server begins", lambda: "listening on" in podman("logs", name))
        dlcmd(address, "put", tmp_path / "file", "dl://ds")
        podman("kill", "-s", "KILL", name)
        podman("start", name)
        assert dlcmd(address, "cat", "dl://ds/file") == "kept"
        # The command is there too, and an agent has a place for its socket.
        listed = podman("exec", name, "dlcmd", "--server", "127.0.0.1:7420", "ls", "dl://ds")
        assert listed == "file\n"
        through = podman(
            "exec", name, "dlcmd", "--server", "127.0.0.1:7420", "--task", "job", "cat", "dl://ds/file"
        )
        assert through == "kept"
    finally:
        podman("rm", "-f", "-t", "1", name)
        podman("volume", "rm", "-f", name)


def test_a_server_that_everybody_reaches_asks_for_keys(containers):
    containers()
    said = podman("run", "--rm", *HARD, "--network", "none", "localhost/diesel", code=2, stderr=-2, capture_output=False, stdout=-1)
    assert "--users" in said and "--without-keys" in said, said


def test_compose_starts_and_ends(containers, tmp_path):
    containers()
    port, http, project = free_port(), free_port(), f"diesel-test-{free_port()}"
    settings = {"PORT": str(port), "HTTP_PORT": str(http), "CONTAINERS_CONF": str(ROOT / "tests/deploy/containers.conf")}
    compose = [sys.executable, "-m", "podman_compose", "-p", project, "-f", DEPLOY / "compose/compose.yaml"]
    environment = {**os.environ, **settings}
    (tmp_path / "file").write_text("composed")
    try:
        run(*compose, "up", "-d", env=environment)
        soon("the server answers", lambda: answers(f"http://127.0.0.1:{http}/healthz") == "ok\n")
        dlcmd(f"127.0.0.1:{port}", "put", tmp_path / "file", "dl://ds")
        assert dlcmd(f"127.0.0.1:{port}", "cat", "dl://ds/file") == "composed"
    finally:
        run(*compose, "down", "--volumes", env=environment)
    assert project not in podman("ps", "-a")
