"""The hang watch counts what it saw, and the memory watch what the cgroup counted."""

from pathlib import Path

import pytest

from mfsdp_trainer.config import HangConfig
from mfsdp_trainer.contract import Phase
from mfsdp_trainer.launcher.gang import Limits
from mfsdp_trainer.launcher.hang import HangWatch
from mfsdp_trainer.launcher.memory import MemoryWatch
from mfsdp_trainer.reporting import Heartbeat

HANG = HangConfig(
    start_seconds=5,
    load_seconds=50,
    first_step_seconds=20,
    step_seconds=10,
    evaluate_seconds=60,
    save_seconds=70,
    export_seconds=80,
)
LIMITS = Limits(HANG, rendezvous=30.0)


def beat(rank: int, at: float, phase: Phase = Phase.TRAINING, step: int | None = 3) -> Heartbeat:
    return Heartbeat(rank=rank, pid=1, phase=phase, step=step, at=at)


def silent_ticks(watch: HangWatch, beats: dict[int, Heartbeat], tick: float = 1.0) -> int:
    """Ticks of the same heartbeats until the watch speaks."""
    for count in range(1, 10_000):
        if watch.observe(beats, tick):
            return count
    raise AssertionError("the watch never spoke")


def test_the_rank_that_stopped_first_is_named() -> None:
    watch = HangWatch((0, 1), LIMITS)
    for tick in range(30):
        line = watch.observe({0: beat(0, tick), 1: beat(1, min(tick, 5))}, 1.0)
        if line:
            break
    assert tick == 16
    assert line == (
        "rank 1 gave no sign of life for 10 s in phase Training after step 3; "
        "the stacks of all ranks are in the log above"
    )
    assert watch.silent_seconds == {0: 0.0, 1: 11.0}


@pytest.mark.parametrize(
    ("phase", "step", "seconds"),
    [
        (Phase.STARTING, None, 5),
        (Phase.RENDEZVOUS, None, 90),
        (Phase.LOADING, None, 50),
        (Phase.TRAINING, None, 20),
        (Phase.TRAINING, 3, 10),
        (Phase.EVALUATING, 3, 60),
        (Phase.SAVING, 3, 70),
        (Phase.EXPORTING, 3, 80),
        (Phase.DONE, 3, 70),
    ],
)
def test_limits_go_by_phase(phase: Phase, step: int | None, seconds: int) -> None:
    beats = {0: beat(0, 1.0, phase, step)}
    assert silent_ticks(HangWatch((0,), LIMITS), beats) == seconds + 2


def test_a_rank_that_never_spoke() -> None:
    assert silent_ticks(HangWatch((0,), LIMITS), {}) == 6


def test_a_frozen_container_is_no_hang() -> None:
    watch = HangWatch((0,), LIMITS)
    watch.observe({0: beat(0, 1.0)}, 1.0)
    assert watch.observe({0: beat(0, 1.0)}, 3600.0) is None
    assert watch.observe({0: beat(0, 3601.0)}, 1.0) is None
    assert watch.silent_seconds == {0: 0.0}


@pytest.fixture(params=["v1", "v2"])
def cgroup(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A tree as a container sees its own cgroup; returns the file that counts kills."""
    if request.param == "v2":
        (tmp_path / "memory.max").write_text("1073741824\n")
        events = tmp_path / "memory.events"
        events.write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 2\noom_group_kill 0\n")
        return events
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("1073741824\n")
    events = tmp_path / "memory" / "memory.oom_control"
    events.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    return events


def test_only_kills_since_the_start_count(cgroup: Path, tmp_path: Path) -> None:
    watch = MemoryWatch(tmp_path)
    assert not watch.killed()
    cgroup.write_text(cgroup.read_text().replace("oom_kill 2", "oom_kill 3"))
    assert watch.killed()
    assert watch.limit() == 1 << 30


def test_no_limit(tmp_path: Path) -> None:
    (tmp_path / "memory.events").write_text("oom_kill 0\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert MemoryWatch(tmp_path).limit() is None


def test_no_cgroup(tmp_path: Path) -> None:
    watch = MemoryWatch(tmp_path)
    assert not watch.killed()
    assert watch.limit() is None
