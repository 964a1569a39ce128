"""Conditions, and the reasons in them, in events and in `status.lastFailure`, with their meaning.

Beside these they carry the words of others, as they are: the trainer's (`mfsdp_trainer.contract`),
the kubelet's why a container waits (CreateContainerConfigError ...), and DisruptionTarget's.
"""

from enum import StrEnum
from typing import Final, Self

CONDITIONS: Final = {
    "Ready": "the job is as it should be: its trainers run, or it is complete",
    "Reconciling": "pods are made, start, end or start again (kstatus)",
    "Stalled": "the job failed (kstatus)",
    "Suspended": "spec.suspend is true; there is no Ready then",
    "PodsReady": "every pod of the gang is ready",
    "Running": "every trainer runs",
    "Restarting": "an attempt ended early and the next one is on its way",
    "Complete": "the job came to its end",
    "Failed": "the job failed and is not tried again",
}
"""Types of conditions in the order in which they are listed. All of a job's have one reason."""


class JobReason(StrEnum):
    """One word for machines; `meaning` is for the reference."""

    meaning: str

    def __new__(cls, value: str, meaning: str) -> Self:
        """A member with its meaning."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.meaning = meaning
        return member

    INVALID_SPEC = "InvalidSpec", "the spec does not add up; the message names field and fix"
    CREATING_PODS = "CreatingPods", "the pods of an attempt are being made"
    QUOTA_EXCEEDED = "QuotaExceeded", "a ResourceQuota leaves no room for a pod; asked again"
    CREATE_FORBIDDEN = "CreateForbidden", "pod security or RBAC forbids an object; asked again"
    WEBHOOK_REFUSED = "WebhookRefused", "an admission webhook refused an object; asked again"
    POLICY_REFUSED = "PolicyRefused", "a ValidatingAdmissionPolicy refused an object; asked again"
    CREATE_INVALID = "CreateInvalid", "the API server finds an object invalid; of a pod final"
    CREATE_REFUSED = "CreateRefused", "the API server refused an object; asked again"
    NAME_TAKEN = "NameTaken", "an object of that name is not this job's"
    POD_CHANGED = "PodChanged", "somebody took the labels off a pod"
    CONFIG_MAP_MISSING = "ConfigMapMissing", "the job's config map was deleted"
    CONFIG_MAP_UNUSABLE = "ConfigMapUnusable", "the job's config map was damaged"
    UNSCHEDULABLE = "Unschedulable", "no node for a pod, in the scheduler's words"
    IMAGE_PULL = "ImagePull", "an image cannot be pulled, in the kubelet's words"
    PODS_STUCK = "PodsStuck", "a pod has not started for a minute and its status does not say why"
    PODS_STARTING = "PodsStarting", "pods start; passes by itself"
    TRAINING = "Training", "every trainer runs"
    PROGRESS_UNKNOWN = "ProgressUnknown", "every trainer runs, but rank 0 does not say how far"
    SUSPENDED = "Suspended", "spec.suspend is true"
    PODS_ENDING = "PodsEnding", "the last attempt's pods still end"
    BACK_OFF = "BackOff", "a wait before the next attempt, after a failure"
    RESTARTING = "Restarting", "event: an attempt ended, the next one follows"
    POD_DELETED = "PodDeleted", "disruption: somebody deleted a pod"
    POD_VANISHED = "PodVanished", "disruption: a pod is gone without a trace"
    NODE_LOST = "NodeLost", "disruption: the node ended a pod"
    POD_FAILED = "PodFailed", "a pod failed and says no more"
    RESTARTS_EXHAUSTED = "RestartsExhausted", "one more attempt than spec.restarts allows"
    COMPLETE = "Complete", "every pod ended well"
