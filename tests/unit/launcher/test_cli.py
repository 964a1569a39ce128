"""The command line: flags under their original names, over the environment, over the file."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from mfsdp_trainer.cli import command
from mfsdp_trainer.cli.arguments import overrides_of, parse_arguments
from mfsdp_trainer.cli.command import run
from mfsdp_trainer.config import HangConfig
from mfsdp_trainer.contract import ExitCode, Outcome
from mfsdp_trainer.errors import ConfigError
from mfsdp_trainer.launcher.gang import Gang, find_gang, find_limits
from mfsdp_trainer.launcher.stop import StopRequests
from mfsdp_trainer.launcher.workers import worker_environment

RUN = """\
model: {config: {model_type: llama}}
data: {sources: [{builtin: python-stdlib}]}
training: {steps: 1, globalBatchSize: 4}
"""
GANG = ("NNODES", "NODE_RANK", "NPROC_PER_NODE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GANG:
        monkeypatch.delenv(name, raising=False)


def overrides(*argv: str) -> dict[str, object]:
    return dict(overrides_of(parse_arguments(argv)))


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], {}),
        (["--use_megatron_fsdp"], {"useMegatronFSDP": True}),
        (["--use_megatron_fsdp", "true"], {"useMegatronFSDP": True}),
        (["--use_torch_fsdp2=false"], {"useTorchFSDP2": False}),
        (["--use-torch-fsdp2"], {"useTorchFSDP2": True}),
        (
            ["--data_parallel_sharding_strategy", "optim_grads"],
            {"dataParallelShardingStrategy": "optim_grads"},
        ),
        (["--nproc_per_node", "2", "--nnodes=3"], {"nodes": 3, "procsPerNode": 2}),
        (["--nproc-per-node=2"], {"procsPerNode": 2}),
        (["--set", "training.learningRate=1e-5"], {"training.learningRate": 1e-5}),
        (
            ["--set=training.steps=5", "--set", "checkpoint.path=/a-b_c"],
            {"training.steps": 5, "checkpoint.path": "/a-b_c"},
        ),
    ],
)
def test_flags(argv: list[str], expected: dict[str, object]) -> None:
    assert overrides(*argv) == expected


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        (["--use_torch_fsdp2", "perhaps"], "must be true or false; got 'perhaps'"),
        (["--data_parallel_sharding_strategy", "zero3"], "invalid choice: 'zero3'"),
        (["--nproc_per_node", "two"], "invalid int value: 'two'"),
        (["--confg", "x"], "unrecognized arguments: --confg"),
        (["--set", "steps"], "must be FIELD=VALUE"),
        (["--set", "steps=[1"], "not valid YAML"),
    ],
)
def test_wrong_flags(argv: list[str], text: str) -> None:
    with pytest.raises(ConfigError, match="see mfsdp-train --help") as caught:
        parse_arguments(argv)
    assert text in str(caught.value)


def test_the_environment_is_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNODES", "2")
    monkeypatch.setenv("NPROC_PER_NODE", "4")
    assert overrides("--nnodes=3") == {"nodes": 3, "procsPerNode": 4}
    monkeypatch.setenv("NNODES", "two")
    with pytest.raises(ConfigError, match="NNODES must be a whole number; got 'two'"):
        overrides()


def gang(nodes: int = 2, rank: int | None = 1, addr: str | None = "host") -> Gang:
    return find_gang(nodes=nodes, procs=2, node_rank=rank, master_addr=addr, master_port=None)


def test_the_place_in_the_gang() -> None:
    place = gang()
    assert (list(place.ranks), place.master_port) == ([2, 3], 29500)
    values = worker_environment(place, 1)
    assert (values["RANK"], values["LOCAL_RANK"], values["WORLD_SIZE"]) == ("3", "1", "4")
    assert (values["LOCAL_WORLD_SIZE"], values["GROUP_RANK"]) == ("2", "1")


def test_the_place_in_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    pod = {"NODE_RANK": "1", "MASTER_ADDR": "job-0-0.job", "MASTER_PORT": "29500"}
    for name, value in {**pod, "MFSDP_JOB_UID": "u", "MFSDP_ATTEMPT": "4"}.items():
        monkeypatch.setenv(name, value)
    place = gang(rank=None, addr=None)
    assert (place.node_rank, place.master_addr, place.run_id) == (1, "job-0-0.job", "u-4")


def test_alone_any_free_port_will_do() -> None:
    place = gang(nodes=1, rank=None, addr=None)
    assert place.master_addr == "127.0.0.1"
    assert place.master_port != 29500


@pytest.mark.parametrize(("rank", "addr"), [(None, "host"), (0, None)])
def test_two_nodes_must_say_where_they_are(rank: int | None, addr: str | None) -> None:
    with pytest.raises(ConfigError, match=r"--node_rank .* and --master_addr"):
        gang(rank=rank, addr=addr)


def test_a_node_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="--node_rank must be from 0 to 1; got 2"):
        gang(rank=2)


def test_limits_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MFSDP_RENDEZVOUS_TIMEOUT", "30")
    assert find_limits(HangConfig()).rendezvous == 30
    monkeypatch.setenv("MFSDP_STOP_TIMEOUT", "soon")
    with pytest.raises(ConfigError, match="MFSDP_STOP_TIMEOUT must be a number; got 'soon'"):
        find_limits(HangConfig())


@pytest.mark.parametrize("seconds", ["nan", "inf", "-5", "1e300"])
def test_a_time_that_is_none(monkeypatch: pytest.MonkeyPatch, seconds: str) -> None:
    monkeypatch.setenv("MFSDP_RENDEZVOUS_TIMEOUT", seconds)
    with pytest.raises(ConfigError, match=f"RENDEZVOUS_TIMEOUT must be seconds .* got {seconds}"):
        find_limits(HangConfig())


@pytest.mark.parametrize("port", ["0", "99999", "-1"])
def test_a_port_that_is_none(monkeypatch: pytest.MonkeyPatch, port: str) -> None:
    monkeypatch.setenv("MASTER_PORT", port)
    with pytest.raises(ConfigError, match=rf"MASTER_PORT\) must be from 1 to 65535; got {port}"):
        gang(rank=0, addr="host")


def test_check_prints_what_would_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(RUN)
    code = run(["--config", str(file), "--check", "--use_torch_fsdp2"], StopRequests())
    assert code == ExitCode.DONE
    printed = capsys.readouterr().out
    assert "useTorchFSDP2: true" in printed
    assert "# torch_fsdp2 optim_grads_params on 1 rank, 1 to" in printed


def test_many_problems_end_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MFSDP_TERMINATION_LOG", str(tmp_path / "log"))
    file = tmp_path / "run.yaml"
    file.write_text("model: {config: {model_type: llama}}\nsteps: 1\n")
    assert run(["--config", str(file)], StopRequests()) == ExitCode.CONFIG_ERROR
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"mfsdp-train: ConfigError: {file}:1: data is required")
    assert last.endswith("(and 2 more, above)")
    assert "did you mean training.steps?" in (tmp_path / "log").read_text()


def test_a_fault_of_the_launcher_is_told_too(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full_disk(*_: object) -> Outcome:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(command, "launch", full_disk)
    monkeypatch.setenv("MFSDP_TERMINATION_LOG", str(tmp_path / "log"))
    file = tmp_path / "run.yaml"
    file.write_text(RUN)
    assert run(["--config", str(file)], StopRequests()) == ExitCode.CRASH
    assert "Traceback" in caplog.text
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("mfsdp-train: Crash: OSError: [Errno 28] No space")
    assert json.loads((tmp_path / "log").read_text())["reason"] == "Crash"


def test_the_launcher_imports_no_torch() -> None:
    code = (
        "import mfsdp_trainer.cli.command, mfsdp_trainer.reporting, sys; "
        "sys.exit('torch' in sys.modules or 'prometheus_client' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
