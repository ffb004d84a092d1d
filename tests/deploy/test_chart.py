"""The chart: what it renders is valid and runs; wrong values are refused."""

import os

import helm_python as helm
import kubernetes_validate
import pytest
import yaml

from conftest import DEPLOY, dlcmd, podman, program, run, soon

CHART = DEPLOY / "helm/diesel"
SINGLE = {
    "withoutKeys": True,
    "replicas": 1,
    "meta": "embedded:/var/lib/diesel/meta",
    "store": "file:///var/lib/diesel/chunks",
}
CLUSTER = {
    "usersSecret": "users",
    "tlsSecret": "tls",
    "environmentSecret": "bucket",
    "settings": {"read_memory": "256MiB", "live": {"read_only": False}},
    "networkPolicy": {"enabled": True, "clientLabel": {"job": "training"}},
    "serviceMonitor": True,
}


def rendered(values, chart=CHART):
    chart = helm.Chart.load(str(chart))
    chart.validate_schema(chart.merge_values(values))
    parts = chart.render(values, name="test", namespace="default").items()
    texts = [text for path, text in parts if not path.endswith("NOTES.txt")]
    return [part for text in texts for part in yaml.safe_load_all(text) if part]


@pytest.mark.parametrize(
    "values",
    [{"usersSecret": "u"}, SINGLE, CLUSTER, {**SINGLE, "volume": {"enabled": True, "storageClass": "fast"}}],
)
def test_what_is_rendered_is_valid(values):
    assert helm.lint(str(CHART), values, strict=True)["errors"] == []
    for part in rendered(values):
        if part["kind"] != "ServiceMonitor":
            kubernetes_validate.validate(part, "1.29", strict=True)


@pytest.mark.parametrize(
    "values, word",
    [
        ({}, "withoutKeys"),
        ({**SINGLE, "replicas": 2}, "replicas"),
        ({"usersSecret": "u", "meta": "embedded:x"}, "replicas"),
        ({"usersSecret": "u", "replikas": 3}, "replikas"),
        ({"usersSecret": "u", "store": "ftp://x"}, "store"),
    ],
)
def test_wrong_values_are_refused(values, word):
    with pytest.raises(helm.HelmError, match=word):
        rendered(values)


def test_a_pod_of_the_chart_serves(containers, tmp_path):
    containers()
    image = {"repository": "localhost/diesel", "tag": "latest", "pullPolicy": "Never"}
    parts = [part for part in rendered({**SINGLE, "image": image}) if part["kind"] in ("ConfigMap", "Deployment")]
    for part in parts:
        part["metadata"]["name"] += f"-{os.getpid()}"
        if part["kind"] == "Deployment":
            pod = part["spec"]["template"]["spec"]
            pod["volumes"][0]["configMap"]["name"] += f"-{os.getpid()}"
            # podman would publish these to all interfaces, and it knows no probes of HTTP without a shell.
            for name in ("ports", "startupProbe", "livenessProbe", "readinessProbe"):
                del pod["containers"][0][name]
    (tmp_path / "kube.yaml").write_text("---\n".join(yaml.safe_dump(part) for part in parts))
    pod = f"{parts[-1]['metadata']['name']}-pod-0"
    name = f"{pod}-dlserver"
    try:
        podman("play", "kube", "--network", "none", tmp_path / "kube.yaml")
        soon("the server begins", lambda: "listening on" in podman("logs", name))
        put = "dlcmd --server 127.0.0.1:7420"
        podman("cp", CHART / "Chart.yaml", f"{name}:/scratch/file")
        podman("exec", name, *put.split(), "put", "/scratch/file", "dl://ds")
        assert podman("exec", name, *put.split(), "ls", "dl://ds") == "file\n"
    finally:
        podman("play", "kube", "--down", tmp_path / "kube.yaml")


DRIVER = DEPLOY / "helm/diesel-csi"


@pytest.mark.parametrize("values", [{}, {"server": "https://data:7420", "kubelet": "/var/snap/kubelet", "image": {"pullSecrets": [{"name": "r"}]}}])
def test_the_driver_of_volumes_is_valid(values):
    assert helm.lint(str(DRIVER), values, strict=True)["errors"] == []
    parts = rendered(values, DRIVER)
    assert sorted(part["kind"] for part in parts) == ["CSIDriver", "DaemonSet", "DaemonSet"]
    for part in [*parts, *yaml.safe_load_all((DEPLOY / "examples/pod-csi.yaml").read_text())]:
        kubernetes_validate.validate(part, "1.29", strict=True)
    # Only the driver has rights.
    containers = [one for part in parts if part["kind"] == "DaemonSet" for one in part["spec"]["template"]["spec"]["containers"]]
    assert [one["name"] for one in containers if one["securityContext"].get("privileged")] == ["driver"]


def test_the_commands_of_the_driver_exist():
    for part in rendered({}, DRIVER):
        if part["kind"] == "DaemonSet":
            for container in part["spec"]["template"]["spec"]["containers"]:
                _, *words = container["command"]
                helped = run(program("dlcmd"), *words[:2], "--help")
                for word in words[2:]:
                    assert word.split("=")[0] in helped, word
    with pytest.raises(helm.HelmError, match="sever"):
        rendered({"sever": "x"}, DRIVER)
