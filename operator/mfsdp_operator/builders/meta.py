"""Metadata that all children share: labels to find them by, and the owner that collects them."""

from typing import Any

from mfsdp_operator.api.job import JobMeta
from mfsdp_operator.api.names import (
    API_VERSION,
    KIND,
    LABEL_JOB_NAME,
    LABEL_JOB_UID,
    LABEL_MANAGED_BY,
    MANAGED_BY,
)


def job_labels(job: JobMeta) -> dict[str, str]:
    """Labels of every child. The uid is there because names are used again."""
    return {
        LABEL_MANAGED_BY: MANAGED_BY,
        LABEL_JOB_NAME: job.name,
        LABEL_JOB_UID: job.uid,
    }


def owner_references(job: JobMeta) -> list[dict[str, Any]]:
    """The job as controlling owner: children go with it, and `kubectl drain` accepts the pods."""
    return [
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": job.name,
            "uid": job.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def child_metadata(job: JobMeta, name: str) -> dict[str, Any]:
    """Metadata of a child with this name."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": job_labels(job),
        "ownerReferences": owner_references(job),
    }
