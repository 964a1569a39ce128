"""Says why pods do not run yet, in the words of scheduler and kubelet, and the fix if known."""

from collections.abc import Sequence

from mfsdp_operator.objects import PodView

from .gang import Fate, Gang
from .outcome import clean

_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull"})
STARTING = "PodsStarting"
"""The one reason that passes by itself."""
_LISTED = 3


def why_waiting(gang: Gang, nodes: int) -> tuple[str, str]:
    """Reason and message while not every trainer runs."""
    waiting = gang.of(Fate.WAITING)
    for pod in waiting:
        if pod.waiting_reason:
            reason = "ImagePull" if pod.waiting_reason in _IMAGE else pod.waiting_reason
            said = clean(pod.waiting_message)
            return reason, f"pod {pod.name}: {pod.waiting_reason}: {said}{_fix(pod)}"
    for pod in waiting:
        if pod.unschedulable:
            return "Unschedulable", f"pod {pod.name}: {clean(pod.unschedulable)}"
    started = gang.count(Fate.RUNNING, Fate.SUCCEEDED)
    return STARTING, f"{started} of {nodes} trainers run"


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
    return f"waiting for {len(pods)} pods to end: {', '.join(names)}{more}"
