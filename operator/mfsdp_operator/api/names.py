"""Names that make up the API: group, version, kind, labels, and the budget of a job's name."""

import re
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

MAX_ATTEMPTS: Final = 1000
MAX_NODES: Final = 16_384
MAX_JOB_NAME: Final = 63 - len("-999-16383")
"""A pod is NAME-ATTEMPT-RANK and its name is a DNS label of at most 63 characters."""

NAME_PATTERN: Final = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
"""DNS label (RFC 1035): a service has the job's name, and a service's must start with a letter."""


def name_problem(name: str) -> str | None:
    """What is wrong with a job's name, and the fix; None if nothing is."""
    if len(name) > MAX_JOB_NAME:
        return (
            f"metadata.name: at most {MAX_JOB_NAME} characters, since pods are called "
            f"NAME-ATTEMPT-RANK; {name} has {len(name)}"
        )
    if not re.fullmatch(NAME_PATTERN, name):
        return (
            "metadata.name: lower case letters, digits and '-', starting with a letter and ending "
            f"with a letter or digit, not {name!r}"
        )
    return None


def service_name(job: str) -> str:
    """The headless service of a job."""
    return job


def config_map_name(job: str) -> str:
    """The immutable ConfigMap that pins what a job runs with."""
    return f"{job}-config"


def pod_name(job: str, attempt: int, rank: int) -> str:
    """The pod of one node rank in one attempt."""
    return f"{job}-{attempt}-{rank}"
