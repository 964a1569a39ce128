"""Points a test run at the embedded cluster, and at no other: whoever runs the tests may have a
KUBECONFIG for a cluster that matters."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kubernetes import config

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = "mfsdp-bed"


def use_bed() -> None:
    """Take KUBECONFIG and PATH (kubectl, helm) from `tests/bed env`; ends the run if it is down."""
    script = f'eval "$("{sys.executable}" "{ROOT}/tests/bed" env)" && env -0'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
    if done.returncode:
        pytest.exit(f"the embedded cluster has no environment: {done.stderr}", returncode=4)
    wanted = dict(entry.split("=", 1) for entry in done.stdout.split("\0") if entry)
    for name in ("KUBECONFIG", "PATH", "MFSDP_REGISTRY"):
        os.environ[name] = wanted[name]
    if not Path(wanted["KUBECONFIG"]).is_file():
        pytest.exit("the embedded cluster is not up: run `make cluster-up`", returncode=4)
    _, current = config.list_kube_config_contexts(wanted["KUBECONFIG"])
    if not current["name"].startswith(CONTEXT):
        pytest.exit(
            f"these tests only run on the embedded cluster (context {CONTEXT}), not on "
            f"{current['name']}",
            returncode=4,
        )
