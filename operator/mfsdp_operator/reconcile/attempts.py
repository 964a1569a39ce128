"""What follows when an attempt ends: another one, now or later, or the end of the job.

Failures and disruptions have budgets of their own, kept in status: a new operator forgets nothing,
and an eviction never costs the program one of its chances.
"""

from typing import Final

from mfsdp_operator.api.names import MAX_ATTEMPTS
from mfsdp_operator.api.reasons import JobReason
from mfsdp_operator.api.spec import RestartPolicy
from mfsdp_operator.api.status import AttemptState, JobPhase, JobStatus, LastFailure, RestartCounts
from mfsdp_operator.clock import to_rfc3339

from .gang import Ending
from .state import Announce, Policy

MAX_ATTEMPT: Final = MAX_ATTEMPTS - 1
"""The last attempt whose number fits into a pod's name."""


def begin(status: JobStatus, now: float) -> JobStatus:
    """The status with which the next attempt begins."""
    return status.model_copy(
        update={
            "attempt": status.attempt + 1,
            "attempt_state": AttemptState.CREATING,
            "next_attempt_time": None,
            "start_time": status.start_time or to_rfc3339(now),
        }
    )


def end(
    status: JobStatus, how: Ending, limits: RestartPolicy, policy: Policy, now: float
) -> tuple[JobStatus, Announce]:
    """The status after an attempt that did not end well, and what to tell about it."""
    status = status.model_copy(
        update={"last_failure": _last_failure(status.attempt, how, now), "next_attempt_time": None}
    )
    verdict = _why_no_more(status, how, limits)
    if verdict is not None:
        reason, message = verdict
        return finish(status, JobPhase.FAILED, now), Announce("Warning", reason, message)
    counts = _counted(status.restarts, how)
    update: dict[str, object] = {
        "attempt_state": AttemptState.ENDED,
        "phase": JobPhase.RESTARTING,
        "restarts": counts,
    }
    delay = 0.0 if how.disruption else backoff(counts.failures, policy)
    if delay > 0:
        # Whole seconds are written: round up, so that it is never too early.
        update["next_attempt_time"] = to_rfc3339(now + delay + 0.999)
    told = f"attempt {status.attempt} ended: {describe(how)}; the gang starts again"
    return status.model_copy(update=update), Announce("Warning", JobReason.RESTARTING, told)


def finish(status: JobStatus, phase: JobPhase, now: float) -> JobStatus:
    """The status of a job that has come to its end."""
    return status.model_copy(
        update={
            "phase": phase,
            "attempt_state": AttemptState.ENDED if status.attempt else None,
            "next_attempt_time": None,
            "completion_time": to_rfc3339(now),
        }
    )


def backoff(failures: int, policy: Policy) -> float:
    """Seconds to wait after so many failures: doubling, up to a limit."""
    exponent = min(max(failures - 1, 0), 30)
    delay: float = min(policy.restart_backoff * 2**exponent, policy.restart_backoff_max)
    return delay


def describe(how: Ending | LastFailure) -> str:
    """What ended an attempt, in one line."""
    return f"{how.reason}: {how.message} (pod {how.pod})"


def _why_no_more(status: JobStatus, how: Ending, limits: RestartPolicy) -> tuple[str, str] | None:
    """Reason and message if this was the last attempt."""
    if how.permanent:
        return how.reason, f"{how.message} (pod {how.pod}, attempt {status.attempt})"
    told = f"attempt {status.attempt} ended with {describe(how)}"
    if how.disruption and status.restarts.disruptions >= limits.max_disruption_restarts:
        limit = f"restarts.maxDisruptionRestarts is {limits.max_disruption_restarts}"
        return JobReason.RESTARTS_EXHAUSTED, f"{told}; {limit}"
    if not how.disruption and status.restarts.failures >= limits.max_restarts:
        return (
            JobReason.RESTARTS_EXHAUSTED,
            f"{told}; restarts.maxRestarts is {limits.max_restarts}",
        )
    return None


def _counted(counts: RestartCounts, how: Ending) -> RestartCounts:
    failures = counts.failures + (not how.disruption)
    disruptions = counts.disruptions + how.disruption
    return RestartCounts(failures=failures, disruptions=disruptions, total=failures + disruptions)


def _last_failure(attempt: int, how: Ending, now: float) -> LastFailure:
    return LastFailure(
        attempt=attempt,
        disruption=how.disruption,
        reason=how.reason,
        message=how.message,
        pod=how.pod,
        exit_code=how.exit_code,
        time=to_rfc3339(now),
    )
