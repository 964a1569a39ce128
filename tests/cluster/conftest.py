"""The operator on the embedded cluster, from its image and chart, and a namespace for each test.

The release has the name and place of the demo's: two operators would serve the same jobs. It stays
installed after the run; the next one upgrades it.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.api.bed import ROOT, use_bed
from tests.api.cluster import kubectl
from tests.cluster.kit import CLAIM, Manifest, Team

SYSTEM = "mfsdp-system"
DEPLOYMENT = "deployment/mfsdp-mfsdp-operator"


def run(*words: str, seconds: float) -> str:
    """Run a command; its output."""
    done = subprocess.run(
        words, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=seconds, check=True
    )
    return done.stdout


@pytest.fixture(scope="session")
def operator() -> str:
    """The operator of this tree, installed and ready; the trainer's image is what jobs will use.

    Returns the namespace that it runs in.
    """
    use_bed()
    bed = [sys.executable, str(ROOT / "tests/bed"), "images", "operator", "trainer"]
    image, trainer = run(*bed, seconds=1800).split()
    settings = {"progressInterval": 1, "pollInterval": 0.5}
    values = {"image.ref": image, "trainerImage": trainer, "settings": settings}
    install = ["helm", "upgrade", "--install", "mfsdp", "charts/mfsdp-operator"]
    where = ["--namespace", SYSTEM, "--create-namespace", "--take-ownership"]
    # JSON: plain --set makes a string of 0.5, which the chart's schema refuses.
    chosen = [f"--set-json={name}={json.dumps(value)}" for name, value in values.items()]
    run(*install, *where, *chosen, "--wait", "--timeout", "3m", seconds=240)
    kubectl("label", "--overwrite", "namespace", SYSTEM, f"{RESTRICTED}=restricted")
    return SYSTEM


RESTRICTED = "pod-security.kubernetes.io/enforce"


@pytest.fixture
def team(operator: str, tmp_path: Path) -> Iterator[Team]:
    """A namespace under the restricted pod security standard, with a claim that all nodes share."""
    name = f"jobs-{uuid4().hex[:8]}"
    kubectl("create", "namespace", name)
    kubectl("label", "namespace", name, f"{RESTRICTED}=restricted")
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o777)
    made = Team(name, volume)
    made.apply(*_claim(CLAIM, name, volume))
    yield made
    kubectl("delete", "namespace", name, "--wait=false")
    kubectl("delete", "persistentvolume", f"{name}-{CLAIM}", "--wait=false")


def _claim(claim: str, namespace: str, directory: Path) -> list[Manifest]:
    """A claim and the static volume that it is bound to: one directory for pods of all nodes."""
    size = {"storage": "1Gi"}
    common = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = f"{namespace}-{claim}"
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                **common,
                "capacity": size,
                "claimRef": {"namespace": namespace, "name": claim},
                "hostPath": {"path": str(directory)},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim},
            "spec": {**common, "volumeName": volume, "resources": {"requests": size}},
        },
    ]
