"""What the status goes on saying when an attempt or the job has come to its end."""

from tests.unit.operator.story import Story
from tests.unit.operator.views import built_in, ended, outcome, running

from mfsdp_operator.api.status import AttemptState, JobPhase, JobStatus, TrainingStatus
from mfsdp_operator.reconciler import _landmarks, attempt_news

TRAINS = TrainingStatus(
    step=3,
    total_steps=10,
    phase="Training",
    loss="2.5",
    tokens_per_second="900",
    eta_seconds=7,
)


def test_a_suspended_job_keeps_how_far_it_came_until_it_reports_again(training: Story) -> None:
    training.sees(running(0), running(1), training=TRAINS)
    training.spec = built_in(suspend=True)
    training.sees(running(0), running(1), training=TRAINS)
    said = outcome("Preempted", "told to stop", 5)
    training.sees(*(ended(rank, code=86, message=said, deleting=True) for rank in range(2)))
    kept = TRAINS.model_copy(
        update={"step": 5, "phase": "Stopped", "tokens_per_second": "", "eta_seconds": None}
    )
    assert training.status.training == kept
    training.sees()
    training.spec = built_in()
    training.sees()
    training.trains(attempt=2)
    assert training.status.training == kept
    loading = TrainingStatus(phase="Loading")
    training.sees(running(0, 2), running(1, 2), training=loading)
    assert training.status.training == kept.model_copy(update={"phase": "Loading"})
    new = TRAINS.model_copy(update={"step": 6, "resumed_from_step": 5})
    training.sees(running(0, 2), running(1, 2), training=new)
    assert training.status.training == new


def test_an_attempt_that_failed_says_its_last_step(training: Story) -> None:
    training.sees(running(0), running(1), training=TRAINS)
    said = outcome("Crash", "boom", 4)
    training.sees(ended(0, code=87, message=said), ended(1, code=87, message=said))
    assert training.status.phase is JobPhase.RESTARTING
    assert training.status.training is not None
    assert (training.status.training.step, training.status.training.phase) == (4, "Stopped")


def test_the_checkpoint_of_the_end_shows_though_the_last_poll_missed_it(training: Story) -> None:
    training.sees(running(0), running(1), training=TRAINS)
    training.spec = built_in(suspend=True)
    knows = outcome("Preempted", "a checkpoint is published", 5, checkpointStep=5)
    said = [knows, outcome("Preempted", "told to stop", 5)]
    pods = [ended(rank, code=86, message=said[rank], deleting=True) for rank in range(2)]
    training.sees(*pods)
    training.sees()
    assert training.status.training is not None
    assert training.status.training.checkpoint_step == 5


def test_a_finished_job_says_its_last_checkpoint(training: Story) -> None:
    training.sees(running(0), running(1), training=TRAINS)
    done = outcome("Done", step=10, checkpointStep=10, aFieldOfALaterVersion=1)
    training.sees(ended(0, message=done), ended(1, message=outcome("Done", step=10)))
    assert training.status.phase is JobPhase.COMPLETE
    assert training.status.training is not None
    assert (training.status.training.step, training.status.training.checkpoint_step) == (10, 10)


def test_the_last_word_is_written_at_once() -> None:
    before = JobStatus(attempt_state=AttemptState.ENDED, training=TRAINS)
    after = TRAINS.model_copy(update={"checkpoint_step": 3})
    assert _landmarks(before) != _landmarks(before.model_copy(update={"training": after}))


def test_a_failed_job_does_not_go_on_calling_its_pods_ready(training: Story) -> None:
    bad = ended(1, code=81, message=outcome("DataError", "no such file"))
    training.sees(running(0), bad)
    training.sees(running(0, deleting=True), bad)
    workers = training.status.workers
    assert (workers.created, workers.ready, workers.failed, workers.summary) == (2, 0, 1, "0/2")
    training.sees()
    workers = training.status.workers
    assert (workers.created, workers.failed, workers.summary) == (0, 1, "0/2")


def test_the_log_has_a_line_for_each_begin_and_end_of_an_attempt(new: Story) -> None:
    before = new.status
    new.sees()
    assert attempt_news(before, new.status) == ["attempt 1 begins: 2 pods"]
    before = new.trains().status
    assert attempt_news(before, before) == []
    new.sees()
    assert attempt_news(before, new.status) == [
        "attempt 1 ended: PodVanished: the pod is gone without a trace (pod llama-1-0)",
        "attempt 2 begins: 2 pods",
    ]
    before, new.spec = new.trains(attempt=2).status, built_in(suspend=True)
    new.sees(running(0, 2), running(1, 2))
    assert attempt_news(before, new.status) == ["attempt 2 ended: Suspended"]
