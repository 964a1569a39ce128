"""The trainer's progress on its way into `status.training`: when to write it, and its last word."""

from collections.abc import Iterable
from typing import Final

from mfsdp_operator.api.status import TrainingStatus
from mfsdp_operator.clock import from_rfc3339
from mfsdp_operator.objects import PodView
from mfsdp_trainer.contract import Phase

from .outcome import checkpoint_step_of, says_done, step_of

STOPPED: Final = "Stopped"
"""`status.training.phase` while no attempt trains; the trainer itself has no such phase."""
_BEFORE_TRAINING: Final = frozenset({Phase.STARTING, Phase.RENDEZVOUS, Phase.LOADING})


def merged(
    shown: TrainingStatus | None, polled: TrainingStatus | None, interval: float
) -> TrainingStatus | None:
    """What to show: the newest answer, but numbers alone no more often than every `interval` s."""
    if polled is None or shown is None:
        return polled or shown
    polled = _carried(shown, polled)
    age = (from_rfc3339(polled.updated_at) or 0) - (from_rfc3339(shown.updated_at) or 0)
    if age >= interval or _landmark(polled) != _landmark(shown):
        return polled
    return shown


def _carried(shown: TrainingStatus, polled: TrainingStatus) -> TrainingStatus:
    """A trainer that has yet to load its checkpoint answers with step 0: keep what is known."""
    if polled.phase not in _BEFORE_TRAINING or polled.step >= shown.step:
        return polled
    kept = ("step", "total_steps", "loss", "eval_loss", "checkpoint_step")
    return polled.model_copy(update={name: getattr(shown, name) for name in kept})


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
        "checkpoint_step": _newest_checkpoint(shown, [rank_0]),
    }
    return shown.model_copy(update=done)


def between_attempts(
    shown: TrainingStatus | None, pods: Iterable[PodView]
) -> TrainingStatus | None:
    """The last state of an attempt that ended early: its pods say how far they came, and nothing
    trains now. Step and loss stay until the next attempt has some of its own."""
    pods = list(pods)
    steps = [step for step in map(step_of, pods) if step is not None]
    if shown is None and not steps:
        return None
    shown = shown or TrainingStatus()
    stopped = {
        "step": max([shown.step, *steps]),
        "phase": STOPPED,
        "tokens_per_second": "",
        "mfu": "",
        "eta_seconds": None,
        "checkpoint_step": _newest_checkpoint(shown, pods),
    }
    return shown.model_copy(update=stopped)


def _newest_checkpoint(shown: TrainingStatus, pods: Iterable[PodView]) -> int | None:
    """The last word of the pod that knows: a save at the end was published after the last poll."""
    said = [step for step in map(checkpoint_step_of, pods) if step is not None]
    return max(said, default=shown.checkpoint_step)


def _landmark(training: TrainingStatus) -> tuple[object, ...]:
    """What is shown at once when it changes."""
    return (
        training.phase,
        training.total_steps,
        training.checkpoint_step,
        training.resumed_from_step,
    )
