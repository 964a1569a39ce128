"""`mfsdp local` as a person runs it: a job file trained here to an exported model, stopped by
Ctrl-C and gone on, and a job that cannot work."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest
import yaml

from mfsdp_trainer.contract import ExitCode

_DEADLINE = 240.0
_STEPS = 40
_MFSDP = (sys.executable, "-m", "mfsdp_operator.cli.main")


def job_file(tmp_path: Path, **spec: object) -> Path:
    """A tiny job of two pods on CPUs, with a claim and GPU-less: as it would go to a cluster."""
    text = tmp_path / "text"
    text.mkdir()
    (text / "a.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 400)
    path = tmp_path / "job.yaml"
    manifest = {
        "apiVersion": "training.mfsdp.dev/v1alpha1",
        "kind": "MegatronFSDPJob",
        "metadata": {"name": "tiny"},
        "spec": {
            "nodes": 2,
            "gpusPerNode": 0,
            "useTorchFSDP2": True,
            "model": {
                "config": {
                    "model_type": "llama",
                    "hidden_size": 16,
                    "intermediate_size": 32,
                    "num_hidden_layers": 1,
                    "num_attention_heads": 2,
                }
            },
            "data": {"sources": [{"path": "/text/*.txt"}], "sequenceLength": 32},
            "training": {"steps": _STEPS, "globalBatchSize": 4, "precision": "fp32"},
            "checkpoint": {"pvc": "claim"},
            **spec,
        },
    }
    path.write_text(yaml.safe_dump(manifest))
    return path


def _here(tmp_path: Path) -> tuple[str, ...]:
    return "--map", f"/text={tmp_path / 'text'}", "--dir", str(tmp_path / "run")


class Local:
    """`mfsdp local` as a process group of its own, like a terminal's foreground job."""

    def __init__(self, job: Path, *flags: str) -> None:
        self.process = subprocess.Popen(
            [*_MFSDP, "local", str(job), *_here(job.parent), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.out: list[str] = []
        self.err: list[str] = []
        self._readers = [
            self._read(self.process.stdout, self.out),
            self._read(self.process.stderr, self.err),
        ]

    def _read(self, stream: IO[str], into: list[str]) -> threading.Thread:
        reader = threading.Thread(target=lambda: into.extend(stream), daemon=True)
        reader.start()
        return reader

    def until(self, pattern: str) -> None:
        """Wait for a line of output."""
        deadline = time.monotonic() + _DEADLINE
        while not any(re.search(pattern, line) for line in self.out):
            assert self.process.poll() is None, f"ended before {pattern!r}: {self.text}"
            assert time.monotonic() < deadline, f"waited {_DEADLINE} s for {pattern!r}: {self.text}"
            self._readers[0].join(0.1)

    def end(self) -> int:
        """Wait for the end; the exit code."""
        code = self.process.wait(_DEADLINE)
        for reader in self._readers:
            reader.join()
        return code

    @property
    def text(self) -> str:
        return "".join((*self.out, *self.err))


type Start = Callable[..., Local]


@pytest.fixture
def local() -> Iterator[Start]:
    """Starts `mfsdp local`; what a failed test leaves running is killed with all its workers."""
    started: list[Local] = []

    def start(job: Path, *flags: str) -> Local:
        started.append(Local(job, *flags))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            os.killpg(one.process.pid, signal.SIGKILL)
            one.end()


def test_trains_to_an_exported_model_that_writes(local: Start, tmp_path: Path) -> None:
    run = local(job_file(tmp_path), "--prompt", "the quick")
    assert run.end() == 0, run.text
    assert f"step {_STEPS}/{_STEPS}" in run.text
    export = tmp_path / "run" / "checkpoints" / "export"
    assert (export / "config.json").is_file()
    assert f"exported model  {export}" in run.text
    assert "a sample that it wrote:\nthe quick" in run.text


def test_stopped_it_checkpoints_and_the_next_run_goes_on(local: Start, tmp_path: Path) -> None:
    steps = 100_000
    job = job_file(tmp_path, training={"steps": steps, "globalBatchSize": 4, "precision": "fp32"})
    run = local(job, "--nproc", "1")
    run.until(rf"step [1-9]\d*/{steps}")
    second = local(job, "--nproc", "1")
    assert second.end() == 1, second.text
    assert "run is in use by another run" in "".join(second.err)
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.end() == ExitCode.PREEMPTED, run.text
    assert "Preempted" in "".join(run.err)
    again = local(job, "--nproc", "2")
    again.until(r"resumed from step [1-9]")
    again.process.send_signal(signal.SIGTERM)
    assert again.end() == ExitCode.PREEMPTED, again.text
    with pytest.raises(ProcessLookupError):
        os.killpg(again.process.pid, 0)


def test_what_only_the_trainer_finds_out_is_one_line(local: Start, tmp_path: Path) -> None:
    job = job_file(tmp_path, data={"sources": [{"path": "/text/*.jsonl", "format": "jsonl"}]})
    run = local(job, "--nproc", "1")
    assert run.end() == ExitCode.DATA_ERROR, run.text
    first = run.err[0]
    assert "DataError" in first
    assert "no file matches" in first
    assert "Traceback" not in run.text
