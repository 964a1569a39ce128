"""`decide`: from one look at a job to what its status should be and what to do next.

    (new) -> Creating -> Active -> Complete
                ^           |
                |           v
                +------- Ended --> Failed

An attempt is Creating while its pods are made and Active once they were. When it fails or is
disrupted, or the user suspends the job, it is Ended: its pods are told to go, and when the last one
is gone the next attempt begins, under the next number.
"""

from dataclasses import replace

from mfsdp_operator import conditions
from mfsdp_operator.api.problems import InvalidSpecError
from mfsdp_operator.api.reasons import JobReason
from mfsdp_operator.api.status import AttemptState, JobPhase, JobStatus
from mfsdp_operator.clock import from_rfc3339
from mfsdp_operator.conditions import Situation

from . import attempts
from .admit import admitted, understand
from .draft import Draft, still_there, stopped
from .gang import assemble
from .state import Announce, Decision, DeletePod, Observed, Policy
from .underway import under_way
from .waiting import why_leftovers

_SIDECAR_SECONDS = 30.0
FINISHED = frozenset({JobPhase.COMPLETE, JobPhase.FAILED})


def decide(seen: Observed, policy: Policy, now: float) -> Decision:
    """What the status should be and what to do. `now` is Unix seconds."""
    status = seen.job.status
    if seen.job.meta.deleting:
        # The garbage collector takes the children; making more would fight it.
        return Decision(status)
    if status.phase in FINISHED:
        return _finished(seen, _recounted(seen, _acknowledged(seen)), now)
    if not seen.fresh and any(pod.attempt > status.attempt for pod in seen.pods):
        # Attempts are written down before their pods are made: the job we hold is an old one.
        return Decision(status, refresh=True)
    draft = Draft(seen, policy, now)
    situation = _live(draft)
    decision = draft.decision(situation)
    if situation.phase in FINISHED:
        stop = _finished(seen, decision.status, now)
        decision = replace(
            decision, actions=decision.actions + stop.actions, look_again_at=stop.look_again_at
        )
    return decision


def _finished(seen: Observed, status: JobStatus, now: float) -> Decision:
    """A finished job keeps the pods that ended, for their logs, and stops those that have not.

    Where the trainer has ended and the pod has not, the kubelet is about to say so, or a sidecar
    runs on: that is given a while.
    """
    unfinished = [
        pod for pod in seen.pods if pod.phase not in ("Succeeded", "Failed") and not pod.deleting
    ]
    late = (from_rfc3339(status.completion_time) or now) + _SIDECAR_SECONDS
    stopped = [pod for pod in unfinished if pod.terminated is None or now >= late]
    return Decision(
        status,
        tuple(DeletePod(pod.name, pod.uid) for pod in stopped),
        look_again_at=late if len(stopped) < len(unfinished) else None,
    )


def _acknowledged(seen: Observed) -> JobStatus:
    """A finished job changes no more, but says that it has seen what was written into its spec."""
    status, generation = seen.job.status, seen.job.meta.generation
    if status.observed_generation == generation:
        return status
    seen_by_all = conditions.acknowledge(status.conditions, generation)
    return status.model_copy(update={"observed_generation": generation, "conditions": seen_by_all})


def _recounted(seen: Observed, status: JobStatus) -> JobStatus:
    """A failed job stops its pods: it must not go on saying that they are ready or train."""
    if status.phase is not JobPhase.FAILED or not status.workers.desired:
        return status
    trusted = seen.job.built_in_trainer
    gang = assemble(seen.pods, status.attempt, status.workers.desired, trusted=trusted)
    workers, training = still_there(gang, status.workers), stopped(seen, status)
    return status.model_copy(update={"workers": workers, "training": training})


def _live(draft: Draft) -> Situation:
    """A job that has not come to its end."""
    if draft.status.sharding is None:
        try:
            draft.status = admitted(draft.status, *understand(draft.seen.job))
        except InvalidSpecError as error:
            return draft.finish(JobPhase.FAILED, JobReason.INVALID_SPEC, str(error))
    if draft.status.attempt_state in (AttemptState.CREATING, AttemptState.ACTIVE):
        situation = under_way(draft)
        if situation is not None:
            return situation
    if draft.seen.job.suspended:
        return _suspended(draft)
    return _between(draft)


def _suspended(draft: Draft) -> Situation:
    """No pods, as the user wants it. Those that run are told to go, after a checkpoint."""
    if draft.status.phase is not JobPhase.SUSPENDED:
        draft.actions.append(Announce("Normal", JobReason.SUSPENDED, "spec.suspend is true"))
    left = draft.delete_all()
    message = why_leftovers(left) if left else "set spec.suspend to false to go on"
    return Situation(JobPhase.SUSPENDED, JobReason.SUSPENDED, message, settled=not left)


def _between(draft: Draft) -> Situation:
    """No attempt is under way: clear up after the last one, wait if need be, begin the next."""
    phase = draft.phase_until_running(JobPhase.PENDING)
    left = draft.delete_all()
    if left:
        return Situation(phase, JobReason.PODS_ENDING, why_leftovers(left))
    wait = draft.wait_for_next_attempt()
    if wait is not None:
        return Situation(phase, JobReason.BACK_OFF, wait)
    if draft.status.attempt >= attempts.MAX_ATTEMPT:
        message = f"no job has more than {attempts.MAX_ATTEMPT} attempts"
        return draft.finish(JobPhase.FAILED, JobReason.RESTARTS_EXHAUSTED, message)
    draft.begin(phase)
    situation = under_way(draft)
    if situation is None:
        raise AssertionError("an attempt that has just begun is under way")
    return situation
