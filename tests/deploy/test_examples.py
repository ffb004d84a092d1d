"""The examples: valid for Kubernetes and for the shell."""

import kubernetes_validate
import yaml

from conftest import DEPLOY, run


def test_the_job_is_valid():
    for part in yaml.safe_load_all((DEPLOY / "examples/job.yaml").read_text()):
        kubernetes_validate.validate(part, "1.29", strict=True)


def test_the_script_is_a_script():
    run("bash", "-n", DEPLOY / "examples/slurm.sh")
