"""Reads what others wrote: termination messages, answers of trainers, environment variables."""

import json
from typing import Any

import pytest
from tests.unit.operator.views import NOW, ended, outcome

from mfsdp_operator.api.status import Condition, JobPhase, TrainingStatus
from mfsdp_operator.clock import from_rfc3339, to_rfc3339
from mfsdp_operator.conditions import Situation, compute
from mfsdp_operator.objects import pod_view
from mfsdp_operator.progress import ProgressError, Target, checked, training_status
from mfsdp_operator.reconcile.outcome import clean, failure_of
from mfsdp_operator.reconcile.training import merged
from mfsdp_operator.settings import Settings, SettingsError
from mfsdp_trainer.contract import PROGRESS_MAX_BYTES

TARGET = Target("uid-1", 2, "10.0.0.1", 9400)


def answer(**fields: Any) -> bytes:
    """An answer of the right trainer, with these fields changed."""
    return json.dumps({"jobUid": "uid-1", "attempt": 2, "step": 5, "loss": 1.5} | fields).encode()


def test_the_right_trainer_is_believed() -> None:
    shown = training_status(checked(answer(tokensPerSecond=12.6, aNewField=1), TARGET), NOW)
    assert (shown.step, shown.loss, shown.tokens_per_second) == (5, "1.5000", "13")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (answer(jobUid="another"), "another pod answers"),
        (answer(attempt=1), "another pod answers"),
        (answer(loss=float("nan")), "not what /progress answers|out of range"),
        (answer(loss=float("inf")), "not what /progress answers|out of range"),
        (answer(step=2**60), "out of range"),
        (answer(step="5 apples"), "not what /progress answers"),
        (answer(phase="<script>"), "not what /progress answers"),
        (b"[]", "not what /progress answers"),
        (b" " * (PROGRESS_MAX_BYTES + 1), "too long"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_other_answers_are_not(body: bytes, said: str) -> None:
    with pytest.raises(ProgressError, match=said):
        checked(body, TARGET)


def test_progress_is_shown_now_and_then_and_at_landmarks() -> None:
    def at(seconds: int, **fields: Any) -> TrainingStatus:
        return TrainingStatus(updated_at=to_rfc3339(NOW + seconds), **fields)

    shown = at(0, step=1)
    assert merged(None, shown, 30) is shown
    assert merged(shown, at(29, step=9), 30) is shown
    assert merged(shown, at(30, step=9), 30) == at(30, step=9)
    assert merged(shown, at(1, checkpoint_step=5), 30) == at(1, checkpoint_step=5)


@pytest.mark.parametrize(
    ("code", "message", "reason", "said"),
    [
        (81, outcome("DataError", "data.sources: no"), "DataError", "data.sources: no"),
        (82, '{"tag": "other"}', "Crash", "exited with code 82"),
        (137, "", "Crash", "exited with code 137 (SIGKILL)"),
        (1, "Traceback\n  token=abc123 \x1b[31mred", "Crash", "token=*** red"),
    ],
)
def test_why_a_trainer_failed(code: int, message: str, reason: str, said: str) -> None:
    failure = failure_of(ended(0, code=code, message=message), trusted=True)
    assert failure.reason == reason
    assert said in failure.message
    assert "\x1b" not in failure.message
    assert "\n" not in failure.message


def test_out_of_memory_kill_is_told() -> None:
    failure = failure_of(ended(0, code=137, reason="OOMKilled"), trusted=True)
    assert failure.reason == "OutOfMemory"


@pytest.mark.parametrize(
    "secret", ["password=hunter2", "HF_TOKEN: hf_abc", "Authorization: Bearer abc.def", "api-key=x"]
)
def test_what_looks_like_a_secret_is_not_shown(secret: str) -> None:
    assert secret.split()[-1].split("=")[-1] not in clean(f"failed with {secret}; more")


def test_pods_without_our_labels_are_none_of_ours() -> None:
    meta = {"namespace": "a", "name": "b", "uid": "c", "resourceVersion": "1", "labels": {}}
    assert pod_view({"metadata": meta, "status": {}}) is None


def test_times_of_conditions_change_with_their_status_only() -> None:
    starting = Situation(JobPhase.STARTING, "PodsStarting", "0 of 2 trainers run")
    training = Situation(JobPhase.RUNNING, "Training", "every trainer runs", pods_ready=True)
    first = compute(starting, (), 1, NOW)
    still = compute(starting, first, 1, NOW + 50)
    assert [c.last_transition_time for c in still] == [to_rfc3339(NOW)] * len(first)
    after = {c.type: c for c in compute(training, still, 2, NOW + 60)}
    assert after["Ready"].last_transition_time == to_rfc3339(NOW + 60)
    assert "Reconciling" not in after
    assert {c.observed_generation for c in after.values()} == {2}


@pytest.mark.parametrize("phase", JobPhase)
@pytest.mark.parametrize("settled", [True, False])
def test_kstatus(phase: JobPhase, settled: bool) -> None:
    """What Flux and Argo CD conclude from the conditions of each phase."""
    conditions = compute(Situation(phase, "Why", "Because.", settled=settled), (), 1, NOW)
    current = phase in (JobPhase.RUNNING, JobPhase.COMPLETE) or (
        phase is JobPhase.SUSPENDED and settled
    )
    # Where the printer column looks for it, also in a suspended job, which has no Ready.
    assert conditions[0].reason == "Why"
    expected = "Failed" if phase is JobPhase.FAILED else "Current" if current else "InProgress"
    assert _kstatus(conditions) == expected


def _kstatus(conditions: tuple[Condition, ...]) -> str:
    status = {c.type: c.status for c in conditions}
    if status.get("Stalled") == "True":
        return "Failed"
    if status.get("Reconciling") == "True" or status.get("Ready", "True") != "True":
        return "InProgress"
    return "Current"


def test_times() -> None:
    assert to_rfc3339(0.9) == "1970-01-01T00:00:00Z"
    assert from_rfc3339("1970-01-01T00:00:10Z") == 10
    assert from_rfc3339("tomorrow") is None
    assert from_rfc3339(None) is None


def test_settings_come_from_the_environment() -> None:
    env = {"MFSDP_TRAINER_IMAGE": "x:1", "MFSDP_WATCH_NAMESPACES": "a, b", "MFSDP_WORKERS": "4"}
    settings = Settings.from_env(env)
    assert (settings.watch_namespaces, settings.workers) == (("a", "b"), 4)


def test_wrong_settings_name_their_variable() -> None:
    with pytest.raises(SettingsError) as caught:
        Settings.from_env({"MFSDP_WORKERS": "many"})
    assert "MFSDP_TRAINER_IMAGE" in str(caught.value)
    assert "MFSDP_WORKERS" in str(caught.value)
