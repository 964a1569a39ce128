"""Says why pods do not run yet, in the words of scheduler and kubelet, and the fix if known."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from mfsdp_operator.api.reasons import JobReason
from mfsdp_operator.objects import PodView
from mfsdp_trainer.words import counted

from .gang import Fate, Gang
from .outcome import clean

_IMAGE: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"}
)
STARTING: Final = JobReason.PODS_STARTING
"""The one reason that passes by itself."""
_LISTED: Final = 3
_LATE: Final = 60.0
"""Seconds after which a pod that has not started is looked at more closely. The kubelet tells only
in events why a volume is not there, and the operator reads none."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why not every trainer runs yet."""

    reason: str
    message: str
    look_again_at: float | None = None
    """Unix seconds: what passes by itself has taken too long then."""


def why_waiting(gang: Gang, nodes: int, now: float) -> Waiting:
    """What holds up the pods, the scheduler's and the kubelet's own words first."""
    waiting = gang.of(Fate.WAITING)
    for pod in waiting:
        if pod.waiting_reason:
            reason = JobReason.IMAGE_PULL if pod.waiting_reason in _IMAGE else pod.waiting_reason
            said = clean(pod.waiting_message)
            return Waiting(reason, f"pod {pod.name}: {pod.waiting_reason}: {said}{_fix(pod)}")
    for pod in waiting:
        if pod.unschedulable:
            return Waiting(JobReason.UNSCHEDULABLE, f"pod {pod.name}: {clean(pod.unschedulable)}")
    late = [pod for pod in waiting if pod.created is not None and now >= pod.created + _LATE]
    for pod in late:
        if why := _why_stuck(pod):
            return Waiting(JobReason.PODS_STUCK, f"pod {pod.name}: {why}")
    started = gang.count(Fate.RUNNING, Fate.SUCCEEDED)
    message = f"{started} of {nodes} trainers run{_what_takes_long(late)}"
    soon = [pod.created + _LATE for pod in waiting if pod.created and pod not in late]
    return Waiting(STARTING, message, min(soon, default=None))


def _why_stuck(pod: PodView) -> str:
    """Why a pod that says nothing has not started for so long; empty for what may take its time."""
    if not pod.node:
        return "no scheduler has looked at it: is schedulerName in template.spec right?"
    if pod.initializing or pod.prepared:
        return ""
    return (
        f"its volumes or its network are not ready on {pod.node}; often a secret, a config map or "
        f"a volume of template does not exist: kubectl describe pod {pod.name} shows which"
    )


def _what_takes_long(late: Sequence[PodView]) -> str:
    for pod in late:
        if pod.initializing:
            return f"; pod {pod.name}: its init container {pod.initializing} runs"
        return f"; pod {pod.name}: its image is still being pulled to {pod.node}"
    return ""


def _fix(pod: PodView) -> str:
    if pod.waiting_reason == "CreateContainerConfigError" and "root" in pod.waiting_message:
        return (
            "; images that run as root need a user: set runAsUser in "
            "template.spec.securityContext, or runAsNonRoot: false where the namespace allows it"
        )
    return ""


def why_leftovers(pods: Sequence[PodView]) -> str:
    """Message while pods of an attempt that is over still end."""
    names = [f"{pod.name} on {pod.node}" if pod.node else pod.name for pod in pods[:_LISTED]]
    more = f" and {len(pods) - _LISTED} more" if len(pods) > _LISTED else ""
    return f"waiting for {counted(len(pods), 'pod')} to end: {', '.join(names)}{more}"
