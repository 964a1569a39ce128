"""Every reason for an end, reached by a real event, arrives as exit code, message and last line."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from mfsdp_trainer.contract import OUTCOME_MAX_BYTES, Reason

from .conftest import Launch, Launcher, free_port, until


def check(run: Launch, reason: Reason, *texts: str) -> None:
    code = run.wait()
    assert run.outcome()["reason"] == reason, run.stderr()
    assert code == reason.exit_code
    assert run.outcome()["tag"] == "mfsdp.dev/outcome"
    assert run.last_line().startswith(f"mfsdp-train: {reason}")
    for text in texts:
        assert text in run.outcome()["message"]


def test_done(launch: Launcher, tmp_path: Path) -> None:
    run = launch("done")
    check(run, Reason.DONE)
    assert not list(tmp_path.glob("mfsdp-*"))
    assert run.outcome() == {"tag": "mfsdp.dev/outcome", "reason": "Done", "message": "", "step": 5}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("ConfigError", Reason.CONFIG_ERROR),
        ("DataError", Reason.DATA_ERROR),
        ("NonFiniteLossError", Reason.NON_FINITE_LOSS),
        ("CheckpointError", Reason.CHECKPOINT_ERROR),
    ],
)
def test_errors_of_a_worker(launch: Launcher, error: str, reason: Reason) -> None:
    run = launch("fail_second", env={"TEST_ERROR": error, "TEST_MESSAGE": "fix data.sources"})
    check(run, reason, "fix data.sources")
    assert run.outcome()["rank"] == 1
    assert run.outcome()["step"] == 7
    assert "Traceback" not in run.stderr()


def test_message_is_bounded_clean_and_without_secrets(launch: Launcher) -> None:
    message = "\x1b[31mbad\x1b[0m \x07file\n" + "€" * 5000 + ' "quoted" '
    run = launch(
        "fail_second",
        env={"TEST_ERROR": "DataError", "TEST_MESSAGE": "password=hunter2 " + message},
    )
    check(run, Reason.DATA_ERROR, "password=[redacted] bad file; €€")
    raw = run.termination_log.read_bytes()
    assert len(raw) <= OUTCOME_MAX_BYTES
    assert b"hunter2" not in raw
    assert b"hunter2" not in run.last_line().encode()
    assert not any(byte < 0x20 for byte in raw)


def test_crash_shows_its_traceback_first(launch: Launcher) -> None:
    run = launch("crash")
    check(run, Reason.CRASH, "KeyError: 'no such key'")
    assert "Traceback (most recent call last)" in run.stderr()
    assert "KeyError" in run.last_line()
    assert run.outcome()["rank"] == 0


def test_exit_code_without_a_word(launch: Launcher) -> None:
    check(launch("exit_code"), Reason.CRASH, "ended with exit code 3")


def test_success_must_be_said(launch: Launcher) -> None:
    check(launch("exit_silently"), Reason.CRASH, "ranks [0, 1] ended without saying how")


def test_abort(launch: Launcher) -> None:
    check(launch("abort"), Reason.CRASH, "rank 1 was ended by SIGABRT")


def test_abort_by_the_watchdog_of_nccl(launch: Launcher) -> None:
    check(launch("watchdog"), Reason.COLLECTIVE_TIMEOUT, "a collective timed out")


def test_kill_from_outside_is_not_out_of_memory(launch: Launcher) -> None:
    check(launch("killed_from_outside"), Reason.CRASH, "was ended by SIGKILL from outside")


def test_collective_timeout(launch: Launcher) -> None:
    """The rank that did not come is the one to look at: its stacks are shown."""
    run = launch("collective_timeout")
    check(run, Reason.COLLECTIVE_TIMEOUT, "Timed out waiting", "hang.collectiveSeconds")
    assert run.outcome()["rank"] == 0
    assert "in wait_for_ever" in run.stderr().split("--- stacks of rank 1 ---")[1]
    assert "--- stacks of rank 0 ---" not in run.stderr()
    assert "<no Python frame>" not in run.stderr()


def test_the_killed_rank_is_told_and_not_its_echo(launch: Launcher) -> None:
    check(launch("lose_peer"), Reason.CRASH, "rank 1 was ended by SIGKILL")


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup of 1 GiB, made where this machine lets us."""
    top = Path("/sys/fs/cgroup/memory")
    limit, name = ("memory.limit_in_bytes", "mfsdp-test")
    if not top.is_dir():
        top, limit = Path("/sys/fs/cgroup"), "memory.max"
    group = top / f"{name}-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"cannot make a memory cgroup here: {error}")
    (group / limit).write_text(str(1 << 30))
    yield group
    until("the cgroup to be empty", lambda: not (group / "cgroup.procs").read_text().strip())
    group.rmdir()


def test_out_of_memory(launch: Launcher, small_cgroup: Path) -> None:
    enter = f'echo $$ > {small_cgroup}/cgroup.procs && exec "$@"'
    run = launch("eat_memory", prefix=["sh", "-c", enter, "sh"])
    check(run, Reason.OUT_OF_MEMORY, "rank 1 was killed", "memory limit of 1,024 MiB", "raise it")


def test_hang_shows_the_stacks_of_all_ranks(launch: Launcher) -> None:
    run = launch("hang", hang={"step_seconds": 1})
    check(run, Reason.HANG, "gave no sign of life for 1 s in phase Training after step 4")
    for rank in (0, 1):
        stacks = run.stderr().split(f"--- stacks of rank {rank} ---")[1]
        assert "in hang" in stacks.split("---")[0]


def test_config_error_before_anything_starts(launch: Launcher) -> None:
    run = launch("done", "--set=training.stepz=1", "--use_megatron_fsdp", "--use_torch_fsdp2")
    check(run, Reason.CONFIG_ERROR, "training.stepz is not a field: did you mean steps?")


def test_port_in_use_names_the_field(launch: Launcher) -> None:
    first = launch("train")
    first.until_training()
    second = launch("done", f"--set=logging.port={first.port}")
    check(second, Reason.CONFIG_ERROR, f"logging.port {first.port} cannot be served")


def test_two_nodes_meet_and_finish(launch: Launcher, master: list[str]) -> None:
    nodes = [launch("meet_and_train", *master, f"--node_rank={rank}") for rank in (0, 1)]
    for node in nodes:
        check(node, Reason.DONE)


def test_second_node_missing(launch: Launcher, master: list[str]) -> None:
    run = launch("meet_and_train", *master, "--node_rank=0", limits={"rendezvous": 2})
    check(run, Reason.RENDEZVOUS_FAILED, "only 1 of 2 ranks came to 127.0.0.1:")


def test_first_node_missing(launch: Launcher, master: list[str]) -> None:
    run = launch("meet_and_train", *master, "--node_rank=1", limits={"rendezvous": 1})
    check(run, Reason.RENDEZVOUS_FAILED, "127.0.0.1:", "its port does not answer")


def test_name_of_first_node_unknown(launch: Launcher) -> None:
    flags = ["--nnodes=2", "--node_rank=1", "--master_addr=job-0-0.job.invalid"]
    run = launch("meet_and_train", *flags, "--nproc_per_node=1", limits={"rendezvous": 1})
    check(run, Reason.RENDEZVOUS_FAILED, "job-0-0.job.invalid:29500", "does not resolve")


def test_a_lost_node_is_an_echo_on_the_others(launch: Launcher, master: list[str]) -> None:
    nodes = [launch("lose_peer", *master, f"--node_rank={rank}") for rank in (0, 1)]
    check(nodes[1], Reason.CRASH, "rank 1 was ended by SIGKILL")
    check(nodes[0], Reason.CRASH, "lost connection to a peer rank")


@pytest.fixture
def master() -> list[str]:
    return [
        "--nnodes=2",
        "--nproc_per_node=1",
        "--master_addr=127.0.0.1",
        f"--master_port={free_port()}",
    ]


def test_without_a_termination_log(launch: Launcher) -> None:
    """By hand there is no /dev/termination-log, and none is made."""
    run = launch("done", env={"MFSDP_TERMINATION_LOG": ""})
    assert run.wait() == 0
    assert not Path("/dev/termination-log").exists()
    assert "cannot write" not in run.stderr()


def test_what_a_worker_is_given(launch: Launcher) -> None:
    run = launch("show", "--data_parallel_sharding_strategy=no_shard")
    assert run.wait() == 0
    printed = run.stderr()
    for rank in (0, 1):
        assert f"RANK={rank} LOCAL_RANK={rank} WORLD_SIZE=2 MASTER_ADDR=127.0.0.1" in printed
    assert "dataParallelShardingStrategy: no_shard" in printed
    assert "learningRate: 1.0e-05" in printed
