"""The life of a job, one decision after the other: each test is a story."""

from dataclasses import replace

import pytest
from tests.unit.operator.story import Story, deleted, made, told
from tests.unit.operator.views import (
    NOW,
    OWN_PROGRAM,
    built_in,
    ended,
    outcome,
    running,
    waiting,
)

from mfsdp_operator.api.status import AttemptState, JobPhase
from mfsdp_operator.clock import from_rfc3339
from mfsdp_operator.reconcile.state import (
    SETTLE_SECONDS,
    Announce,
    CreateConfigMap,
    CreatePods,
    CreateService,
    Refusal,
)


def test_first_sight_writes_the_attempt_and_makes_everything(new: Story) -> None:
    decision = new.sees(service=False)
    assert [type(action) for action in decision.actions] == [
        CreateConfigMap,
        CreateService,
        CreatePods,
    ]
    assert made(decision) == [0, 1]
    assert (new.status.attempt, new.status.attempt_state) == (1, AttemptState.CREATING)
    assert new.status.observed_generation == 1
    assert new.status.sharding is not None
    assert new.status.sharding.world_size == 2
    assert new.condition("Ready") == "False"
    assert new.condition("Reconciling") == "True"


def test_only_missing_pods_are_made(new: Story) -> None:
    new.sees()
    assert made(new.sees(waiting(1))) == [0]


def test_from_pods_to_running_to_complete(new: Story) -> None:
    new.sees()
    new.sees(waiting(0), waiting(1))
    assert (new.status.phase, new.status.attempt_state) == (JobPhase.STARTING, AttemptState.ACTIVE)
    new.sees(running(0, ready=False), running(1))
    assert (new.status.phase, new.status.workers.summary) == (JobPhase.RUNNING, "1/2")
    assert (new.condition("Ready"), new.condition("PodsReady")) == ("True", "False")
    new.sees(running(0), ended(1))
    assert new.status.phase is JobPhase.RUNNING
    decision = new.sees(ended(0, message=outcome("Done", step=10)), ended(1))
    assert new.status.phase is JobPhase.COMPLETE
    assert (new.condition("Complete"), new.condition("Reconciling")) == ("True", None)
    assert new.status.training is not None
    assert (new.status.training.step, new.status.training.phase) == (10, "Done")
    assert deleted(decision) == []
    assert new.status.completion_time is not None


def test_invalid_spec_fails_once_with_the_field(new: Story) -> None:
    new.spec = built_in(training={"steps": 10, "globalBatchSize": 3})
    decision = new.sees()
    assert new.status.phase is JobPhase.FAILED
    [(reason, message)] = told(decision)
    assert reason == "InvalidSpec"
    assert "globalBatchSize" in message
    assert new.condition("Stalled") == "True"
    assert new.sees().actions == ()


@pytest.mark.parametrize("pattern", ["a{99999999999}", "(" * 500, "[a"])
def test_a_pattern_that_python_cannot_compile_is_an_invalid_spec(new: Story, pattern: str) -> None:
    new.spec = built_in(training={"steps": 10, "globalBatchSize": 2, "freeze": [pattern]})
    [(reason, message)] = told(new.sees())
    assert (reason, new.status.phase) == ("InvalidSpec", JobPhase.FAILED)
    assert message.startswith("spec.training.freeze[0]: ")
    assert "is not a regular expression" in message


def test_a_deleted_pod_restarts_the_gang_without_wait(training: Story) -> None:
    decision = training.sees(running(0), running(1, deleting=True))
    assert deleted(decision) == ["llama-1-0"]
    assert (training.status.phase, training.status.attempt) == (JobPhase.RESTARTING, 1)
    assert training.status.restarts.disruptions == 1
    assert training.status.next_attempt_time is None
    assert made(training.sees(running(0, deleting=True))) == []
    assert made(training.sees()) == [0, 1]
    assert training.status.attempt == 2
    training.trains(attempt=2)
    assert training.condition("Restarting") == "False"


def test_a_vanished_pod_is_a_disruption(training: Story) -> None:
    training.sees(running(1))
    assert training.status.restarts.disruptions == 1
    assert training.status.last_failure is not None
    assert training.status.last_failure.reason == "PodVanished"


def test_eviction_explains_the_crashes_beside_it(training: Story) -> None:
    evicted = ended(
        0,
        code=137,
        conditions=[{"type": "DisruptionTarget", "status": "True", "reason": "Evicted"}],
    )
    training.sees(evicted, ended(1, code=87, message=outcome("Crash", "connection reset")))
    assert training.status.restarts.disruptions == 1
    assert training.status.restarts.failures == 0


def test_a_failure_waits_for_the_others_then_backs_off(training: Story) -> None:
    crash = ended(1, code=87, message=outcome("Crash", "connection reset by peer"))
    decision = training.sees(running(0), crash)
    assert training.status.phase is JobPhase.RUNNING
    assert decision.look_again_at == NOW + SETTLE_SECONDS
    oom = ended(0, code=83, message=outcome("OutOfMemory", "rank 0: CUDA out of memory"), at=9)
    training.sees(oom, crash)
    assert training.status.last_failure is not None
    assert training.status.last_failure.reason == "OutOfMemory"
    assert training.status.restarts.failures == 1
    decision = training.sees()
    assert made(decision) == []
    due = from_rfc3339(training.status.next_attempt_time)
    assert due is not None
    assert decision.look_again_at == due
    training.now = due
    assert made(training.sees()) == [0, 1]


def test_a_silent_gang_does_not_hold_up_a_restart(training: Story) -> None:
    crash = ended(1, code=87, message=outcome("Crash"))
    training.sees(running(0), crash)
    training.now += SETTLE_SECONDS
    assert deleted(training.sees(running(0), crash)) == ["llama-1-0", "llama-1-1"]


def test_backoff_doubles(training: Story) -> None:
    waits = []
    for attempt in (1, 2, 3):
        dead = [ended(rank, attempt, code=1) for rank in range(2)]
        began = training.now
        training.sees(*dead)
        due = from_rfc3339(training.status.next_attempt_time)
        assert due is not None
        waits.append(due - began)
        training.now = due
        training.sees()
        training.trains(attempt + 1)
    assert waits == [2, 4, 8]


def test_restarts_end_at_the_limit(training: Story) -> None:
    training.spec = built_in(restarts={"maxRestarts": 0})
    decision = training.sees(ended(0, code=1), ended(1, code=1))
    assert training.status.phase is JobPhase.FAILED
    [(reason, message)] = told(decision)
    assert reason == "RestartsExhausted"
    assert "restarts.maxRestarts is 0" in message
    assert training.condition("Stalled") == "True"
    assert training.condition("Reconciling") is None


@pytest.mark.parametrize("reason", ["ConfigError", "DataError", "NonFiniteLoss"])
def test_permanent_errors_are_not_retried_and_keep_their_pod(training: Story, reason: str) -> None:
    bad = ended(1, code=81, message=outcome(reason, "data.sources: /x does not exist"))
    decision = training.sees(running(0), bad)
    assert training.status.phase is JobPhase.FAILED
    assert told(decision) == [
        (reason, "data.sources: /x does not exist (pod llama-1-1, attempt 1)")
    ]
    assert deleted(decision) == ["llama-1-0"]
    assert training.status.restarts.total == 0
    assert training.sees(bad).actions == ()


def test_the_word_of_a_foreign_program_is_not_believed() -> None:
    story = Story({"nodes": 2, "gpusPerNode": 0, "template": OWN_PROGRAM})
    story.sees()
    story.trains()
    claims = outcome("DataError", "never try again")
    story.sees(ended(0, code=81, message=claims), ended(1, code=81, message=claims))
    assert story.status.phase is JobPhase.RESTARTING


def test_preempted_alone_is_a_failure(training: Story) -> None:
    said = outcome("Preempted", "told to stop", 5)
    training.sees(ended(0, code=86, message=said), ended(1, code=86, message=said))
    assert training.status.restarts.failures == 1


def test_exit_0_of_a_pod_that_was_told_to_go_is_no_success(training: Story) -> None:
    training.spec = {"nodes": 2, "gpusPerNode": 0, "template": OWN_PROGRAM}
    training.sees(ended(0, deleting=True), ended(1, deleting=True))
    assert training.status.restarts.disruptions == 1


def test_a_sidecar_does_not_keep_a_job_from_completing(training: Story) -> None:
    pods = [ended(rank, phase="Running") for rank in range(2)]
    decision = training.sees(*pods)
    assert training.status.phase is JobPhase.COMPLETE
    assert deleted(decision) == []
    assert decision.look_again_at is not None
    training.now = decision.look_again_at
    assert deleted(training.sees(*pods)) == ["llama-1-0", "llama-1-1"]


def test_suspend_and_resume_cost_no_restart(training: Story) -> None:
    training.spec = built_in(suspend=True)
    decision = training.sees(running(0), running(1))
    assert deleted(decision) == ["llama-1-0", "llama-1-1"]
    assert (training.condition("Suspended"), training.condition("Reconciling")) == ("True", "True")
    decision = training.sees()
    assert decision.actions == ()
    assert (training.condition("Ready"), training.condition("Reconciling")) == (None, None)
    training.spec = built_in()
    assert made(training.sees()) == [0, 1]
    assert (training.status.attempt, training.status.restarts.total) == (2, 0)
    assert training.condition("Suspended") == "False"


def test_suspended_from_the_start_makes_nothing(new: Story) -> None:
    new.spec = built_in(suspend=True)
    assert [type(action) for action in new.sees(service=False).actions] == [Announce]
    assert (new.status.phase, new.status.attempt) == (JobPhase.SUSPENDED, 0)


def test_a_gang_that_is_done_completes_though_suspended(training: Story) -> None:
    training.spec = built_in(suspend=True)
    training.sees(ended(0), ended(1))
    assert training.status.phase is JobPhase.COMPLETE


def test_refusals_are_said_and_retried_later(new: Story) -> None:
    new.sees()
    refusal = Refusal("QuotaExceeded", "the API server refused a pod: exceeded quota", NOW + 4)
    new.memory = replace(new.memory, refusal=refusal)
    decision = new.sees(waiting(0))
    assert made(decision) == []
    assert decision.look_again_at == NOW + 4
    ready = next(c for c in new.status.conditions if c.type == "Ready")
    assert (ready.reason, ready.message) == (refusal.reason, refusal.message)
    new.now += 4
    assert made(new.sees(waiting(0))) == [1]
    new.sees(waiting(0), waiting(1))
    assert new.memory.refusal is None


def test_a_pod_that_is_invalid_for_good_fails_the_job_and_takes_the_gang_with_it(
    new: Story,
) -> None:
    new.sees()
    refusal = Refusal("CreateInvalid", "image: Required value", NOW + 4, permanent=True)
    new.memory = replace(new.memory, refusal=refusal)
    decision = new.sees(waiting(0))
    assert new.status.phase is JobPhase.FAILED
    assert told(decision) == [("CreateInvalid", "image: Required value")]
    assert (deleted(decision), made(decision)) == (["llama-1-0"], [])
    assert new.condition("Stalled") == "True"


def test_an_old_view_of_the_job_is_read_again_first(new: Story) -> None:
    new.sees()
    decision = new.sees(running(0, attempt=2))
    assert decision.refresh
    assert decision.actions == ()
    decision = new.sees(running(0, attempt=2), fresh=True)
    assert (deleted(decision), made(decision)) == (["llama-2-0"], [])


def test_a_job_on_its_way_out_is_left_alone(training: Story) -> None:
    training.meta = {"deletionTimestamp": "2027-01-15T08:00:00Z"}
    assert training.sees(running(0, deleting=True)).actions == ()


def test_why_pods_wait(new: Story) -> None:
    new.sees()
    new.sees(waiting(0), waiting(1, reason="ImagePullBackOff", message="Back-off pulling x"))
    ready = next(c for c in new.status.conditions if c.type == "Ready")
    assert ready.reason == "ImagePull"
    assert "llama-1-1: ImagePullBackOff: Back-off pulling x" in ready.message


def test_a_cause_that_needs_a_person_is_an_event_once(new: Story) -> None:
    new.sees()
    assert told(new.sees(waiting(0), waiting(1))) == []
    stuck = waiting(1, reason="ErrImagePull", message="not found")
    [(reason, message)] = told(new.sees(waiting(0), stuck))
    assert (reason, message) == ("ImagePull", "pod llama-1-1: ErrImagePull: not found")
    again = waiting(1, reason="ImagePullBackOff", message="Back-off pulling x")
    assert told(new.sees(waiting(0), again)) == []


def test_a_lost_service_is_made_again(training: Story) -> None:
    decision = training.sees(running(0), running(1), service=False)
    assert decision.actions == (CreateService(),)


def test_a_finished_job_acknowledges_later_generations(training: Story) -> None:
    training.sees(ended(0), ended(1))
    training.meta = {"generation": 4}
    training.sees(ended(0), ended(1))
    assert training.status.observed_generation == 4
    assert {c.observed_generation for c in training.status.conditions} == {4}
