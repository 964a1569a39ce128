"""Why a run can end early: one exception a reason, and the reason of exceptions that are not ours.

Whoever raises one of these writes a message of one line that names the field, file or line and the
fix: it is what a person reads in `kubectl describe`. Imports no torch, so torch's own exceptions
are told by name and text.
"""

import re
from collections.abc import Iterator
from typing import ClassVar, Final

from .contract import Reason

_CONTROL: Final = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
    r"|[\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]"
)
_OUT_OF_MEMORY: Final = re.compile(r"out of memory|can't allocate memory", re.IGNORECASE)
_TIMEOUT: Final = re.compile(
    r"timed out waiting \d+ ?ms|watchdog caught collective operation timeout|wait timeout after"
    r"|monitoredbarrier.*(timed out|failed to pass)",
    re.IGNORECASE | re.DOTALL,
)
_PEER_LOST: Final = re.compile(
    r"connection (closed|reset|refused) by (remote )?peer|connection reset|broken pipe"
    r"|gloo connectFullMesh failed|ncclRemoteError|remote process exited"
    r"|failed to recv, got 0 bytes|connection was likely closed",
    re.IGNORECASE,
)


class TrainerError(Exception):
    """An end of the run that has a reason of its own; the message is for a person, in one line."""

    reason: ClassVar[Reason] = Reason.CRASH


class ConfigError(TrainerError):
    """The configuration cannot work; the message has a line a problem. Never retried."""

    reason = Reason.CONFIG_ERROR


class DataError(TrainerError):
    """Data, model directory or tokenizer are missing or unreadable. Never retried."""

    reason = Reason.DATA_ERROR


class NonFiniteLossError(TrainerError):
    """The loss or the gradient norm is not finite. Never retried."""

    reason = Reason.NON_FINITE_LOSS


class OutOfMemoryError(TrainerError):
    """Memory of the GPU or of the container ran out."""

    reason = Reason.OUT_OF_MEMORY


class CollectiveTimeoutError(TrainerError):
    """A rank waited for the others longer than a collective may take."""

    reason = Reason.COLLECTIVE_TIMEOUT


class HangError(TrainerError):
    """No rank of this node made progress within the limit."""

    reason = Reason.HANG


class PreemptedError(TrainerError):
    """The run was asked to stop, and a checkpoint of its last step is published."""

    reason = Reason.PREEMPTED


class RendezvousError(TrainerError):
    """The nodes of the gang did not find each other in time."""

    reason = Reason.RENDEZVOUS_FAILED


class CheckpointError(TrainerError):
    """A checkpoint or the exported model could not be written or read."""

    reason = Reason.CHECKPOINT_ERROR


class PeerLostError(TrainerError):
    """A collective broke because another rank went away: the cause is to be looked for there."""


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__


def reason_of(error: BaseException) -> Reason:
    """The reason of any exception: its own, or what its type and text say; else a crash."""
    for link in _chain(error):
        if isinstance(link, TrainerError):
            return link.reason
        # torch.OutOfMemoryError by name; RuntimeError where the CPU's allocator fails.
        if isinstance(link, MemoryError) or type(link).__name__ == "OutOfMemoryError":
            return Reason.OUT_OF_MEMORY
        if isinstance(link, RuntimeError):
            if _OUT_OF_MEMORY.search(str(link)):
                return Reason.OUT_OF_MEMORY
            if _TIMEOUT.search(str(link)):
                return Reason.COLLECTIVE_TIMEOUT
    return Reason.CRASH


def is_peer_loss(error: BaseException) -> bool:
    """Whether the error is only the echo of another rank's end: a broken collective."""
    for link in _chain(error):
        if isinstance(link, PeerLostError):
            return True
        if isinstance(link, TrainerError):
            return False
        if isinstance(link, RuntimeError) and _PEER_LOST.search(str(link)):
            return True
    return False


def one_line(text: str, limit: int = 2000) -> str:
    """The text without control characters, its lines joined by `; `, cut to `limit` characters."""
    # Names of files may hold lone surrogates, which no JSON and no terminal takes.
    text = text.encode("utf-8", "replace").decode("utf-8")
    lines = (" ".join(line.split()) for line in _CONTROL.sub("", text).splitlines())
    joined = "; ".join(line.rstrip(";") for line in lines if line)
    return joined if len(joined) <= limit else joined[: limit - 1] + "…"


def said(error: Exception) -> str:
    """What a library's exception says, in one line: what is wrong may stand on its second."""
    text = one_line(str(error), 300)
    # A KeyError says only the key; some say nothing.
    return text if text and not isinstance(error, KeyError) else f"{type(error).__name__} {text}"


def describe(error: BaseException) -> str:
    """One line for a person: a TrainerError's own message, else the type and its first line."""
    if isinstance(error, TrainerError):
        return one_line(str(error))
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    name = type(error).__name__
    said = f"{name}: {first}" if first else name
    if reason_of(error) is Reason.COLLECTIVE_TIMEOUT:
        said = (
            "another rank did not come to a collective within hang.collectiveSeconds: look for a "
            f"rank that is stuck or slow ({said})"
        )
    return one_line(said)
