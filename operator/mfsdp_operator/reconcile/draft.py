"""A decision in the making: the status so far, and the actions so far."""

from collections.abc import Iterable

from mfsdp_operator import conditions
from mfsdp_operator.api.status import (
    AttemptState,
    JobPhase,
    JobStatus,
    TrainingStatus,
    WorkersStatus,
)
from mfsdp_operator.clock import from_rfc3339
from mfsdp_operator.conditions import Situation
from mfsdp_operator.objects import PodView

from . import attempts
from .gang import Fate, Gang, assemble
from .state import Action, Announce, Decision, DeletePod, Memory, Observed, Policy
from .training import between_attempts


class Draft:
    """Collects what one call of `decide` comes to. Lives no longer than the call."""

    def __init__(self, seen: Observed, policy: Policy, now: float) -> None:
        self.seen = seen
        self.policy = policy
        self.now = now
        self.status: JobStatus = seen.job.status
        self.actions: list[Action] = []
        self.look_again_at: float | None = None
        current = seen.memory.attempt == self.status.attempt
        self.memory = seen.memory if current else Memory(attempt=self.status.attempt)

    @property
    def nodes(self) -> int:
        """Pods of the gang."""
        return self.status.workers.desired

    @property
    def trusted(self) -> bool:
        """The pods run the built-in trainer."""
        return self.seen.job.built_in_trainer

    def gang(self) -> Gang:
        """The pods of the current attempt; counted into the status as well."""
        gang = assemble(self.seen.pods, self.status.attempt, self.nodes, trusted=self.trusted)
        self.update(workers=_workers(gang, self.nodes))
        return gang

    def update(self, **fields: object) -> None:
        """Change fields of the status."""
        self.status = self.status.model_copy(update=fields)

    def look_again(self, at: float) -> None:
        """Something is due at this time (Unix seconds)."""
        self.look_again_at = min(at, self.look_again_at or at)

    def phase_until_running(self, otherwise: JobPhase) -> JobPhase:
        """A gang that starts again says so until it runs."""
        restarting = self.status.phase is JobPhase.RESTARTING
        return JobPhase.RESTARTING if restarting else otherwise

    def delete_all(self) -> list[PodView]:
        """End whatever attempt there was; the pods that are still there. All are told to go."""
        if self.status.attempt_state is not None:
            self.update(attempt_state=AttemptState.ENDED)
        self.gang()
        self.stop_training()
        left = sorted(self.seen.pods, key=lambda pod: (pod.attempt, pod.rank))
        self.delete(left)
        return left

    def delete(self, pods: Iterable[PodView]) -> None:
        """Tell these pods to go."""
        self.actions += [DeletePod(pod.name, pod.uid) for pod in pods if not pod.deleting]

    def wait_for_next_attempt(self) -> str | None:
        """Why the next attempt does not begin yet."""
        due = from_rfc3339(self.status.next_attempt_time)
        if due is None or self.now >= due:
            return None
        self.look_again(due)
        last = self.status.last_failure
        why = f"after {attempts.describe(last)}" if last else "after a failure"
        return f"the next attempt begins at {self.status.next_attempt_time}, {why}"

    def stop_training(self) -> None:
        """The attempt is over: keep how far it came."""
        self.update(training=stopped(self.seen, self.status))

    def begin(self, phase: JobPhase) -> None:
        """Begin the next attempt."""
        self.status = attempts.begin(self.status, self.now)
        self.update(phase=phase)
        self.memory = Memory(attempt=self.status.attempt)

    def finish(self, phase: JobPhase, reason: str, message: str) -> Situation:
        """The job has come to its end."""
        self.status = attempts.finish(self.status, phase, self.now)
        well = phase is JobPhase.COMPLETE
        if not well:
            self.stop_training()
        self.actions.append(Announce("Normal" if well else "Warning", reason, message))
        return Situation(phase, reason, message)

    def decision(self, situation: Situation) -> Decision:
        """The finished decision, with the conditions of this situation."""
        generation = self.seen.job.meta.generation
        self.update(
            phase=situation.phase,
            observed_generation=generation,
            conditions=conditions.compute(
                situation, self.seen.job.status.conditions, generation, self.now
            ),
        )
        return Decision(self.status, tuple(self.actions), self.memory, self.look_again_at)


def stopped(seen: Observed, status: JobStatus) -> TrainingStatus | None:
    """What to show of the training of an attempt that is over, and not done."""
    trusted = seen.job.built_in_trainer
    pods = [pod for pod in seen.pods if trusted and pod.attempt == status.attempt]
    return between_attempts(status.training, pods)


def _workers(gang: Gang, nodes: int) -> WorkersStatus:
    counted = WorkersStatus(
        desired=nodes, succeeded=gang.count(Fate.SUCCEEDED), failed=gang.count(Fate.FAILED)
    )
    return still_there(gang, counted)


def still_there(gang: Gang, counted: WorkersStatus) -> WorkersStatus:
    """The count with the pods that exist now; how those ended that did stays as it is."""
    ready = sum(pod.ready and fate is Fate.RUNNING for pod, fate in gang.fates)
    # A pod that is done is not missing from the gang.
    summary = f"{ready + counted.succeeded}/{counted.desired}"
    now = {"created": len(gang.fates), "ready": ready, "summary": summary}
    return counted.model_copy(update=now)
