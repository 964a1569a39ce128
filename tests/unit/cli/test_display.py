"""What is shown of a run: one line a change without a terminal, a live bar with one."""

import io

import pytest
from rich.console import Console

from mfsdp_operator.api.status import JobStatus
from mfsdp_operator.cli.display import LiveDisplay, PlainDisplay
from mfsdp_operator.cli.snapshot import Snapshot, duration, last_line, line, printable
from mfsdp_operator.cli.status_view import ending, seconds_taken, snapshot_of
from mfsdp_trainer.contract import Phase, Progress

RUNNING = Snapshot(
    name="small",
    phase="Running",
    doing="Training",
    ready="2/2",
    restarts=1,
    step=30,
    total_steps=120,
    loss=2.3456,
    eval_loss=2.5,
    tokens_per_second=12345.6,
    eta_seconds=185,
)
STATUS = JobStatus.model_validate(
    {
        "observedGeneration": 1,
        "phase": "Running",
        "attempt": 2,
        "sharding": {
            "engine": "torch_fsdp2",
            "strategy": "optim",
            "worldSize": 2,
            "shardSize": 2,
            "microBatches": 1,
        },
        "workers": {"summary": "2/2"},
        "training": {"step": 20, "totalSteps": 120, "phase": "Training", "loss": "2.5"},
    }
)


def test_line_says_state_pods_steps_and_numbers() -> None:
    assert line(RUNNING) == (
        "small  Running Training  pods 2/2  restarts 1  step 30/120  "
        "loss 2.346  held-out 2.500  12,346 tokens/s  ETA 3m05s"
    )
    assert line(Snapshot("new")) == "new  waiting"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (59.4, "59s"), (65, "1m05s"), (7620, "2h07m"), (-3, "0s")]
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_texts_from_outside_cannot_command_the_terminal() -> None:
    assert printable("a\x1b[2Jb\r\nc\x9bd") == "a [2Jb c d"
    assert len(printable("x" * 1000)) == 300


def test_plain_display_prints_changes_at_once_and_numbers_now_and_then() -> None:
    now = 0.0
    lines: list[str] = []
    display = PlainDisplay(lines.append, lambda: now)
    with display:
        display.show(Snapshot("small", phase="Starting"))
        display.show(Snapshot("small", phase="Starting"))
        display.show(Snapshot("small", phase="Starting", message="pulling"))
        display.show(RUNNING)
        now = 5.0
        display.show(Snapshot(**{**vars_of(RUNNING), "step": 31}))
        now = 11.0
        display.show(Snapshot(**{**vars_of(RUNNING), "step": 32}))
    assert [text.split("  ")[0] for text in lines] == ["[0s] small"] * 3 + ["[11s] small"]
    assert lines[1].endswith("(pulling)")
    assert "step 32/120" in lines[3]


def vars_of(snapshot: Snapshot) -> dict[str, object]:
    return {name: getattr(snapshot, name) for name in snapshot.__dataclass_fields__}


def test_live_display_shows_a_bar_and_takes_no_markup() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=160, color_system=None)
    with LiveDisplay(console) as display:
        display.show(Snapshot(**{**vars_of(RUNNING), "message": "[bold]quota[/bold] exceeded"}))
    shown = out.getvalue()
    for part in ("small", "Running Training", "pods 2/2", "step 30/120", "loss 2.346", "━"):
        assert part in shown
    assert "[bold]quota[/bold] exceeded" in shown


def test_the_trainers_own_answer_beats_an_older_status() -> None:
    newer = Progress(phase=Phase.EVALUATING, step=25, total_steps=120, loss=2.25)
    shown = snapshot_of("small", STATUS, newer)
    assert (shown.step, shown.loss, shown.doing) == (25, 2.25, "Evaluating")
    assert shown.engine == "torch_fsdp2 optim"
    older = Progress(phase=Phase.LOADING, step=0, total_steps=120)
    shown = snapshot_of("small", STATUS, older)
    assert (shown.step, shown.loss, shown.doing) == (20, 2.5, "Training")


def test_only_a_job_that_runs_has_a_speed_and_an_end_in_sight() -> None:
    said = {"step": 20, "totalSteps": 120, "tokensPerSecond": "500", "etaSeconds": 60}
    numbers = {
        phase: snapshot_of(
            "small", JobStatus.model_validate({"phase": phase, "training": said}), None
        ).numbers
        for phase in ("Running", "Suspended", "Restarting")
    }
    assert numbers == {"Running": "500 tokens/s  ETA 1m00s", "Suspended": "", "Restarting": ""}


def test_a_run_is_timed_from_its_start() -> None:
    status = STATUS.model_copy(update={"start_time": "2026-01-02T03:04:05Z"})
    shown = snapshot_of("small", status, None)
    assert shown.started is not None
    lines: list[str] = []
    started = shown.started
    with PlainDisplay(lines.append, lambda: started + 65) as display:
        display.show(shown)
    assert lines[0].startswith("[1m05s] small")
    assert seconds_taken(status) is None
    ended = status.model_copy(update={"completion_time": "2026-01-02T03:05:05Z"})
    assert seconds_taken(ended) == 60


def test_why_a_job_does_not_run_is_shown() -> None:
    waiting = STATUS.model_validate(
        {
            "phase": "Pending",
            "conditions": [
                {
                    "type": "Reconciling",
                    "status": "True",
                    "reason": "QuotaExceeded",
                    "message": "exceeded quota: pods",
                    "lastTransitionTime": "2026-01-02T03:04:05Z",
                }
            ],
        }
    )
    assert snapshot_of("small", waiting, None).message == "exceeded quota: pods"


def test_a_failure_is_told_with_its_log() -> None:
    failed = JobStatus.model_validate(
        {
            "phase": "Failed",
            "conditions": [
                {
                    "type": "Failed",
                    "status": "True",
                    "reason": "DataError",
                    "message": "data.sources: /x does not exist\nin the container",
                    "lastTransitionTime": "2026-01-02T03:04:05Z",
                }
            ],
            "lastFailure": {"pod": "small-0-1"},
        }
    )
    assert list(ending("ns", failed)) == [
        "DataError: data.sources: /x does not exist in the container",
        "its log: kubectl logs -n ns small-0-1",
    ]


def test_of_a_traceback_the_error_is_told() -> None:
    assert last_line("Traceback:\n  File x\nIndexError: out of\x1b range\n\n") == (
        "IndexError: out of  range"
    )
    assert last_line(" \n") == ""
