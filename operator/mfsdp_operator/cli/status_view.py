"""From a job's status, and the trainer's own answer where there is one, to what is shown."""

from collections.abc import Iterator

from mfsdp_operator.api.status import Condition, JobPhase, JobStatus, TrainingStatus
from mfsdp_operator.clock import from_rfc3339
from mfsdp_trainer.contract import Progress

from .snapshot import Snapshot, printable


def snapshot_of(
    name: str, status: JobStatus, progress: Progress | None, message: str = ""
) -> Snapshot:
    """What there is to show. The trainer's answer beats the status, which is older."""
    said = status.training or TrainingStatus()
    newest = progress if progress and progress.step >= said.step else None
    phase = str(status.phase or "")
    moving = status.phase is JobPhase.RUNNING
    # Of a job that waits, the last attempt's speed would say that it goes on.
    speed = newest or said if moving or status.phase is JobPhase.COMPLETE else None
    return Snapshot(
        name=printable(name),
        phase=phase,
        doing=printable(newest.phase if newest else said.phase) if moving else "",
        ready=printable(status.workers.summary),
        engine=f"{status.sharding.engine} {status.sharding.strategy}" if status.sharding else "",
        restarts=status.restarts.total,
        step=newest.step if newest else said.step,
        total_steps=newest.total_steps if newest else said.total_steps,
        loss=newest.loss if newest else _number(said.loss),
        eval_loss=newest.eval_loss if newest else _number(said.eval_loss),
        tokens_per_second=_number(speed.tokens_per_second) if speed else None,
        eta_seconds=speed.eta_seconds if speed else None,
        resumed_from=newest.resumed_from_step if newest else said.resumed_from_step,
        started=from_rfc3339(status.start_time),
        message=message or _why_not_running(status),
    )


def seconds_taken(status: JobStatus) -> float | None:
    """From the first attempt's start to the job's end, once both are known."""
    start, end = from_rfc3339(status.start_time), from_rfc3339(status.completion_time)
    return None if start is None or end is None else end - start


def ending(namespace: str, status: JobStatus) -> Iterator[str]:
    """Why a job failed, and where to read more."""
    failed = _condition(status, "Failed")
    if failed is None:
        yield f"ended as {status.phase}"
    else:
        yield f"{printable(failed.reason)}: {printable(failed.message, 2000)}"
    if status.last_failure and status.last_failure.pod:
        yield f"its log: kubectl logs -n {namespace} {printable(status.last_failure.pod)}"


def _why_not_running(status: JobStatus) -> str:
    """The operator's sentence while a job does not run: images, nodes, quota, back-off."""
    if status.phase in (None, JobPhase.RUNNING, JobPhase.COMPLETE, JobPhase.FAILED):
        return ""
    found = _condition(status, "Suspended") or _condition(status, "Reconciling")
    return printable(found.message) if found else ""


def _condition(status: JobStatus, kind: str) -> Condition | None:
    return next((c for c in status.conditions if c.type == kind and c.status == "True"), None)


def _number(value: str | float | None) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return None
