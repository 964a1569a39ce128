"""The pods of a gang, in two steps.

`build_template` renders the whole pod once, when a job is first seen; the result is pinned in the
job's config map, so that neither a new version of the operator nor a changed default alters a job
that runs. `stamp` makes one pod of it: only rank, attempt and what follows from them differ.
"""

import copy
from collections.abc import Mapping
from typing import Any, Final

from mfsdp_operator.api.job import JobMeta
from mfsdp_operator.api.names import (
    CHECKPOINT_VOLUME,
    CONFIG_VOLUME,
    LABEL_ATTEMPT,
    LABEL_JOB_UID,
    LABEL_NODE_RANK,
    SHM_VOLUME,
    TMP_VOLUME,
    config_map_name,
    pod_name,
    service_name,
)
from mfsdp_operator.api.resolve import ResolvedJob
from mfsdp_operator.api.spec import JobSpec
from mfsdp_operator.api.template import mount_over
from mfsdp_trainer.contract import CONFIG_FILE, CONFIG_MOUNT, CONTAINER_NAME

from .merge import merge
from .meta import job_labels, owner_references
from .pod_env import gang_env, library_env, stamped_env

USER_ID: Final = 65532
"""User and group of the images; volumes belong to it through fsGroup."""
GRACE_SECONDS: Final = 120
"""A pod that is told to end has this long for its checkpoint."""
_EVICT_AFTER_SECONDS: Final = 30
"""Tolerated absence of a node; Kubernetes' own default is 300 s of idle GPUs on all others."""


def build_template(
    job: JobMeta, spec: JobSpec, resolved: ResolvedJob, image: str
) -> dict[str, Any]:
    """The pod of every rank, with the user's template laid over it. Names and ranks are open."""
    overlay = spec.template
    pod_spec = merge(_pod_spec(job, spec, resolved, image), overlay.get("spec") or {})
    _set_env(pod_spec, job, spec, resolved)
    metadata = overlay.get("metadata") or {}
    return {
        "metadata": {
            "labels": {**(metadata.get("labels") or {}), **job_labels(job)},
            "annotations": dict(metadata.get("annotations") or {}),
        },
        "spec": pod_spec,
    }


def stamp(template: Mapping[str, Any], job: JobMeta, attempt: int, rank: int) -> dict[str, Any]:
    """The pod of one rank in one attempt, ready to be sent."""
    pod = copy.deepcopy(dict(template))
    name = pod_name(job.name, attempt, rank)
    pod["apiVersion"], pod["kind"] = "v1", "Pod"
    pod["metadata"] |= {
        "name": name,
        "namespace": job.namespace,
        "ownerReferences": owner_references(job),
    }
    pod["metadata"]["labels"] |= {LABEL_ATTEMPT: str(attempt), LABEL_NODE_RANK: str(rank)}
    pod["spec"] |= {"hostname": name, "subdomain": service_name(job.name)}
    values = stamped_env(job.name, job.uid, attempt, rank)
    for entry in _trainer(pod["spec"])["env"]:
        if entry["name"] in values:
            entry["value"] = values[entry["name"]]
    return pod


def _trainer(pod_spec: Mapping[str, Any]) -> dict[str, Any]:
    containers: list[dict[str, Any]] = pod_spec["containers"]
    return next(c for c in containers if c["name"] == CONTAINER_NAME)


def _set_env(pod_spec: dict[str, Any], job: JobMeta, spec: JobSpec, resolved: ResolvedJob) -> None:
    """Ours first, so that the user's values may refer to them as $(NODE_RANK)."""
    trainer = _trainer(pod_spec)
    given = trainer.get("env") or []
    names = {entry.get("name") for entry in given}
    soft = library_env(spec, resolved, pod_spec)
    ours = gang_env(job, spec, resolved) | {k: v for k, v in soft.items() if k not in names}
    trainer["env"] = [*({"name": str(k), "value": v} for k, v in ours.items()), *given]


def _pod_spec(job: JobMeta, spec: JobSpec, resolved: ResolvedJob, image: str) -> dict[str, Any]:
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            # A big checkpoint volume must not be walked at every start.
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "tolerations": [_toleration("not-ready"), _toleration("unreachable")],
        "topologySpreadConstraints": [_spread(job)],
        "containers": [_trainer_container(spec, resolved, image)],
        "volumes": _volumes(job, spec, resolved),
    }


def _toleration(taint: str) -> dict[str, Any]:
    return {
        "key": f"node.kubernetes.io/{taint}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": _EVICT_AFTER_SECONDS,
    }


def _spread(job: JobMeta) -> dict[str, Any]:
    """`nodes` means nodes where the cluster has as many: a wish, not a condition."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {LABEL_JOB_UID: job.uid}},
    }


def _trainer_container(spec: JobSpec, resolved: ResolvedJob, image: str) -> dict[str, Any]:
    container: dict[str, Any] = {
        "name": CONTAINER_NAME,
        "image": image,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": _mounts(spec),
    }
    if spec.gpus_per_node:
        container["resources"] = {"limits": {spec.gpu_resource: str(spec.gpus_per_node)}}
    if not resolved.own_program:
        container |= _built_in_trainer(spec.logging.port)
    return container


def _built_in_trainer(port: int) -> dict[str, Any]:
    return {
        "command": ["mfsdp-train", "--config", CONFIG_FILE],
        "ports": [{"name": "http", "containerPort": port}],
        "readinessProbe": {
            "httpGet": {"path": "/healthz", "port": port},
            "periodSeconds": 2,
            "timeoutSeconds": 5,
        },
    }


def _mounts(spec: JobSpec) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = [
        {"name": CONFIG_VOLUME, "mountPath": CONFIG_MOUNT, "readOnly": True},
        {"name": SHM_VOLUME, "mountPath": "/dev/shm"},
        {"name": TMP_VOLUME, "mountPath": "/tmp"},
    ]
    if _has_checkpoint_volume(spec):
        mounts.append({"name": CHECKPOINT_VOLUME, "mountPath": spec.checkpoint.path})
    return mounts


def _has_checkpoint_volume(spec: JobSpec) -> bool:
    """The root file system is read-only, so the directory of checkpoints is a volume always; unless
    the user mounts one there, or an object store takes its place."""
    path = spec.checkpoint.path
    return "://" not in path and mount_over(spec.template, path) is None


def _volumes(job: JobMeta, spec: JobSpec, resolved: ResolvedJob) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {
            "name": CONFIG_VOLUME,
            "configMap": {
                "name": config_map_name(job.name),
                "items": [{"key": "config.yaml", "path": "config.yaml"}],
            },
        },
        # NCCL and data loaders share memory here; the runtime's default of 64 MB is too little. It
        # counts against the container's memory limit only as far as it is used.
        {
            "name": SHM_VOLUME,
            "emptyDir": {"medium": "Memory", "sizeLimit": f"{resolved.procs_per_node}Gi"},
        },
        {"name": TMP_VOLUME, "emptyDir": {}},
    ]
    if _has_checkpoint_volume(spec):
        source: dict[str, Any] = {"emptyDir": {}}
        if spec.checkpoint.pvc:
            source = {"persistentVolumeClaim": {"claimName": spec.checkpoint.pvc}}
        volumes.append({"name": CHECKPOINT_VOLUME, **source})
    return volumes
