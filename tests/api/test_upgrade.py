"""A newer CRD with tighter rules must not brick running jobs: their status can be written."""

import json
import secrets
import time
from collections.abc import Iterator

import pytest
from kubernetes.client import ApiClient, ApiException
from tests.api.cluster import Jobs, Manifest, kubectl, twin
from tests.api.refusals import base, put

from mfsdp_operator.api import names

_DEADLINE = 30.0


def definition(group: str, *, rules: bool) -> str:
    """The CRD in a group of its own, with or without the rules of its spec."""
    made = twin(group)
    if not rules:
        schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        schema["properties"]["spec"] = _without_rules(schema["properties"]["spec"])
    return json.dumps(made)


def _without_rules(schema: Manifest) -> Manifest:
    return {
        key: _without_rules(value) if isinstance(value, dict) else value
        for key, value in schema.items()
        if key != "x-kubernetes-validations"
    }


@pytest.fixture
def older(api: ApiClient, namespace: str) -> Iterator[Jobs]:
    """Jobs of a CRD that has no rules yet."""
    group = f"old-{secrets.token_hex(4)}.test.mfsdp.dev"
    name = f"crd/{names.PLURAL}.{group}"
    kubectl("apply", "--server-side", "-f", "-", stdin=definition(group, rules=False))
    kubectl("wait", "--for=condition=Established", "--timeout=30s", name)
    yield Jobs(api, namespace, group)
    kubectl("delete", "--wait=false", name)


def wrong(name: str) -> Manifest:
    """A job that breaks a rule of the spec and one of a field."""
    manifest = base()
    manifest["metadata"]["name"] = name
    put(manifest, "spec.training.globalBatchSize", 3)
    put(manifest, "spec.checkpoint.path", "relative")
    return manifest


def await_refusal(jobs: Jobs) -> None:
    """Wait until the tighter rules are in force."""
    deadline = time.monotonic() + _DEADLINE
    while True:
        try:
            jobs.try_out(wrong("probe"))
        except ApiException:
            return
        assert time.monotonic() < deadline, f"waited {_DEADLINE} s for the new rules"


def test_status_of_a_job_older_than_the_rules_can_be_written(older: Jobs) -> None:
    stored = older.create(wrong("running"))
    group = older.api_version.partition("/")[0]
    kubectl("apply", "--server-side", "-f", "-", stdin=definition(group, rules=True))
    await_refusal(older)
    written = older.replace_status(
        stored | {"status": {"observedGeneration": 1, "phase": "Running"}}
    )
    assert written["status"]["phase"] == "Running"
    labelled = older.get("running")
    labelled["metadata"]["labels"] = {"team": "nlp"}
    assert older.replace(labelled)["metadata"]["labels"] == {"team": "nlp"}
