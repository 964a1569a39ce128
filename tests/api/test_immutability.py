"""A job's spec cannot change, but for suspend and restarts: set, changed and removed are all
refused, with what to do instead."""

import pytest
from kubernetes.client import ApiException
from tests.api.cluster import Jobs, Manifest, message
from tests.api.refusals import base, put

from mfsdp_operator.api.rules import MUTABLE_FIELDS, immutable
from mfsdp_operator.api.spec import JobSpec

# field -> changes by dotted path; together they touch every field of the spec.
CHANGES = {
    "useMegatronFSDP": {"spec.useMegatronFSDP": True, "spec.useTorchFSDP2": False},
    "useTorchFSDP2": {"spec.useTorchFSDP2": False},
    "dataParallelShardingStrategy": {"spec.dataParallelShardingStrategy": "optim"},
    "dataParallelReplicas": {"spec.dataParallelReplicas": 2},
    "nodes": {"spec.nodes": 4},
    "gpusPerNode": {"spec.gpusPerNode": 2},
    "procsPerNode": {"spec.procsPerNode": 1},
    "gpuResource": {"spec.gpuResource": "amd.com/gpu"},
    "model": {"spec.model.config.hidden_size": 8},
    "data": {"spec.data.sequenceLength": 64},
    "training": {"spec.training.steps": 11},
    "checkpoint": {"spec.checkpoint.pvc": "claim"},
    "logging": {"spec.logging.port": 9401},
    "hang": {"spec.hang.stepSeconds": 99},
    "performance": {"spec.performance.compile": True},
    "template": {"spec.template.spec.containers": [{"name": "trainer", "image": "x"}]},
}
OUTSIDE = {field.alias or name for name, field in JobSpec.model_fields.items()}


@pytest.fixture(scope="module")
def job(twins: Jobs) -> Manifest:
    """A stored job."""
    manifest = base()
    manifest["metadata"]["name"] = "immutable"
    return twins.create(manifest)


def test_every_field_has_a_change() -> None:
    assert set(CHANGES) | set(MUTABLE_FIELDS) == OUTSIDE


@pytest.mark.parametrize("field", CHANGES)
def test_field_cannot_be_set_or_changed(twins: Jobs, job: Manifest, field: str) -> None:
    changed = twins.get(job["metadata"]["name"])
    for path, value in CHANGES[field].items():
        put(changed, path, value)
    with pytest.raises(ApiException) as caught:
        twins.replace(changed)
    assert immutable(field) in message(caught.value)


def test_field_cannot_be_removed(twins: Jobs) -> None:
    manifest = base()
    manifest["metadata"]["name"] = "removed"
    put(manifest, "spec.procsPerNode", 1)
    stored = twins.create(manifest)
    put(stored, "spec.procsPerNode", None)
    with pytest.raises(ApiException) as caught:
        twins.replace(stored)
    assert immutable("procsPerNode") in message(caught.value)


def test_suspend_and_restarts_can_change(twins: Jobs, job: Manifest) -> None:
    changed = twins.get(job["metadata"]["name"])
    put(changed, "spec.suspend", True)
    put(changed, "spec.restarts.maxRestarts", 7)
    stored = twins.replace(changed)
    assert stored["spec"]["suspend"] is True
    assert stored["metadata"]["generation"] == 2
    put(stored, "spec.suspend", None)
    assert twins.replace(stored)["spec"]["suspend"] is False
