"""The one place that computes conditions. Everything else says what the situation is.

kstatus (Flux, Argo CD) reads them so: a true Reconciling or Stalled comes first, and never are both
true; else Ready decides. A running job is Ready, or tools that wait for health would
time out on every long training. A suspended one has no Ready at all and counts as current. Whether
training has come to its end is Complete or Failed, and nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from .api.reasons import CONDITIONS
from .api.status import Condition, JobPhase
from .clock import to_rfc3339

ConditionStatus = Literal["True", "False", "Unknown"]


@dataclass(frozen=True, slots=True)
class Situation:
    """What there is to say about a job now."""

    phase: JobPhase
    reason: str
    """One word, for machines."""
    message: str
    """One sentence, for people."""
    pods_ready: bool = False
    """Every pod of the gang is ready."""
    settled: bool = False
    """Suspended: no pod is left."""


def compute(
    situation: Situation, previous: Sequence[Condition], generation: int, now: float
) -> tuple[Condition, ...]:
    """Conditions of a situation. Their times change only where their status does."""
    holds = _holding(situation)
    before = {condition.type: condition for condition in previous}
    return tuple(
        _condition(kind, holds[kind], situation, before.get(kind), generation, now)
        for kind in CONDITIONS
        if kind in holds and (kind not in _SHOWN_ONCE_TRUE or holds[kind] or kind in before)
    )


def acknowledge(conditions: Sequence[Condition], generation: int) -> tuple[Condition, ...]:
    """The same conditions, said to hold for a newer generation of the job."""
    return tuple(c.model_copy(update={"observed_generation": generation}) for c in conditions)


_SHOWN_ONCE_TRUE = frozenset({"Suspended", "Restarting", "Complete", "Failed"})
"""Absent until they hold for the first time: a new job does not list what it is not."""


def _holding(now: Situation) -> Mapping[str, bool]:
    """Which conditions the situation has, and whether they hold."""
    phase = now.phase
    moving = phase in (JobPhase.PENDING, JobPhase.STARTING, JobPhase.RESTARTING)
    holds = {
        "Suspended": phase is JobPhase.SUSPENDED,
        "PodsReady": now.pods_ready and phase is JobPhase.RUNNING,
        "Running": phase is JobPhase.RUNNING,
        "Restarting": phase is JobPhase.RESTARTING,
        "Complete": phase is JobPhase.COMPLETE,
        "Failed": phase is JobPhase.FAILED,
    }
    if phase is not JobPhase.SUSPENDED:
        holds["Ready"] = phase in (JobPhase.RUNNING, JobPhase.COMPLETE)
    # Abnormal-true by kstatus' rules: they are there while they hold, and gone after.
    if moving or (phase is JobPhase.SUSPENDED and not now.settled):
        holds["Reconciling"] = True
    if phase is JobPhase.FAILED:
        holds["Stalled"] = True
    return holds


def _condition(
    kind: str,
    holds: bool,
    situation: Situation,
    before: Condition | None,
    generation: int,
    now: float,
) -> Condition:
    status: ConditionStatus = "True" if holds else "False"
    since = to_rfc3339(now)
    if before is not None and before.status == status:
        since = before.last_transition_time
    return Condition(
        type=kind,
        status=status,
        reason=situation.reason,
        # Once for the whole and once where it holds; nine times the same line hides it.
        message=situation.message if holds or kind == "Ready" else "",
        last_transition_time=since,
        observed_generation=max(generation, 0),
    )
