"""The alerts: each fires for its fault, and asks a server's metrics only for what they have."""

import json
import re
import shutil
import subprocess
import urllib.parse

import pytest
import yaml

from conftest import DEPLOY, ROOT, answers, dlcmd, free_port, needs, program, run, soon

FOLDER = DEPLOY / "prometheus"


@pytest.fixture(autouse=True)
def prometheus():
    if shutil.which("promtool") is None or shutil.which("prometheus") is None:
        needs("there is no prometheus")


def rules():
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def queries():
    """The queries of the dashboard, for an interval and for all jobs."""
    panels = json.loads((DEPLOY / "grafana/diesel.json").read_text())["panels"]
    texts = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    return [text.replace("$__rate_interval", "1m").replace("$task", ".*") for text in texts]


def test_each_alert_fires_for_its_fault_alone():
    run("promtool", "check", "config", FOLDER / "prometheus.yml")
    run("promtool", "test", "rules", FOLDER / "alerts_test.yml")
    tested = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
    names = {check["alertname"] for test in tested for check in test["alert_rule_test"]}
    assert names == {rule["alert"] for rule in rules()}


def test_each_metric_and_each_paragraph_exists():
    metrics = set(re.findall(r"`(diesel_[a-z_]+)`", (ROOT / "docs/METRICS.md").read_text()))
    asked = set(re.findall(r"diesel_[a-z_]+", (FOLDER / "alerts.yml").read_text() + " ".join(queries())))
    asked = {name.removesuffix("_bucket") for name in asked}
    assert len(asked) > 30 and asked <= metrics, asked - metrics
    titles = re.findall(r"^#+ (.*)$", (ROOT / "docs/OPERATIONS.md").read_text(), re.M)
    anchors = {f"OPERATIONS.md#{title.lower().replace(' ', '-')}" for title in titles}
    runbooks = {rule["annotations"]["runbook"] for rule in rules()}
    assert runbooks <= anchors, runbooks - anchors


def is_nearly_full(folder):
    disk = shutil.disk_usage(folder)
    return disk.free < 0.15 * disk.total


def test_the_queries_run_on_a_live_server(tmp_path):
    http, web, grpc = free_port(), free_port(), free_port()
    server = subprocess.Popen(
        [program("dlserver"), "--data", tmp_path / "data", "--listen", f"127.0.0.1:{grpc}", "--http", f"127.0.0.1:{http}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    settings = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    settings["global"]["scrape_interval"] = "1s"
    settings["scrape_configs"][0]["static_configs"][0]["targets"] = [f"127.0.0.1:{http}"]
    settings["rule_files"] = [str(FOLDER / "alerts.yml")]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(settings))
    watcher = subprocess.Popen(
        [
            "prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/series",
            f"--web.listen-address=127.0.0.1:{web}", "--log.level=error",
        ]
    )

    def ask(query):
        url = f"http://127.0.0.1:{web}/api/v1/query?query={urllib.parse.quote(query)}"
        answer = json.loads(answers(url) or "{}")
        return answer.get("status"), answer.get("data", {}).get("result", [])

    try:
        soon("a scrape", lambda: ask('up{job="diesel"} == 1')[1] != [])
        for rule in rules():
            status, found = ask(rule["expr"])
            assert status == "success", rule
            if rule["alert"] == "DieselDiskFills" and is_nearly_full(tmp_path):
                continue
            assert found == [], f"{rule['alert']} fires on a healthy server: {found}"
        dlcmd(f"127.0.0.1:{grpc}", "put", FOLDER, "dl://ds")
        for query in queries():
            assert ask(query)[0] == "success", query
            # The rest has series once a request has failed, or a job reads.
            if "diesel_task_" not in query and "code!~" not in query:
                soon(f"series for {query}", lambda query=query: ask(query)[1] != [])
        assert run("promtool", "check", "metrics", input=answers(f"http://127.0.0.1:{http}/metrics")) == ""
    finally:
        for process in (watcher, server):
            process.terminate()
            process.wait(timeout=30)
