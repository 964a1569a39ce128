"""The trainer's progress on its way into `status.training`: when to write it, and its last word."""

from mfsdp_operator.api.status import TrainingStatus
from mfsdp_operator.clock import from_rfc3339
from mfsdp_operator.objects import PodView

from .outcome import says_done, step_of


def merged(
    shown: TrainingStatus | None, polled: TrainingStatus | None, interval: float
) -> TrainingStatus | None:
    """What to show: the newest answer, but numbers alone no more often than every `interval` s."""
    if polled is None or shown is None:
        return polled or shown
    age = (from_rfc3339(polled.updated_at) or 0) - (from_rfc3339(shown.updated_at) or 0)
    if age >= interval or _landmark(polled) != _landmark(shown):
        return polled
    return shown


def at_the_end(shown: TrainingStatus | None, rank_0: PodView | None) -> TrainingStatus | None:
    """The last state: the run is over before anyone asks for it, but its outcome has the step."""
    if rank_0 is None or not says_done(rank_0):
        return shown
    shown = shown or TrainingStatus()
    step = step_of(rank_0) or shown.step
    done = {
        "step": step,
        "total_steps": max(step, shown.total_steps),
        "phase": "Done",
        "eta_seconds": 0,
    }
    return shown.model_copy(update=done)


def _landmark(training: TrainingStatus) -> tuple[object, ...]:
    """What is shown at once when it changes."""
    return (
        training.phase,
        training.total_steps,
        training.checkpoint_step,
        training.resumed_from_step,
    )
