"""The settings in deploy/ are settings of the server."""

import re
import tomllib

from conftest import DEPLOY, ROOT, run, program


def known():
    """The keys of the file of --config, and the variables."""
    text = (ROOT / "docs/CONFIGURATION.md").read_text()
    return set(re.findall(r"`([a-z_]+)`", text)), set(re.findall(r"DIESEL_[A-Z_]+", text))


def test_the_keys_of_the_units_and_the_chart_exist():
    keys, _ = known()
    unit = (DEPLOY / "systemd/dlserver.toml").read_text()
    used = set(tomllib.loads(unit)) | set(re.findall(r"^# ([a-z_]+) = ", unit, re.M))
    chart = (DEPLOY / "helm/diesel/templates/config.yaml").read_text()
    used |= set(re.findall(r"^    ([a-z_]+) = ", chart, re.M))
    assert len(used) > 8 and used <= keys, used - keys


def test_the_variables_of_all_files_exist():
    _, variables = known()
    files = [path for path in DEPLOY.rglob("*") if path.is_file()]
    found = {name for path in files for name in re.findall(r"DIESEL_[A-Z_]+", path.read_text())}
    assert found and found <= variables, found - variables


def test_the_commands_of_the_units_exist():
    unit = (DEPLOY / "systemd/diesel-mount@.service").read_text()
    for command in re.findall(r"/usr/local/bin/dlcmd ([a-z]+)(.*)", unit):
        helped = run(program("dlcmd"), command[0], "--help")
        for flag in re.findall(r"--[a-z-]+", command[1]):
            assert flag in helped, (command, flag)
