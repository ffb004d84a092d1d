"""The CSI driver under a kubelet of another project's messages: the table of csi-sanity's suites, kills, and containers.

Driver, holder and servers are three processes, the last two without any rights."""

import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

import grpc
import pytest
from conftest import dlcmd, free_port, needs, podman, program, run, soon
from ember_csi.v1_1_0 import csi_pb2 as csi
from ember_csi.v1_1_0 import csi_pb2_grpc as services

USER = 65532
FILES = 60
READER = csi.VolumeCapability.AccessMode.MULTI_NODE_READER_ONLY


class Node:
    """A node: the three processes, and the folders of a kubelet."""

    def __init__(self, folder, server):
        self.folder, self.server = folder, server
        self.run_folder = folder / "run"
        self.kubelet = folder / "kubelet"
        self.kubelet.mkdir(mode=0o755)
        self.socket = self.kubelet / "plugins/csi.diesel/csi.sock"
        self.registration = self.kubelet / "plugins_registry/csi.diesel-reg.sock"
        self.processes = {}
        # A place that the processes without rights can reach.
        self.dlcmd = folder / "dlcmd"
        shutil.copy(program("dlcmd"), self.dlcmd)
        self.dlcmd.chmod(0o755)

    def begin(self):
        for part in ("driver", "holder", "server"):
            self.start(part)
        soon("the driver is ready", lambda: self.identity().Probe(csi.ProbeRequest(), wait_for_ready=True, timeout=30).ready.value)

    def start(self, part):
        sockets = [self.run_folder / "holder.sock", self.run_folder / "server.sock"]
        words = {
            "driver": ["--endpoint", self.socket, "--registration", self.registration, "--node", "node1",
                       "--state", self.kubelet / "plugins/csi.diesel", "--holder", sockets[0], "--launcher", sockets[1]],
            "holder": ["--socket", sockets[0], "--launcher", sockets[1]],
            "server": ["--socket", sockets[1]],
        }[part]
        without_rights = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
        command = [self.dlcmd, "csi", part, *words]
        if part != "driver":
            command = [*without_rights, *command]
        environment = {"PATH": os.environ["PATH"], "HOME": "/tmp", "TMPDIR": str(self.folder / "tmp"), "DIESEL_SERVER": self.server,
                       "DIESEL_RUNTIME_DIR": str(self.folder / "agents"), "XDG_CACHE_HOME": str(self.folder / "cache")}
        log = open(self.folder / f"{part}.log", "a")
        self.processes[part] = subprocess.Popen([str(word) for word in command], env=environment, stdout=log, stderr=log, start_new_session=True)

    def kill(self, part):
        """Kills a part with all that it started, as the end of a container does."""
        process = self.processes[part]
        for child in children(process.pid):
            os.kill(child, signal.SIGKILL)
        process.kill()
        process.wait()

    def channel(self, socket):
        # As the kubelet's library names a server behind a socket; this one's would be no name.
        return grpc.insecure_channel(f"unix:{socket}", [("grpc.default_authority", "localhost")])

    def identity(self):
        return services.IdentityStub(self.channel(self.socket))

    def node(self):
        return services.NodeStub(self.channel(self.socket))

    def target(self, pod):
        target = self.kubelet / "pods" / pod / "mount"
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def publish(self, pod="a", volume="volume", attributes=None, secrets=None, **changes):
        capability = csi.VolumeCapability(mount={}, access_mode={"mode": READER})
        request = csi.NodePublishVolumeRequest(
            volume_id=volume, target_path=str(self.target(pod)), volume_capability=capability, readonly=True,
            secrets=secrets or {}, volume_context={"dataset": "pets"} if attributes is None else attributes,
        )
        for name, value in changes.items():
            request.ClearField(name)
            if value is not None:
                getattr(request, name).CopyFrom(value) if hasattr(value, "CopyFrom") else setattr(request, name, value)
        self.node().NodePublishVolume(request, timeout=90)
        return self.target(pod)

    def unpublish(self, pod="a", volume="volume"):
        request = csi.NodeUnpublishVolumeRequest(volume_id=volume, target_path=str(self.target(pod)))
        self.node().NodeUnpublishVolume(request, timeout=60)

    def mounts(self):
        lines = pathlib.Path("/proc/self/mountinfo").read_text().splitlines()
        return [line for line in lines if str(self.folder) in line]

    def is_clean(self):
        sessions = self.kubelet / "plugins/csi.diesel/sessions"
        left = list(sessions.iterdir()) if sessions.exists() else []
        held = run_quietly("pgrep", "-f", f"{self.dlcmd} mount")
        return not self.mounts() and not left and not held

    def end(self):
        for line in reversed(self.mounts()):
            subprocess.run(["umount", "-l", line.split()[4]], check=False)
        for part in self.processes:
            self.kill(part)
        for left in run_quietly("pgrep", "-f", str(self.dlcmd)).split():
            os.kill(int(left), signal.SIGKILL)


def run_quietly(*command):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True).stdout


def children(process):
    found = [int(child) for child in run_quietly("pgrep", "-P", process).split()]
    return found + [grandchild for child in found for grandchild in children(child)]


def sums(folder):
    return {file.name: hashlib.md5(file.read_bytes()).hexdigest() for file in sorted(pathlib.Path(folder).iterdir())}


def refused(code, call, *arguments, **more):
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **more)
    assert caught.value.code() == code, caught.value
    return caught.value.details()


@pytest.fixture(scope="module")
def place():
    """A folder that processes without rights can enter."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="diesel-csi-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def store(place):
    """A server with the dataset `pets`, and what its files have to be."""
    port, source = free_port(), place / "src"
    source.mkdir()
    for number in range(FILES):
        (source / f"{number:03}").write_bytes(os.urandom(50_000))
    command = [program("dlserver"), "--data", place / "data", "--listen", f"127.0.0.1:{port}", "--http", "none"]
    server = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert "listening" in server.stdout.readline()
    dlcmd(f"127.0.0.1:{port}", "put", source, "dl://pets")
    dlcmd(f"127.0.0.1:{port}", "put", source, "dl://cars/train")
    yield f"127.0.0.1:{port}", sums(source)
    server.kill()
    server.wait()


@pytest.fixture
def node(place, store):
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse") or shutil.which("setpriv") is None:
        needs("a driver needs root, /dev/fuse and setpriv")
    folder = place / f"node-{free_port()}"
    folder.mkdir(mode=0o755)
    for name in ("agents", "cache", "tmp"):
        (folder / name).mkdir()
        os.chown(folder / name, USER, USER)
        (folder / name).chmod(0o700)
    node = Node(folder, store[0])
    try:
        node.begin()
        yield node
    finally:
        node.end()


def test_the_rows_of_identity_and_node(node, store):
    code, identity = grpc.StatusCode, node.identity()
    info = identity.GetPluginInfo(csi.GetPluginInfoRequest())
    assert info.name == "csi.diesel" and info.vendor_version
    assert not identity.GetPluginCapabilities(csi.GetPluginCapabilitiesRequest()).capabilities
    assert identity.Probe(csi.ProbeRequest()).ready.value
    assert node.node().NodeGetInfo(csi.NodeGetInfoRequest()).node_id == "node1"
    capabilities = node.node().NodeGetCapabilities(csi.NodeGetCapabilitiesRequest()).capabilities
    assert csi.NodeServiceCapability.RPC.GET_VOLUME_STATS in [one.rpc.type for one in capabilities]
    # What is missing or wrong is named.
    invalid = code.INVALID_ARGUMENT
    assert "volume_id" in refused(invalid, node.publish, volume="")
    assert "target_path" in refused(invalid, node.publish, target_path="")
    assert "target_path" in refused(invalid, node.publish, target_path="relative")
    assert "volume_capability" in refused(invalid, node.publish, volume_capability=None)
    block = csi.VolumeCapability(block={}, access_mode={"mode": READER})
    assert "block" in refused(invalid, node.publish, volume_capability=block)
    writer = csi.VolumeCapability(mount={}, access_mode={"mode": csi.VolumeCapability.AccessMode.MULTI_NODE_MULTI_WRITER})
    assert "read-only" in refused(invalid, node.publish, volume_capability=writer)
    assert "dataset" in refused(invalid, node.publish, attributes={})
    assert "colour" in refused(invalid, node.publish, attributes={"dataset": "pets", "colour": "red"})
    assert "password" in refused(invalid, node.publish, secrets={"password": "x"})
    refused(code.NOT_FOUND, node.publish, attributes={"dataset": "none"})
    refused(code.UNAVAILABLE, node.publish, attributes={"dataset": "pets", "server": f"127.0.0.1:{free_port()}"})
    assert node.is_clean(), node.mounts()
    # A publish can be repeated; another volume at its place is refused.
    target = node.publish()
    assert sums(target) == store[1]
    node.publish()
    refused(code.ALREADY_EXISTS, node.publish, volume="other")
    refused(code.ALREADY_EXISTS, node.publish, attributes={"dataset": "cars"})
    stats = csi.NodeGetVolumeStatsRequest(volume_id="volume", volume_path=str(target))
    usage = {one.unit: one.total for one in node.node().NodeGetVolumeStats(stats).usage}
    assert usage[csi.VolumeUsage.BYTES] >= FILES * 50_000 and usage[csi.VolumeUsage.INODES] >= FILES
    stats.volume_path = "/none"
    refused(code.NOT_FOUND, node.node().NodeGetVolumeStats, stats)
    stats.volume_path = ""
    refused(invalid, node.node().NodeGetVolumeStats, stats)
    with pytest.raises(OSError):
        (target / "new").write_text("x")
    node.unpublish()
    node.unpublish()
    assert not target.exists()
    refused(invalid, node.unpublish, volume="")
    refused(code.UNIMPLEMENTED, node.node().NodeStageVolume, csi.NodeStageVolumeRequest())
    soon("nothing is left", node.is_clean)


def test_pods_share_a_session_and_folders_are_volumes(node, store):
    one, other = node.publish("a"), node.publish("b")
    folder = node.publish("c", "cars", {"dataset": "cars", "folder": "train", "csi.storage.k8s.io/pod.name": "c"})
    assert os.stat(one).st_dev == os.stat(other).st_dev != os.stat(folder).st_dev
    assert sums(other) == sums(folder) == store[1]
    node.unpublish("a")
    assert sums(other) == store[1]
    node.unpublish("b")
    node.unpublish("c", "cars")
    soon("nothing is left", node.is_clean)


def test_killed_servers_are_pauses_and_a_killed_driver_is_nothing(node, store):
    target = node.publish()
    script = 'while [ ! -e "$2" ]; do for file in "$1"/*; do md5sum < "$file" || exit 1; done; done'
    stop = node.folder / "stop"
    reader = subprocess.Popen(["sh", "-c", script, "reader", str(target), str(stop)], stdout=subprocess.PIPE, text=True)
    for number in range(20):
        time.sleep(0.2)
        node.kill("server")
        node.start("server")
        if number % 5 == 0:
            node.kill("driver")
            node.start("driver")
    stop.touch()
    lines, _ = reader.communicate(timeout=120)
    assert reader.returncode == 0 and set(lines.replace("  -", "").split()) == set(store[1].values())
    # A driver that was killed knows what to clean up.
    soon("the driver is ready", lambda: node.identity().Probe(csi.ProbeRequest(), wait_for_ready=True).ready.value)
    node.publish()
    node.unpublish()
    soon("nothing is left", node.is_clean)


def test_a_machine_that_started_again_forgets_and_publishes(node, store):
    target = node.publish()
    node.kill("driver")
    for line in reversed(node.mounts()):
        run("umount", "-l", line.split()[4])
    node.start("driver")
    soon("the driver is ready", lambda: node.identity().Probe(csi.ProbeRequest(), wait_for_ready=True).ready.value)
    soon("nothing is left", node.is_clean)
    assert sums(node.publish()) == store[1]
    # Without its holder, a mount is dead; the next publish replaces it.
    node.kill("holder")
    node.start("holder")
    soon("the driver is ready", lambda: node.identity().Probe(csi.ProbeRequest(), wait_for_ready=True).ready.value)
    soon("the servers of the holder end", lambda: is_dead(target))
    stats = csi.NodeGetVolumeStatsRequest(volume_id="volume", volume_path=str(target))
    assert node.node().NodeGetVolumeStats(stats) is not None
    assert sums(node.publish()) == store[1]
    node.unpublish()
    soon("nothing is left", node.is_clean)
    assert "panicked" not in (node.folder / "driver.log").read_text()


def is_dead(mount):
    try:
        os.statvfs(mount)
    except OSError:
        return True


def test_the_kubelet_finds_the_driver(node):
    get = node.channel(node.registration).unary_unary("/pluginregistration.Registration/GetInfo")
    info = get(b"")
    for word in (b"CSIPlugin", b"csi.diesel", str(node.socket).encode(), b"1.0.0"):
        assert word in info, info
    notify = node.channel(node.registration).unary_unary("/pluginregistration.Registration/NotifyRegistrationStatus")
    assert notify(b"\x08\x01") == b""
    node.processes["driver"].terminate()
    node.processes["driver"].wait()
    assert not node.registration.exists()


def test_the_parts_run_in_containers(containers, place, store):
    """With the rights of the chart: the driver alone is privileged, its mounts reach the host."""
    containers()
    folder = place / "containers"
    kubelet, sockets = folder / "kubelet", folder / "run"
    for made in (kubelet, sockets):
        made.mkdir(parents=True)
    run("mount", "--bind", kubelet, kubelet)
    run("mount", "--make-rshared", kubelet)
    hard = ["--read-only", "--cap-drop", "all", "--security-opt", "no-new-privileges", "--tmpfs", "/tmp", "--user", f"{USER}:{USER}"]
    shared = ["-v", f"{sockets}:/run/diesel-csi", "--entrypoint", "dlcmd"]
    state = f"{kubelet}/plugins/csi.diesel"
    driver = ["--privileged", "--user", "0:0", "--read-only", "--tmpfs", "/tmp", "-v", f"{kubelet}:{kubelet}:rshared", "--network", "none"]
    parts = {
        "driver": [*driver, *shared, "-e", f"DIESEL_SERVER={store[0]}", "localhost/diesel", "csi", "driver", "--node", "node1", f"--endpoint={state}/csi.sock", f"--state={state}"],
        "holder": [*hard, *shared, "--network", "none", "localhost/diesel", "csi", "holder"],
        "server": [*hard, *shared, "--network", "host", "--memory", "400m", "localhost/diesel", "csi", "server"],
    }
    names = {part: f"{folder.parent.name}-{part}" for part in parts}
    channel = grpc.insecure_channel(f"unix:{state}/csi.sock", [("grpc.default_authority", "localhost")])
    node, target = services.NodeStub(channel), kubelet / "pods/a/mount"
    target.parent.mkdir(parents=True)
    try:
        for part, words in parts.items():
            podman("run", "-d", "--name", names[part], *words)
        probe = lambda: services.IdentityStub(channel).Probe(csi.ProbeRequest(), wait_for_ready=True, timeout=30)
        soon("the driver is ready", lambda: probe().ready.value)
        capability = csi.VolumeCapability(mount={}, access_mode={"mode": READER})
        node.NodePublishVolume(csi.NodePublishVolumeRequest(
            volume_id="v", target_path=str(target), volume_capability=capability, volume_context={"dataset": "pets", "memory": "64MiB"}), timeout=90)
        assert sums(target) == store[1]
        for part in ("server", "driver"):
            podman("kill", "-s", "KILL", names[part])
            podman("start", names[part])
            assert sums(target) == store[1]
        soon("the driver is ready", lambda: probe().ready.value)
        node.NodeUnpublishVolume(csi.NodeUnpublishVolumeRequest(volume_id="v", target_path=str(target)))
        assert not target.exists() and not os.listdir(f"{state}/sessions")
    finally:
        for name in names.values():
            podman("rm", "-f", "-t", "1", name)
        run("umount", "-R", kubelet)
