"""What workers write is what PID 1 reads, and any exception finds its reason."""

import json
import math
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from mfsdp_trainer import errors
from mfsdp_trainer.contract import Phase, Reason
from mfsdp_trainer.errors import ConfigError
from mfsdp_trainer.launcher.rundir import RunDir
from mfsdp_trainer.reporting import Reporter, heartbeat_file


@pytest.fixture
def reporter(tmp_path: Path) -> Reporter:
    return Reporter(tmp_path, 0)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def test_progress_merges_and_loses_what_is_not_finite(reporter: Reporter, run_dir: RunDir) -> None:
    reporter.progress(step=3, loss=1.5)
    reporter.progress(grad_norm=math.inf, eval_loss=math.nan)
    progress = run_dir.progress()
    assert progress is not None
    assert (progress.step, progress.loss) == (3, 1.5)
    assert progress.grad_norm is None
    assert progress.eval_loss is None


def test_progress_echoes_the_job(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, run_dir: RunDir
) -> None:
    monkeypatch.setenv("MFSDP_JOB_UID", "uid")
    monkeypatch.setenv("MFSDP_ATTEMPT", "2")
    Reporter(tmp_path, 0).progress(step=1)
    progress = run_dir.progress()
    assert progress is not None
    assert (progress.job_uid, progress.attempt) == ("uid", 2)


def test_heartbeats(reporter: Reporter, run_dir: RunDir) -> None:
    reporter.phase(Phase.TRAINING)
    reporter.heartbeat(123456)
    reporter.heartbeat(7)
    beat = run_dir.heartbeats([0, 1])[0]
    assert (beat.phase, beat.step, beat.pid) == (Phase.TRAINING, 7, os.getpid())
    assert 1 not in run_dir.heartbeats([0, 1])


def test_a_torn_heartbeat_keeps_the_one_before(reporter: Reporter, run_dir: RunDir) -> None:
    reporter.heartbeat(7)
    run_dir.heartbeats([0])
    path = heartbeat_file(run_dir.path, 0)
    path.write_text(path.read_text()[:20])
    assert run_dir.heartbeats([0])[0].step == 7


def test_the_first_outcome_counts(reporter: Reporter, run_dir: RunDir) -> None:
    reporter.heartbeat(5)
    reporter.outcome(Reason.DATA_ERROR, "first")
    reporter.outcome(Reason.CRASH, "second")
    (record,) = run_dir.outcomes([0, 1])
    assert record.outcome.reason is Reason.DATA_ERROR
    assert record.outcome.message == "first"
    assert (record.outcome.step, record.outcome.rank) == (5, 0)


def test_failures_are_told_in_order(tmp_path: Path, run_dir: RunDir) -> None:
    for rank in (1, 0, 2):
        Reporter(tmp_path, rank).outcome(Reason.CRASH)
    assert [record.outcome.rank for record in run_dir.outcomes(range(3))] == [1, 0, 2]


def test_any_message_can_be_written(reporter: Reporter, run_dir: RunDir) -> None:
    reporter.failed(errors.DataError(f"bad \udcff\x1b[1mfile\x1b[0m\n{'x' * 9000}"))
    (record,) = run_dir.outcomes([0])
    assert record.outcome.message.startswith("bad ?file; xxx")
    assert len(record.outcome.message) == 2000


def test_without_a_run_directory_it_only_logs() -> None:
    reporter = Reporter(None, 0)
    reporter.phase(Phase.TRAINING)
    reporter.heartbeat(1)
    reporter.progress(step=1)
    assert reporter.failed(KeyError("x")) == Reason.CRASH.exit_code


SIGNALLED = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGUSR2})
os.kill(os.getpid(), signal.SIGUSR1)
from mfsdp_trainer.reporting import Reporter
def from_the_start():
    reporter = Reporter.from_env()
    os.kill(os.getpid(), signal.SIGUSR2)
    assert reporter.stop_requested and reporter.rank == 3
from_the_start()
"""


def test_signals(tmp_path: Path) -> None:
    """In a process of its own: handlers and masks are the process's."""
    environment = {**os.environ, "MFSDP_RUN_DIR": str(tmp_path), "RANK": "3"}
    subprocess.run([sys.executable, "-c", SIGNALLED], env=environment, check=True)
    assert "in from_the_start" in (tmp_path / "stacks-3").read_text()
    assert json.loads((tmp_path / "heartbeat-3").read_text())["phase"] == "Starting"


class OutOfMemoryError(RuntimeError):
    """As torch's, by name."""


def raised_from(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]"


@pytest.mark.parametrize(
    ("error", "reason", "lost"),
    [
        (errors.DataError("x"), Reason.DATA_ERROR, False),
        (errors.PeerLostError("x"), Reason.CRASH, True),
        (KeyError("x"), Reason.CRASH, False),
        (MemoryError(), Reason.OUT_OF_MEMORY, False),
        (OutOfMemoryError("CUDA out of memory. Tried to"), Reason.OUT_OF_MEMORY, False),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), Reason.OUT_OF_MEMORY, False),
        (RuntimeError("Timed out waiting 1000ms for recv"), Reason.COLLECTIVE_TIMEOUT, False),
        (RuntimeError(GLOO), Reason.CRASH, True),
        (RuntimeError("shape mismatch"), Reason.CRASH, False),
        (raised_from(ValueError("x"), RuntimeError(GLOO)), Reason.CRASH, True),
        (raised_from(ValueError("x"), errors.CheckpointError("y")), Reason.CHECKPOINT_ERROR, False),
    ],
)
def test_reasons(error: Exception, reason: Reason, lost: bool) -> None:
    assert errors.reason_of(error) is reason
    assert errors.is_peer_loss(error) is lost


def test_every_reason_has_its_exit_code() -> None:
    codes = [reason.exit_code for reason in Reason]
    assert len(set(codes)) == len(codes)
    assert all(code == 0 or code >= 80 for code in codes)


def test_describe() -> None:
    assert errors.describe(errors.DataError("a\nb")) == "a; b"
    assert errors.describe(KeyError("x")) == "KeyError: 'x'"
    assert errors.describe(ValueError("\n first\nsecond")) == "ValueError: first"
    assert errors.describe(AssertionError()) == "AssertionError"


def test_no_room_for_temporary_files_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the size of files stands for a full volume: the kernel refuses the write."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(ConfigError, match=r"TMPDIR: .* has room .*: set TMPDIR"):
            RunDir.create()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_nowhere_to_write_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/nowhere")
    with pytest.raises(ConfigError, match=r"TMPDIR: .*\(No such file or directory\)"):
        RunDir.create()
