"""Why a run ended: one reason out of what workers wrote, how they died, and what was asked of them.

Pure. torchrun's exit code is always 1 and a survivor's error is the echo of another's, so the order
below decides: what was said beats what must be guessed, and a cause beats its echo.
"""

import json
import re
import signal
from dataclasses import dataclass
from typing import Final

from mfsdp_trainer.contract import OUTCOME_MAX_BYTES, Outcome, Reason
from mfsdp_trainer.errors import one_line
from mfsdp_trainer.reporting import WorkerOutcome

from .stop import Stop

_SECRETS: Final = (
    (re.compile(r"(://)[^/\s:@]+:[^/\s@]+@"), r"\1[redacted]@"),
    (re.compile(r"\b(bearer|basic)\s+[\w.~+/=-]{8,}", re.I), r"\1 [redacted]"),
    (
        # eos_token and its like are no secrets, so a bare `token` counts only before `=`.
        re.compile(
            r"\b((?:[\w-]*(?:password|passwd|secret[\w-]*|api[_-]?key|credentials?|authorization)"
            r"|[\w-]*(?:access|auth|api|hf|hub|refresh|session)[_-]?token)(?=['\"]?\s*[=:])"
            r"|token(?==))"
            r"(['\"]?\s*[=:]\s*)(['\"]?)[^\s'\",;]+",
            re.I,
        ),
        r"\1\2\3[redacted]",
    ),
    (
        re.compile(
            r"\b(?:hf_\w{16,}|gh[pousr]_\w{16,}|AKIA[0-9A-Z]{16}|sk-[\w-]{16,}"
            r"|eyJ[\w-]{8,}\.[\w-]+\.[\w-]*)"
        ),
        "[redacted]",
    ),
)
# What a rank dies of on its own account. SIGTERM is how survivors of a failure end.
_NOT_ITS_OWN: Final = -signal.SIGTERM


@dataclass(frozen=True)
class Evidence:
    """All that is known of a run's end on this node."""

    ranks: tuple[int, ...]
    """Global ranks of this node."""
    outcomes: tuple[WorkerOutcome, ...] = ()
    """What ranks wrote, the first of them first."""
    exit_codes: tuple[tuple[int, int], ...] = ()
    """Rank and exit code of failed ranks, the first of them first; negative: a signal."""
    step: int | None = None
    """Newest step that any rank finished."""
    checkpoint_step: int | None = None
    """Step of the newest published checkpoint, where rank 0 ran here."""
    stop: Stop = Stop.NO
    stop_cause: str = ""
    """Why workers were killed after a stop."""
    hang: str | None = None
    """One line about a hang."""
    memory_killed: bool = False
    """Whether the kernel killed a process for the container's memory limit."""
    memory_limit: int | None = None
    """That limit in bytes."""
    collective_stuck: frozenset[int] = frozenset()
    """Ranks whose flight recorder was dumped, as NCCL's watchdog does at a timeout."""


def decide(evidence: Evidence) -> Outcome:
    """The one reason, with one line for a person."""
    outcome = _hang(evidence) or _said(evidence) or _stopped(evidence) or _died(evidence)
    outcome = outcome or _weaker(evidence) or _unsaid(evidence)
    if outcome.step is None:
        outcome = outcome.model_copy(update={"step": evidence.step})
    said = {
        "message": redact(one_line(outcome.message)),
        "checkpoint_step": evidence.checkpoint_step,
    }
    return outcome.model_copy(update=said)


def _hang(evidence: Evidence) -> Outcome | None:
    return Outcome(reason=Reason.HANG, message=evidence.hang) if evidence.hang else None


def _said(evidence: Evidence) -> Outcome | None:
    """A cause that a rank named, or the success of all."""
    own = [record.outcome for record in evidence.outcomes if not record.peer_lost]
    vague = (Reason.DONE, Reason.PREEMPTED, Reason.CRASH, Reason.COLLECTIVE_TIMEOUT)
    for outcome in own:
        if outcome.reason not in vague:
            return outcome
    done = {outcome.rank for outcome in own if outcome.reason is Reason.DONE}
    if done == set(evidence.ranks):
        return Outcome(reason=Reason.DONE)
    return next((outcome for outcome in own if outcome.reason is Reason.PREEMPTED), None)


def _stopped(evidence: Evidence) -> Outcome | None:
    if evidence.stop is Stop.EARLY:
        return Outcome(
            reason=Reason.PREEMPTED,
            message="asked to stop before the first step: there was nothing to save",
        )
    if evidence.stop is Stop.KILLED:
        return Outcome(
            reason=Reason.CRASH,
            message=f"asked to stop, and killed before a checkpoint: {evidence.stop_cause}",
        )
    return None


def _died(evidence: Evidence) -> Outcome | None:
    """A rank that a signal ended, which leaves no word of its own."""
    for rank, code in evidence.exit_codes:
        if code == -signal.SIGKILL and evidence.memory_killed:
            return Outcome(
                reason=Reason.OUT_OF_MEMORY, rank=rank, message=_memory_message(rank, evidence)
            )
        if code == -signal.SIGABRT and rank in evidence.collective_stuck:
            return Outcome(
                reason=Reason.COLLECTIVE_TIMEOUT,
                rank=rank,
                message=f"rank {rank} was aborted by NCCL's watchdog: a collective timed out",
            )
    for rank, code in evidence.exit_codes:
        if code < 0 and code != _NOT_ITS_OWN:
            return Outcome(
                reason=Reason.CRASH,
                rank=rank,
                message=f"rank {rank} was ended by {_signal_name(-code)}{_hint(-code)}",
            )
    return None


def _weaker(evidence: Evidence) -> Outcome | None:
    """What may be the echo of another rank's end: crashes, then timeouts, then lost peers."""
    own = [record.outcome for record in evidence.outcomes if not record.peer_lost]
    for reason in (Reason.CRASH, Reason.COLLECTIVE_TIMEOUT):
        for outcome in own:
            if outcome.reason is reason:
                return outcome
    for record in evidence.outcomes:
        if record.peer_lost:
            return record.outcome.model_copy(
                update={
                    "message": "lost connection to a peer rank, whose own end is the cause: "
                    + record.outcome.message
                }
            )
    return None


def _unsaid(evidence: Evidence) -> Outcome:
    for rank, code in evidence.exit_codes:
        how = f"was ended by {_signal_name(-code)}" if code < 0 else f"ended with exit code {code}"
        return Outcome(
            reason=Reason.CRASH, rank=rank, message=f"rank {rank} {how}; the log may say why"
        )
    silent = sorted(set(evidence.ranks) - {record.outcome.rank for record in evidence.outcomes})
    return Outcome(
        reason=Reason.CRASH,
        rank=silent[0] if silent else None,
        message=f"ranks {silent} ended without saying how; the log may say why",
    )


def _memory_message(rank: int, evidence: Evidence) -> str:
    limit = evidence.memory_limit
    of = f" of {limit / 2**20:,.0f} MiB" if limit else ""
    return (
        f"rank {rank} was killed at the container's memory limit{of}: raise it in template, or "
        "lower training.microBatchSize or data.sequenceLength"
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _hint(number: int) -> str:
    if number == signal.SIGKILL:
        return " from outside: the memory limit of this container was not the cause"
    return ""


def redact(text: str) -> str:
    """The text without what looks like a secret."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def encode(outcome: Outcome) -> str:
    """The termination message: JSON of at most OUTCOME_MAX_BYTES in UTF-8."""
    while True:
        values = outcome.model_dump(mode="json", by_alias=True, exclude_none=True)
        text = json.dumps(values, ensure_ascii=False)
        excess = len(text.encode()) - OUTCOME_MAX_BYTES
        if excess <= 0:
            return text
        # At most four bytes a character, and escapes are longer: cutting a quarter is safe.
        keep = len(outcome.message) - max(1, excess // 4)
        outcome = outcome.model_copy(update={"message": outcome.message[: keep - 1] + "…"})
