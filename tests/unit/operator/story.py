"""A job from decision to decision, and what to ask of a decision: for tests that tell its life."""

from typing import Any

from tests.unit.operator.views import NOW, POLICY, built_in, job, running, waiting

from mfsdp_operator.api.status import JobPhase, JobStatus
from mfsdp_operator.objects import JobView, PodView
from mfsdp_operator.reconcile import Decision, Memory, Observed, decide
from mfsdp_operator.reconcile.state import Announce, CreatePods, DeletePod


class Story:
    """A job whose status is kept from decision to decision, as the API server would."""

    def __init__(self, spec: dict[str, Any] | None = None) -> None:
        self.spec = built_in() if spec is None else spec
        self.status = JobStatus()
        self.memory = Memory()
        self.now = NOW
        self.meta: dict[str, Any] = {}

    def view(self) -> JobView:
        """The job now."""
        return job(self.spec, self.status, **self.meta)

    def sees(self, *pods: PodView, service: bool = True, **more: Any) -> Decision:
        """What is decided with these pods; the status and the memory are kept."""
        seen = Observed(self.view(), pods, service_exists=service, memory=self.memory, **more)
        decision = decide(seen, POLICY, self.now)
        self.status, self.memory = decision.status, decision.memory
        return decision

    def trains(self, attempt: int = 1) -> "Story":
        """Two pods run."""
        self.sees(*(waiting(rank, attempt) for rank in range(2)))
        self.sees(running(0, attempt), running(1, attempt))
        assert self.status.phase is JobPhase.RUNNING
        return self

    def condition(self, kind: str) -> str | None:
        """Status of a condition; None where it is absent."""
        return next((c.status for c in self.status.conditions if c.type == kind), None)


def made(decision: Decision) -> list[int]:
    """Ranks whose pods are to be made."""
    return [r for a in decision.actions if isinstance(a, CreatePods) for r in a.ranks]


def deleted(decision: Decision) -> list[str]:
    """Pods that are told to go."""
    return [a.name for a in decision.actions if isinstance(a, DeletePod)]


def told(decision: Decision) -> list[tuple[str, str]]:
    """Reasons and messages of the events."""
    return [(a.reason, a.message) for a in decision.actions if isinstance(a, Announce)]
