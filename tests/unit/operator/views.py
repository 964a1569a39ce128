"""Jobs and pods as the API server hands them out, for pure functions to look at."""

import json
from typing import Any

from mfsdp_operator.api.names import (
    API_VERSION,
    KIND,
    LABEL_ATTEMPT,
    LABEL_JOB_NAME,
    LABEL_JOB_UID,
    LABEL_NODE_RANK,
)
from mfsdp_operator.api.status import JobStatus
from mfsdp_operator.objects import JobView, PodView, job_view, pod_view
from mfsdp_operator.reconcile import Policy

UID = "11111111-2222-3333-4444-555555555555"
NOW = 1_800_000_000.0
POLICY = Policy(trainer_image="registry/trainer:1")
OWN_PROGRAM = {"spec": {"containers": [{"name": "trainer", "command": ["python", "mine.py"]}]}}


def built_in(**fields: Any) -> dict[str, Any]:
    """The spec of a job for the built-in trainer, on two nodes."""
    spec: dict[str, Any] = {
        "nodes": 2,
        "gpusPerNode": 0,
        "useTorchFSDP2": True,
        "model": {"config": {"model_type": "llama"}},
        "data": {"sources": [{"builtin": "python-stdlib"}]},
        "training": {"steps": 10, "globalBatchSize": 4},
    }
    return spec | fields


def job(
    spec: dict[str, Any] | None = None,
    status: JobStatus | None = None,
    name: str = "llama",
    **meta: Any,
) -> JobView:
    """A job; `status` as decided before."""
    return job_view(
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {
                "namespace": "team",
                "name": name,
                "uid": UID,
                "resourceVersion": "5",
                "generation": 1,
                **meta,
            },
            "spec": built_in() if spec is None else spec,
            "status": (status or JobStatus()).model_dump(mode="json", by_alias=True),
        }
    )


def pod(rank: int, attempt: int = 1, state: dict[str, Any] | None = None, **status: Any) -> PodView:
    """A pod of the job; `state` is its trainer container's. `deleting=True` for one on its way."""
    meta: dict[str, Any] = {
        "namespace": "team",
        "name": f"llama-{attempt}-{rank}",
        "uid": f"pod-{attempt}-{rank}",
        "resourceVersion": "7",
        "labels": {
            LABEL_JOB_NAME: "llama",
            LABEL_JOB_UID: UID,
            LABEL_ATTEMPT: str(attempt),
            LABEL_NODE_RANK: str(rank),
        },
        "ownerReferences": [{"uid": UID, "controller": True}],
    }
    meta["creationTimestamp"] = status.pop("created", None)
    node = status.pop("node", f"node{rank}")
    if status.pop("deleting", False):
        meta["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    if status.pop("ready", False):
        status["conditions"] = [{"type": "Ready", "status": "True"}]
    if state is not None:
        status["containerStatuses"] = [{"name": "trainer", "state": state}]
    view = pod_view(
        {"metadata": meta, "spec": {"nodeName": node}, "status": {"phase": "", **status}}
    )
    assert view is not None
    return view


def waiting(rank: int, attempt: int = 1, reason: str = "", message: str = "") -> PodView:
    """A pod whose trainer has not started."""
    why = {"reason": reason or "ContainerCreating", "message": message}
    return pod(rank, attempt, {"waiting": why}, phase="Pending")


def running(rank: int, attempt: int = 1, **status: Any) -> PodView:
    """A pod that trains."""
    fields = {"phase": "Running", "ready": True, "podIP": f"10.0.0.{rank + 1}"} | status
    return pod(rank, attempt, {"running": {}}, **fields)


def ended(
    rank: int, attempt: int = 1, code: int = 0, message: str = "", at: int = 0, **status: Any
) -> PodView:
    """A pod whose trainer exited; `at` orders the ends."""
    end = {
        "exitCode": code,
        "message": message,
        "finishedAt": f"2027-01-15T08:00:{at:02d}Z",
        "reason": status.pop("reason", ""),
    }
    fields = {"phase": "Failed" if code else "Succeeded"} | status
    return pod(rank, attempt, {"terminated": end}, **fields)


def outcome(reason: str, message: str = "", step: int | None = None, **more: Any) -> str:
    """A termination message of the built-in trainer."""
    said = {"tag": "mfsdp.dev/outcome", "reason": reason, "message": message, "step": step}
    return json.dumps(said | more)
