"""Names that make up the API: group, version, kind, labels, and the budget of a job's name."""

from typing import Final

GROUP: Final = "training.mfsdp.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "MegatronFSDPJob"
PLURAL: Final = "megatronfsdpjobs"
SINGULAR: Final = "megatronfsdpjob"
SHORT_NAME: Final = "mfj"

LABEL_JOB_NAME: Final = f"{GROUP}/job-name"
LABEL_JOB_UID: Final = f"{GROUP}/job-uid"
LABEL_ATTEMPT: Final = f"{GROUP}/attempt"
LABEL_NODE_RANK: Final = f"{GROUP}/node-rank"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY: Final = "mfsdp-operator"
RESERVED_LABEL_PREFIX: Final = f"{GROUP}/"

CONFIG_VOLUME: Final = "mfsdp-config"
CHECKPOINT_VOLUME: Final = "mfsdp-checkpoint"
SHM_VOLUME: Final = "shm"
TMP_VOLUME: Final = "tmp"
OWN_VOLUMES: Final = frozenset({CONFIG_VOLUME, CHECKPOINT_VOLUME, SHM_VOLUME, TMP_VOLUME})
"""Volumes that the operator adds to each pod, which a template may mount."""

MAX_ATTEMPTS: Final = 1000
MAX_NODES: Final = 16_384
MAX_JOB_NAME: Final = 63 - len("-999-16383")
"""A pod is NAME-ATTEMPT-RANK and its name is a DNS label of at most 63 characters."""


def service_name(job: str) -> str:
    """The headless service of a job."""
    return job


def config_map_name(job: str) -> str:
    """The immutable ConfigMap that pins what a job runs with."""
    return f"{job}-config"


def pod_name(job: str, attempt: int, rank: int) -> str:
    """The pod of one node rank in one attempt."""
    return f"{job}-{attempt}-{rank}"
