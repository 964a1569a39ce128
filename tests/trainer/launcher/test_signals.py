"""SIGTERM and Ctrl-C at every moment of a run: checkpoint where there is one to make, then end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mfsdp_trainer.contract import Reason

from .conftest import Launch, Launcher, free_port, until
from .processes import alive, children


def check_preempted(run: Launch, text: str) -> None:
    assert run.wait() == Reason.PREEMPTED.exit_code, run.stderr()
    assert run.outcome()["reason"] == Reason.PREEMPTED
    assert text in run.outcome()["message"]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_training_ends_after_a_checkpoint(launch: Launcher, signum: signal.Signals) -> None:
    run = launch("train")
    run.until_training()
    run.signal(signum)
    check_preempted(run, "is published")
    assert run.outcome()["step"] >= 1
    assert run.outcome()["checkpointStep"] >= 1


def test_loading_ends_at_once(launch: Launcher) -> None:
    run = launch("load")
    run.until_phase("Loading")
    run.signal(signal.SIGTERM)
    check_preempted(run, "before the first step")


def test_before_the_workers_are_ready(launch: Launcher) -> None:
    run = launch("train")
    until("the server", lambda: run.progress())
    run.signal(signal.SIGTERM)
    assert run.wait() == Reason.PREEMPTED.exit_code, run.stderr()


def test_while_the_launcher_still_imports(tmp_path: Path) -> None:
    """The handler is there before pydantic: what comes earlier, the kernel drops for PID 1."""
    script = (
        "import os, signal, sys\n"
        "from mfsdp_trainer.launcher.stop import StopRequests\n"
        "stop = StopRequests(); stop.listen()\n"
        "assert 'pydantic' not in sys.modules\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "from mfsdp_trainer.cli.command import run\n"
        "worker = ['-c', 'import time; time.sleep(3600)']\n"
        "sys.exit(run(sys.argv[1:], stop, worker))\n"
    )
    config = tmp_path / "run.yaml"
    config.write_text(
        "model: {config: {model_type: llama}}\n"
        "data: {sources: [{builtin: python-stdlib}]}\n"
        "training: {steps: 1, globalBatchSize: 1}\n"
        f"logging: {{port: {free_port()}}}\n"
    )
    command = [sys.executable, "-c", script, "--config", str(config)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == Reason.PREEMPTED.exit_code, done.stderr


def test_second_signal_kills(launch: Launcher) -> None:
    run = launch("deaf")
    run.until_training()
    run.signal(signal.SIGTERM)
    run.signal(signal.SIGINT)
    assert run.wait() == Reason.CRASH.exit_code
    assert "killed before a checkpoint: a second signal came" in run.outcome()["message"]


def test_deadline_kills(launch: Launcher) -> None:
    run = launch("deaf", limits={"stop": 0.5})
    run.until_training()
    run.signal(signal.SIGTERM)
    assert run.wait() == Reason.CRASH.exit_code
    assert "killed before a checkpoint: 0.5 s have passed" in run.outcome()["message"]
    assert "in wait_for_ever" in run.stderr().split("--- stacks of rank 0 ---")[1]


def test_workers_die_with_a_killed_launcher(launch: Launcher) -> None:
    run = launch("train")
    run.until_training()
    workers = children(run.process.pid)
    assert len(workers) == 2
    run.signal(signal.SIGKILL)
    run.wait()
    until("the workers to die", lambda: not any(alive(pid) for pid in workers))


@pytest.fixture
def namespace() -> list[str]:
    """A prefix that makes a command PID 1 of a PID namespace of its own."""
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    if os.geteuid() != 0:
        command += ["--user", "--map-root-user"]
    if subprocess.run([*command, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody make a PID namespace")
    return command


def pid_one(run: Launch) -> int:
    """The process that is PID 1 in its namespace, as we see it."""
    return until("PID 1", lambda: next(iter(children(run.process.pid)), None))


def test_as_pid_1_in_rendezvous(launch: Launcher, namespace: list[str]) -> None:
    flags = [
        "--nnodes=2",
        "--node_rank=1",
        "--master_addr=127.0.0.1",
        f"--master_port={free_port()}",
    ]
    run = launch("meet_and_train", *flags, "--nproc_per_node=1", prefix=namespace)
    run.until_phase("Rendezvous")
    os.kill(pid_one(run), signal.SIGTERM)
    check_preempted(run, "before the first step")


def test_as_pid_1_in_training(launch: Launcher, namespace: list[str]) -> None:
    run = launch("train", prefix=namespace)
    run.until_training()
    os.kill(pid_one(run), signal.SIGTERM)
    check_preempted(run, "is published")


def test_as_pid_1_it_collects_orphans(launch: Launcher, namespace: list[str]) -> None:
    run = launch("leave_orphans", prefix=namespace)
    run.until_training()
    first = pid_one(run)

    def only_workers() -> bool:
        states = children(first).values()
        return len(states) == 2 and "Z" not in states

    until("two workers and no zombie", only_workers)
    os.kill(first, signal.SIGTERM)
    check_preempted(run, "is published")
