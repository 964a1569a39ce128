"""The words of the API for docs/reference/api.md: phases, conditions, reasons, exit codes."""

from collections.abc import Iterable, Iterator
from typing import Final

from mfsdp_trainer.contract import PERMANENT_REASONS, Reason

from .reasons import CONDITIONS, JobReason
from .status import JobPhase

_PHASES: Final = {
    JobPhase.PENDING: "pods are being made",
    JobPhase.STARTING: "all pods are made, not all trainers run",
    JobPhase.RUNNING: "every trainer runs",
    JobPhase.RESTARTING: "an attempt ended early, the next one does not run yet",
    JobPhase.SUSPENDED: "spec.suspend is true",
    JobPhase.COMPLETE: "every pod ended well",
    JobPhase.FAILED: "the job failed and is not tried again",
}
_REASONS: Final = """
One word in conditions (all of a job's have the same), events and `status.lastFailure`. Beside them:
the trainer's reasons below, the kubelet's own word for a container that cannot start
(`CreateContainerConfigError` ...), and Kubernetes' for a disruption (`EvictionByEvictionAPI` ...).

"""
_EXITS: Final = """
How `mfsdp-train` ends a pod; [jobs.md](../jobs.md#what-a-failure-means) says what each means.

"""


def words() -> Iterator[str]:
    """The sections, in Markdown."""
    yield "\n## Phases\n\n`status.phase`:\n\n"
    yield from _table(("phase", "meaning"), ((f"`{p}`", _PHASES[p]) for p in JobPhase))
    yield "\n## Conditions\n\n"
    yield from _table(("type", "true when"), ((f"`{k}`", why) for k, why in CONDITIONS.items()))
    yield f"\n## Reasons\n{_REASONS}"
    yield from _table(("reason", "meaning"), ((f"`{r}`", r.meaning) for r in JobReason))
    yield f"\n## Exit codes\n{_EXITS}"
    yield from _table(("exit code", "reason", "tried again"), map(_exit, Reason))
    yield "\n## Metrics\n\nThe trainer's, at `/metrics` of each pod: [numbers.md](numbers.md).\n"


def _exit(reason: Reason) -> tuple[str, ...]:
    again = "no" if reason in {Reason.DONE, *PERMANENT_REASONS} else "yes"
    return str(int(reason.exit_code)), f"`{reason}`", again


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    for row in (head, ("---",) * len(head), *rows):
        yield f"| {' | '.join(row)} |\n".replace("| --- ", "|---").replace("--- |", "---|")
