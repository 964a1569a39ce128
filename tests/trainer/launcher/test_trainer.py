"""`mfsdp-train` with the trainer's own worker: two nodes, stopped, resumed, and refused."""

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import yaml

from mfsdp_trainer.contract import Reason

from .conftest import Launch, free_port, until

DEADLINE = 180.0
STEPS = 100_000


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A small run over text that every step of it fits in a few milliseconds."""
    text = tmp_path / "text"
    text.mkdir()
    for number in range(40):
        (text / f"{number}.txt").write_text(f"document {number} " * 60, encoding="utf-8")
    config = {
        "useTorchFSDP2": True,
        "model": {
            "config": {
                "model_type": "llama",
                "hidden_size": 32,
                "intermediate_size": 64,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
            }
        },
        "data": {"sources": [{"path": str(text)}], "sequenceLength": 32},
        "training": {"steps": STEPS, "globalBatchSize": 2, "precision": "fp32"},
        "checkpoint": {"path": str(tmp_path / "checkpoints")},
    }
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(config), encoding="utf-8")
    return file


def temporary_of(run_file: Path, rank: int) -> Path:
    """What is /tmp in the pod of a node."""
    return run_file.parent / f"tmp-{rank}"


def trace(run_file: Path, rank: int, *flags: str) -> subprocess.CompletedProcess[str]:
    """`kubectl exec POD -- mfsdp-train profile`."""
    command = [str(Path(sys.executable).with_name("mfsdp-train")), "profile", *flags]
    return subprocess.run(
        command,
        env={**os.environ, "TMPDIR": str(temporary_of(run_file, rank))},
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


@contextmanager
def node(run_file: Path, rank: int, master_port: int, *flags: str) -> Iterator[Launch]:
    """One node of two, as in a pod: through the installed command and the environment."""
    port, here = free_port(), run_file.parent
    errors, log = here / f"stderr-{rank}", here / f"termination-{rank}"
    temporary = temporary_of(run_file, rank)
    temporary.mkdir(exist_ok=True)
    pod = {
        "NNODES": "2",
        "NODE_RANK": str(rank),
        "NPROC_PER_NODE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(master_port),
        "MFSDP_CONFIG": str(run_file),
        "MFSDP_TERMINATION_LOG": str(log),
        "TMPDIR": str(temporary),
        "OMP_NUM_THREADS": "1",
    }
    command = [str(Path(sys.executable).with_name("mfsdp-train")), f"--set=logging.port={port}"]
    with errors.open("wb") as file:
        process = subprocess.Popen(
            [*command, *flags], stdout=file, stderr=file, env={**os.environ, **pod}
        )
    try:
        yield Launch(process, port, errors, log)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@contextmanager
def gang(run_file: Path, *flags: str) -> Iterator[list[Launch]]:
    port = free_port()
    with ExitStack() as stack:
        yield [stack.enter_context(node(run_file, rank, port, *flags)) for rank in (0, 1)]


def codes(nodes: list[Launch]) -> list[int]:
    deadline = time.monotonic() + DEADLINE
    return [one.process.wait(max(1.0, deadline - time.monotonic())) for one in nodes]


def test_one_node_is_stopped_and_both_go_on_later(run_file: Path) -> None:
    with gang(run_file) as nodes:
        until(
            "a few steps",
            lambda: (nodes[1].progress() or {"step": 0})["step"] >= 3,
            deadline=DEADLINE,
        )
        traced = trace(run_file, 1, "--steps=2")
        assert traced.returncode == 0, traced.stderr
        (file,) = traced.stdout.splitlines()
        assert file.endswith("-rank-1.trace.json.gz")
        assert json.loads(gzip.decompress(Path(file).read_bytes()))["traceEvents"]
        nodes[1].signal(signal.SIGTERM)
        assert codes(nodes) == [Reason.PREEMPTED.exit_code] * 2, nodes[0].stderr()
        steps = [one.outcome()["step"] for one in nodes]
    assert steps[0] == steps[1] >= 3
    total = steps[0] + 5
    with gang(run_file, f"--set=training.steps={total}") as nodes:
        assert codes(nodes) == [0, 0], nodes[0].stderr()
        assert [one.outcome()["step"] for one in nodes] == [total] * 2
        assert f"step {total}/{total}" in nodes[0].stderr()
        assert "step 1/" not in nodes[0].stderr()
    assert (run_file.parent / "checkpoints" / "export" / "config.json").is_file()


def test_a_trace_needs_a_run(run_file: Path) -> None:
    temporary_of(run_file, 0).mkdir()
    refused = trace(run_file, 0)
    assert refused.returncode == 1
    assert "no runs go on below" in refused.stderr.splitlines()[-1]
    assert "--steps must be from 1 to 100" in trace(run_file, 0, "--steps=0").stderr


def test_missing_data_is_one_clear_line(run_file: Path) -> None:
    with gang(run_file, '--set=data.sources=[{"path": "/no/such/text"}]') as nodes:
        assert codes(nodes) == [Reason.DATA_ERROR.exit_code] * 2, nodes[0].stderr()
        for one in nodes:
            assert "/no/such/text" in one.last_line()
            assert "Traceback" not in one.stderr()
