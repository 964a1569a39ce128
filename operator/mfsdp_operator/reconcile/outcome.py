"""Why a pod's trainer ended, from a container state that the pod's own program may have written.

The tagged message of the built-in trainer is believed; anything else is only shown, cleaned up.
"""

import re
import signal
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from mfsdp_operator.api.reasons import JobReason
from mfsdp_operator.objects import PodView, Terminated
from mfsdp_trainer.contract import PERMANENT_REASONS, Outcome, Reason
from mfsdp_trainer.errors import one_line

MESSAGE_LIMIT: Final = 1024
_SECRET: Final = re.compile(
    r"(?i)\b([\w-]*(?:token|password|passwd|secret|api[_-]?key|credential)[\w-]*\s*[=:]\s*|bearer\s+)"
    r"[^\s;,]+"
)
_UNSPECIFIC: Final = (Reason.CRASH, Reason.COLLECTIVE_TIMEOUT, Reason.RENDEZVOUS_FAILED)
"""What every rank says when another one is gone: weaker evidence than any other reason."""


@dataclass(frozen=True, slots=True)
class Failure:
    """How one pod failed."""

    pod: PodView
    reason: str
    message: str
    exit_code: int | None
    permanent: bool = False
    echo: bool = False
    """Likely the consequence of another rank's failure."""


def failure_of(pod: PodView, *, trusted: bool) -> Failure:
    """The failure of a pod that failed. `trusted`: it runs the built-in trainer, whose tagged
    message is believed."""
    ended = pod.terminated
    outcome = _outcome(ended) if trusted and ended else None
    if outcome is not None and ended is not None:
        return Failure(
            pod,
            outcome.reason.value,
            clean(outcome.message) or f"the trainer ended with {outcome.reason.value}",
            ended.exit_code,
            permanent=outcome.reason in PERMANENT_REASONS,
            echo=outcome.reason in _UNSPECIFIC,
        )
    if ended is None:
        return Failure(
            pod, pod.reason or JobReason.POD_FAILED, clean(pod.message) or "the pod failed", None
        )
    if ended.reason == "OOMKilled":
        message = "killed: out of memory (the container's memory limit, or the node's memory)"
        return Failure(pod, Reason.OUT_OF_MEMORY.value, message, ended.exit_code)
    return Failure(pod, Reason.CRASH.value, _exit_message(ended), ended.exit_code, echo=True)


def clean(text: str) -> str:
    """One line without control characters and without what looks like a secret."""
    return _SECRET.sub(r"\1***", one_line(text, MESSAGE_LIMIT))


def says_done(pod: PodView) -> bool:
    """Whether the built-in trainer says that it came to the end of its run."""
    outcome = _outcome(pod.terminated) if pod.terminated else None
    return outcome is not None and outcome.reason is Reason.DONE


def step_of(pod: PodView) -> int | None:
    """The last step that the built-in trainer says it finished."""
    outcome = _outcome(pod.terminated) if pod.terminated else None
    return outcome.step if outcome else None


def checkpoint_step_of(pod: PodView) -> int | None:
    """The newest checkpoint that the built-in trainer says it published."""
    outcome = _outcome(pod.terminated) if pod.terminated else None
    return outcome.checkpoint_step if outcome else None


def _outcome(ended: Terminated) -> Outcome | None:
    try:
        # A newer trainer may say more than this operator knows.
        return Outcome.model_validate_json(ended.message, extra="ignore")
    except ValidationError:
        return None


def _exit_message(ended: Terminated) -> str:
    message = f"the trainer container exited with code {ended.exit_code}"
    number = ended.signal or (ended.exit_code - 128 if ended.exit_code > 128 else 0)
    if number in {s.value for s in signal.Signals}:
        message += f" ({signal.Signals(number).name})"
    said = clean(ended.message)
    return f"{message}: {said}" if said else message
