"""The headless service of a job: every pod gets a name that does not change with its address."""

from typing import Any

from mfsdp_operator.api.job import JobMeta
from mfsdp_operator.api.names import LABEL_JOB_UID, service_name
from mfsdp_operator.api.rules import MASTER_PORT

from .meta import child_metadata


def build_service(job: JobMeta) -> dict[str, Any]:
    """The service. Pods get names before they are ready: the gang meets while it starts."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child_metadata(job, service_name(job.name)),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            # By uid: pods of an older job of the same name never answer to it.
            "selector": {LABEL_JOB_UID: job.uid},
            "ports": [{"name": "rendezvous", "port": MASTER_PORT}],
        },
    }
