"""What the API server makes of a job: defaults, pruning, descriptions, columns, status."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.client import ApiException
from tests.api.cluster import Jobs, Manifest, kubectl
from tests.api.refusals import base, put

from mfsdp_operator.api.crd import COLUMNS, crd
from mfsdp_operator.api.job import parse_job
from mfsdp_operator.api.resolve import resolve
from mfsdp_operator.api.schema import walk

ROOT = Path(__file__).resolve().parents[2]


def named(name: str, **changes: object) -> Manifest:
    """The base job under a name, changed by dotted path (with __ for the dots)."""
    manifest = base()
    manifest["metadata"]["name"] = name
    for path, value in changes.items():
        put(manifest, path.replace("__", "."), value)
    return manifest


def test_defaults_of_the_server_are_those_of_the_models(jobs: Jobs) -> None:
    sent = base()
    stored = jobs.try_out(sent)
    assert stored["spec"]["training"]["learningRate"] == 3e-4
    assert stored["spec"]["data"]["tokenizer"] == {"kind": "byte", "vocabSize": 4096}
    assert stored["spec"]["checkpoint"]["path"] == "/checkpoints"
    assert resolve(parse_job(stored).spec) == resolve(parse_job(sent).spec)


def test_defaults_that_depend_on_other_fields_stay_unset(jobs: Jobs) -> None:
    spec = jobs.try_out(base())["spec"]
    assert "procsPerNode" not in spec
    assert "dataParallelShardingStrategy" not in spec


def test_null_counts_as_unset(jobs: Jobs) -> None:
    sent = named("nulls", spec__checkpoint=None)
    sent["spec"] |= {"checkpoint": None, "procsPerNode": None}
    stored = jobs.try_out(sent)
    assert stored["spec"]["checkpoint"]["keep"] == 2
    assert parse_job(stored).spec == parse_job(sent).spec


def test_unknown_fields_are_pruned_but_not_in_template_and_model_config(twins: Jobs) -> None:
    sent = named("pruned", spec__noSuchField=1, spec__training__noSuchField=1)
    put(sent, "spec.model.config.rope_scaling", {"factor": 2.5, "kinds": ["a"]})
    put(sent, "spec.template.spec.priorityClassName", "high")
    put(sent, "spec.template.spec.containers", [{"name": "trainer", "resources": {"limits": {}}}])
    spec = twins.create(sent)["spec"]
    assert "noSuchField" not in spec
    assert "noSuchField" not in spec["training"]
    assert spec["model"]["config"]["rope_scaling"] == {"factor": 2.5, "kinds": ["a"]}
    assert spec["template"] == sent["spec"]["template"]


def test_numbers_in_yaml_are_numbers(jobs: Jobs) -> None:
    sent = named("numbers")
    text = json.dumps(sent).replace('"steps": 10', '"steps": 10.0, "learningRate": 1e-5')
    shown = kubectl(
        "create", "--dry-run=server", "-o", "json", "-n", jobs.namespace, "-f", "-", stdin=text
    )
    assert json.loads(shown)["spec"]["training"]["learningRate"] == 1e-5


def test_a_new_job_is_not_taken_for_one_that_was_seen(twins: Jobs) -> None:
    twins.create(named("unseen"))
    assert twins.get("unseen")["status"] == {"observedGeneration": -1}


def test_status_is_a_subresource_and_keeps_what_the_models_write(twins: Jobs) -> None:
    status = _full_status()
    made = twins.create(named("status") | {"status": {"phase": "Complete"}})
    assert "phase" not in made["status"]
    stored = twins.replace_status(made | {"status": status})
    assert stored["status"] == status
    assert stored["metadata"]["generation"] == 1
    untouched = twins.replace(stored | {"status": {}})
    assert untouched["status"] == status


def test_printer_columns_show_spec_and_status(twins: Jobs) -> None:
    made = twins.create(named("columns", spec__gpusPerNode=2))
    twins.replace_status(made | {"status": _full_status()})
    lines = kubectl(
        "get", twins.resource, "columns", "-o", "wide", "-n", twins.namespace
    ).splitlines()
    head, row = (line.split() for line in lines)
    assert head == ["NAME", *(name.upper() for name, *_ in COLUMNS)]
    shown = dict(zip(head, row, strict=True))
    del shown["AGE"]
    assert " ".join(shown.values()) == (
        "columns Running 7/8 optim_grads 120 2.31 2 16 3 PodsReady torch_fsdp2 95"
    )


def test_conditions_are_a_map_by_type(twins: Jobs) -> None:
    made = twins.create(named("conditions"))
    twice = [_condition("Ready"), _condition("Ready")]
    with_two = made | {"status": {"observedGeneration": 1, "conditions": twice}}
    with pytest.raises(ApiException, match="Duplicate value"):
        twins.replace_status(with_two)


def test_server_side_apply_twice_changes_nothing(twins: Jobs) -> None:
    text = yaml.safe_dump(
        twins.here(named("applied", spec__template__spec__containers=[{"name": "trainer"}]))
    )
    apply = ("apply", "--server-side", "-n", twins.namespace, "-f", "-")
    kubectl(*apply, stdin=text)
    twins.replace_status(twins.get("applied") | {"status": _full_status()})
    before = twins.get("applied")["metadata"]["resourceVersion"]
    kubectl(*apply, stdin=text)
    assert twins.get("applied")["metadata"]["resourceVersion"] == before


def test_explain_describes_every_field(jobs: Jobs) -> None:
    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    document = json.loads(kubectl("get", "--raw", "/openapi/v3/apis/training.mfsdp.dev/v1alpha1"))
    served = next(
        kind
        for name, kind in document["components"]["schemas"].items()
        if name.endswith(".MegatronFSDPJob")
    )
    published = dict(walk(served))
    for path, _ in walk(schema):
        if not path.startswith("metadata."):
            assert len(published[path].get("description", "")) > 4, f"no description: {path}"


def test_explain_shows_the_description(jobs: Jobs) -> None:
    shown = kubectl("explain", "mfj.spec.dataParallelShardingStrategy")
    assert "no_shard (ZeRO-0), optim (ZeRO-1)" in " ".join(shown.split())


def test_examples_are_accepted(jobs: Jobs) -> None:
    for file in sorted((ROOT / "examples").glob("*.yaml")):
        kubectl("apply", "--dry-run=server", "-n", jobs.namespace, "-f", str(file))


def _condition(kind: str) -> dict[str, Any]:
    return {
        "type": kind,
        "status": "True",
        "reason": "PodsReady",
        "message": "7 of 8 pods are ready",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
        "observedGeneration": 1,
    }


def _full_status() -> dict[str, Any]:
    """A status with every field set, so that a field the CRD lacks would be pruned and missed."""
    return {
        "observedGeneration": 1,
        "phase": "Running",
        "conditions": [_condition("Ready"), _condition("Running")],
        "attempt": 4,
        "attemptState": "Active",
        "nextAttemptTime": "2026-01-02T03:04:05Z",
        "sharding": {
            "engine": "torch_fsdp2",
            "strategy": "optim_grads",
            "worldSize": 16,
            "shardSize": 16,
            "microBatches": 2,
        },
        "gpus": 16,
        "workers": {
            "desired": 8,
            "created": 8,
            "ready": 7,
            "succeeded": 0,
            "failed": 0,
            "summary": "7/8",
        },
        "restarts": {"failures": 1, "disruptions": 2, "total": 3},
        "training": {
            "step": 120,
            "totalSteps": 1000,
            "phase": "Training",
            "loss": "2.31",
            "evalLoss": "2.4",
            "tokensPerSecond": "1000",
            "etaSeconds": 95,
            "resumedFromStep": 100,
            "checkpointStep": 100,
            "updatedAt": "2026-01-02T03:04:05Z",
        },
        "lastFailure": {
            "attempt": 3,
            "disruption": False,
            "reason": "Crash",
            "message": "RuntimeError: x",
            "pod": "columns-3-0",
            "exitCode": 87,
            "time": "2026-01-02T03:04:05Z",
        },
        "startTime": "2026-01-02T03:04:05Z",
        "completionTime": "2026-01-02T03:04:05Z",
    }
