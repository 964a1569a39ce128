"""`mfsdp-train profile`: ask the run of this container for a trace of its next steps.

kubectl exec POD -- mfsdp-train profile --steps 3
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from mfsdp_trainer.errors import ConfigError
from mfsdp_trainer.reporting import (
    TRACE_ANSWER_FILE,
    TRACE_REQUEST_FILE,
    Heartbeat,
    TraceAnswer,
    TraceRequest,
    publish,
)

_POLL: Final = 0.2


def profile(argv: Sequence[str]) -> int:
    """Ask, wait, and print the files; returns the exit code. Raises ConfigError."""
    parser = argparse.ArgumentParser(
        prog="mfsdp-train profile",
        description="Trace the next steps of the run in this container: of the first rank of this "
        "node, into checkpoint.path/profile. On a GPU a memory snapshot goes with it.",
    )
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="how many (default: 3)")
    parser.add_argument(
        "--timeout", type=float, default=600.0, metavar="S", help="seconds to wait (default: 600)"
    )
    arguments = parser.parse_args(argv)
    request = _request(arguments.steps)
    answer = _ask(_run_dir(), request, arguments.timeout)
    if answer.error:
        raise ConfigError(f"the trace could not be written: {answer.error}")
    print("\n".join(answer.files))
    return 0


def _request(steps: int) -> TraceRequest:
    try:
        return TraceRequest(steps=steps)
    except ValidationError:
        raise ConfigError(f"--steps must be from 1 to 100; got {steps}") from None


def _run_dir() -> Path:
    """The directory of the run that goes on in this container."""
    here = Path(tempfile.gettempdir())
    found = [path for path in here.glob("mfsdp-*") if any(_alive(pid) for pid in _pids(path))]
    if len(found) != 1:
        raise ConfigError(
            f"{len(found) or 'no'} runs go on below {here} (TMPDIR): ask in the container of a "
            "trainer that trains, for instance kubectl exec POD -- mfsdp-train profile"
        )
    return found[0]


def _pids(run_dir: Path) -> Iterator[int]:
    for file in run_dir.glob("heartbeat-*"):
        try:
            yield Heartbeat.model_validate_json(file.read_text(encoding="utf-8")).pid
        except (OSError, ValidationError):
            continue


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _ask(run_dir: Path, request: TraceRequest, timeout: float) -> TraceAnswer:
    answer = run_dir / TRACE_ANSWER_FILE
    answer.unlink(missing_ok=True)
    publish(run_dir / TRACE_REQUEST_FILE, request.model_dump_json())
    print(f"waiting for the next {request.steps} steps", file=sys.stderr, flush=True)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if answer.exists():
            return TraceAnswer.model_validate_json(answer.read_text(encoding="utf-8"))
        if not any(_alive(pid) for pid in _pids(run_dir)):
            raise ConfigError("the run ended before the trace was written")
        time.sleep(_POLL)
    (run_dir / TRACE_REQUEST_FILE).unlink(missing_ok=True)
    raise ConfigError(
        f"no trace came within {timeout:g} s: the run may be loading, saving or evaluating"
    )
