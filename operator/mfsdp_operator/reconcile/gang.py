"""Reads the pods of one attempt: what became of each, and what that means for the gang."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from mfsdp_operator.api.names import pod_name
from mfsdp_operator.api.reasons import JobReason
from mfsdp_operator.objects import PodView

from .outcome import Failure, failure_of, says_done


class Fate(Enum):
    """What became of a pod."""

    WAITING = auto()
    RUNNING = auto()
    SUCCEEDED = auto()
    FAILED = auto()
    DISRUPTED = auto()


def fate(pod: PodView, *, trusted: bool) -> Fate:
    """What became of a pod. The trainer container decides: a sidecar may outlive it.

    A program that was told to end may exit with 0 halfway through, so in a disrupted pod only the
    built-in trainer's word (`trusted`) counts as success.
    """
    ended = pod.terminated
    disrupted = bool(pod.disruption) or pod.deleting
    if pod.phase == "Succeeded" or (ended is not None and ended.exit_code == 0):
        done = not disrupted or (trusted and says_done(pod))
        return Fate.SUCCEEDED if done else Fate.DISRUPTED
    if disrupted or _lost(pod):
        return Fate.DISRUPTED
    if pod.phase == "Failed" or ended is not None:
        return Fate.FAILED
    return Fate.RUNNING if pod.running else Fate.WAITING


def _lost(pod: PodView) -> bool:
    """The node ended it, not the program: evicted, refused by the kubelet, the node restarted."""
    if pod.terminated is not None:
        return pod.terminated.reason == "ContainerStatusUnknown"
    return pod.phase == "Failed"


@dataclass(frozen=True, slots=True)
class Gang:
    """The pods of one attempt, each beside its fate."""

    fates: tuple[tuple[PodView, Fate], ...]
    missing: tuple[int, ...]
    """Ranks without a pod."""

    def count(self, *kinds: Fate) -> int:
        """How many pods met one of these fates."""
        return sum(what in kinds for _, what in self.fates)

    def of(self, kind: Fate) -> list[PodView]:
        """The pods that met this fate."""
        return [pod for pod, what in self.fates if what is kind]


@dataclass(frozen=True, slots=True)
class Ending:
    """The attempt is over, and not well."""

    reason: str
    message: str
    pod: str
    exit_code: int | None = None
    disruption: bool = False
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A pod failed; the others may yet say why."""


def assemble(pods: Iterable[PodView], attempt: int, nodes: int, *, trusted: bool) -> Gang:
    """The gang of an attempt."""
    mine = sorted((p for p in pods if p.attempt == attempt), key=lambda pod: pod.rank)
    present = {pod.rank for pod in mine}
    return Gang(
        fates=tuple((pod, fate(pod, trusted=trusted)) for pod in mine),
        missing=tuple(rank for rank in range(nodes) if rank not in present),
    )


def ending(
    gang: Gang, job: str, attempt: int, *, all_made: bool, trusted: bool, settled: bool
) -> Ending | Unsettled | None:
    """How the attempt ended; None while it goes on or when it went well.

    A permanent error is told first: no other evidence changes it. A disruption explains failures
    beside it. `all_made`: a rank without a pod has lost it. `settled`: waited long enough.
    """
    failures = [
        failure_of(pod, trusted=trusted)
        for pod, what in gang.fates
        if what in (Fate.FAILED, Fate.DISRUPTED)
    ]
    permanent = [failure for failure in failures if failure.permanent]
    if permanent:
        return _as_ending(_first(permanent))
    disruption = _disruption(gang, job, attempt, all_made)
    if disruption is not None:
        return disruption
    if not failures:
        return None
    if not settled and gang.count(Fate.WAITING, Fate.RUNNING):
        return Unsettled()
    return _as_ending(_first(failures))


def _first(failures: Sequence[Failure]) -> Failure:
    """The failure to tell: a specific one before an echo, then the earliest."""

    def order(failure: Failure) -> tuple[bool, float, int]:
        ended = failure.pod.terminated
        return failure.echo, ended.finished_at if ended else 0.0, failure.pod.rank

    return min(failures, key=order)


def _as_ending(failure: Failure) -> Ending:
    return Ending(
        reason=failure.reason,
        message=failure.message,
        pod=failure.pod.name,
        exit_code=failure.exit_code,
        permanent=failure.permanent,
    )


def _disruption(gang: Gang, job: str, attempt: int, all_made: bool) -> Ending | None:
    for pod in gang.of(Fate.DISRUPTED):
        reason, why = _why_disrupted(pod)
        exit_code = pod.terminated.exit_code if pod.terminated else None
        return Ending(reason, why, pod.name, exit_code, disruption=True)
    if all_made and gang.missing:
        name = pod_name(job, attempt, gang.missing[0])
        return Ending(
            JobReason.POD_VANISHED, "the pod is gone without a trace", name, disruption=True
        )
    return None


def _why_disrupted(pod: PodView) -> tuple[str, str]:
    where = f" on node {pod.node}" if pod.node else ""
    if pod.disruption:
        return pod.disruption, f"the pod was evicted{where}"
    if pod.deleting:
        return JobReason.POD_DELETED, f"the pod was deleted{where}"
    return pod.reason or JobReason.NODE_LOST, f"the node ended the pod{where}"
