"""The outline of `spec.template`: only what rules and the operator look at has a schema.

A whole pod template would make the CRD too large for `kubectl apply`; everything else in it is kept
as it is and judged by the API server when the pods are made.
"""

from typing import Final

from .rules import RESERVED_POD_FIELDS
from .schema import PRESERVE, Schema

POD_LISTS: Final = (
    "initContainers",
    "volumes",
    "tolerations",
    "topologySpreadConstraints",
    "imagePullSecrets",
)
CONTAINER_LISTS: Final = ("envFrom", "ports", "volumeMounts")
"""Lists that are merged with ours entry by entry, so that entries must be objects."""
_MOUNT: Final = {"name": 63, "mountPath": 256}
"""What a rule reads of each mount, and how long it may be: the rule's cost goes by that."""


def template_properties() -> Schema:
    """The properties of `spec.template`."""
    return {
        "metadata": _metadata(),
        "spec": {
            "description": "Pod spec: any field of one, but those that the operator sets.",
            "type": "object",
            "properties": {
                "containers": _containers(),
                **{name: _objects("a pod's") for name in POD_LISTS},
                **_reserved_pod_fields(),
            },
            PRESERVE: True,
        },
    }


def _objects(whose: str) -> Schema:
    return {
        "description": f"As {whose} field of this name.",
        "type": "array",
        "maxItems": 256,
        "nullable": True,  # null in a template drops what the operator would set
        "items": {"type": "object", PRESERVE: True},
    }


def _metadata() -> Schema:
    return {
        "description": "Labels and annotations of the pods.",
        "type": "object",
        "properties": {
            "labels": {
                "description": "Labels of the pods, beside the operator's own.",
                "type": "object",
                "maxProperties": 64,
                "additionalProperties": {"type": "string", "maxLength": 63},
            },
            "annotations": {
                "description": "Annotations of the pods.",
                "type": "object",
                "maxProperties": 64,
                "additionalProperties": {"type": "string", "maxLength": 16384},
            },
        },
    }


def _reserved_pod_fields() -> Schema:
    return {
        field: {
            "description": f"Refused: {field} is set by the operator.",
            "type": "string",
            "maxLength": 253,
        }
        for field in RESERVED_POD_FIELDS
    }


def _containers() -> Schema:
    return {
        "description": "Containers: the one named trainer is merged with the operator's own, others"
        " run beside it.",
        "type": "array",
        "maxItems": 32,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": {
            "description": "A container: any field of one.",
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {
                    "description": "trainer, or the name of a container beside it.",
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 63,
                },
                "command": {
                    "description": "In the container trainer: your own program, started in place of"
                    " the built-in trainer, once in each pod. Start your script with torchrun: the"
                    " pod has the environment for it (PET_MASTER_ADDR, PET_MASTER_PORT, PET_NNODES,"
                    " PET_NODE_RANK, PET_NPROC_PER_NODE, PET_RDZV_ID), and for other launchers"
                    " MASTER_ADDR, MASTER_PORT, NNODES, NODE_RANK, NPROC_PER_NODE and WORLD_SIZE."
                    " RANK and LOCAL_RANK are torchrun's to set. The job's sharding is in"
                    " MFSDP_ENGINE, MFSDP_SHARDING_STRATEGY, MFSDP_DATA_PARALLEL_REPLICAS and, as"
                    " arguments of megatron sft, in MFSDP_FSDP_ARGS; checkpoint.path is in"
                    " MFSDP_CHECKPOINT_DIR.",
                    "type": "array",
                    "maxItems": 256,
                    "items": {"type": "string", "maxLength": 131072},
                },
                "env": _env(),
                **{name: _objects("a container's") for name in CONTAINER_LISTS},
                "volumeMounts": _mounts(),
            },
            PRESERVE: True,
        },
    }


def _mounts() -> Schema:
    mounts = _objects("a container's")
    mounts["items"]["properties"] = {
        name: {"description": f"As a mount's {name}.", "type": "string", "maxLength": longest}
        for name, longest in _MOUNT.items()
    }
    return mounts


def _env() -> Schema:
    return {
        "description": "Environment variables of the container.",
        "type": "array",
        "maxItems": 512,
        "items": {
            "description": "An environment variable: any field of one.",
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {
                    "description": "Name of the variable.",
                    "type": "string",
                    "maxLength": 256,
                },
                "value": {
                    "description": "Its value.",
                    "type": "string",
                    "maxLength": 131072,
                },
            },
            PRESERVE: True,
        },
    }
