"""What holds for every decision, whatever the pods of a job do and in whatever order."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.views import (
    NOW,
    OWN_PROGRAM,
    POLICY,
    built_in,
    ended,
    job,
    outcome,
    running,
    waiting,
)

from mfsdp_operator.api.status import JobPhase, JobStatus
from mfsdp_operator.objects import PodView
from mfsdp_operator.reconcile import Decision, Memory, Observed, decide
from mfsdp_operator.reconcile.state import Announce, CreatePods, DeletePod

FINISHED = (JobPhase.COMPLETE, JobPhase.FAILED)


def _pod(kind: str, rank: int, attempt: int) -> PodView:
    match kind:
        case "waiting":
            return waiting(rank, attempt)
        case "unready":
            return running(rank, attempt, ready=False)
        case "running":
            return running(rank, attempt)
        case "going":
            return running(rank, attempt, deleting=True)
        case "done":
            return ended(rank, attempt, message=outcome("Done", step=10))
        case "crashed":
            return ended(rank, attempt, code=87, message=outcome("Crash", "boom"))
        case "permanent":
            return ended(rank, attempt, code=81, message=outcome("DataError", "no such file"))
        case "evicted":
            return ended(rank, attempt, code=137, phase="Failed", deleting=True)
    raise AssertionError(kind)


KINDS = ("waiting", "unready", "running", "going", "done", "crashed", "permanent", "evicted")
USUAL = ("waiting", "running", "running", "crashed", "done", "going")
LOOK = st.fixed_dictionaries(
    {
        # For each rank what its pod is, if there is one; `past` and `future` are attempts.
        "now": st.tuples(*[st.none() | st.sampled_from(USUAL) | st.sampled_from(KINDS)] * 2),
        "past": st.none() | st.sampled_from(KINDS),
        "future": st.just(None) | st.just(None) | st.sampled_from(KINDS),
        "suspend": st.sampled_from([False, False, False, True]),
        "service": st.booleans(),
        "fresh": st.booleans(),
        "seconds": st.sampled_from([0, 1, 3, 600]),
    }
)
SPECS = st.sampled_from(
    [
        built_in(),
        built_in(restarts={"maxRestarts": 1, "maxDisruptionRestarts": 1}),
        built_in(training={"steps": 10, "globalBatchSize": 3}),
        {"nodes": 2, "gpusPerNode": 0, "template": OWN_PROGRAM},
    ]
)


def _pods(look: dict[str, Any], attempt: int) -> tuple[PodView, ...]:
    pods = [_pod(kind, rank, attempt) for rank, kind in enumerate(look["now"]) if kind and attempt]
    if look["past"] and attempt > 1:
        pods.append(_pod(look["past"], 0, attempt - 1))
    if look["future"]:
        pods.append(_pod(look["future"], 1, attempt + 1))
    return tuple(pods)


def _hold(seen: Observed, decision: Decision) -> None:
    """The invariants of one decision."""
    old, new = seen.job.status, decision.status
    if decision.refresh:
        assert new == old
        assert not decision.actions
        return
    if old.phase in FINISHED:
        assert new.phase is old.phase
    assert new.attempt - old.attempt in (0, 1)
    assert new.restarts.total >= old.restarts.total
    assert new.restarts.total == new.restarts.failures + new.restarts.disruptions
    true = {c.type for c in new.conditions if c.status == "True"}
    assert not {"Reconciling", "Stalled"} <= true
    assert not {"Complete", "Failed"} <= true
    assert new.phase is not None
    present = {pod.uid for pod in seen.pods}
    taken = {(pod.attempt, pod.rank) for pod in seen.pods}
    for action in decision.actions:
        if isinstance(action, CreatePods):
            assert action.attempt == new.attempt
            assert not seen.job.suspended
            assert all(pod.attempt == action.attempt for pod in seen.pods)
            assert not taken & {(action.attempt, rank) for rank in action.ranks}
        if isinstance(action, DeletePod):
            assert action.uid in present
    new.model_dump_json(by_alias=True)


@settings(max_examples=150, deadline=None)
@given(spec=SPECS, looks=st.lists(LOOK, min_size=1, max_size=12))
def test_every_decision_keeps_the_invariants(
    spec: dict[str, Any], looks: list[dict[str, Any]]
) -> None:
    status, memory, now = JobStatus(), Memory(), NOW
    for look in looks:
        now += look["seconds"]
        seen = Observed(
            job(spec | {"suspend": look["suspend"]}, status),
            _pods(look, status.attempt),
            service_exists=look["service"],
            memory=memory,
            fresh=look["fresh"],
        )
        decision = decide(seen, POLICY, now)
        _hold(seen, decision)
        _is_idempotent(seen, decision, now)
        status, memory = decision.status, decision.memory


def _is_idempotent(seen: Observed, decision: Decision, now: float) -> None:
    """With its status written and nothing else done, the same look says the same: an operator that
    was killed in between goes on where it was, and tells nothing twice."""
    if decision.refresh:
        return
    spec = dict(seen.job.spec)
    again_seen = Observed(
        job(spec, decision.status),
        seen.pods,
        service_exists=seen.service_exists,
        memory=decision.memory,
        fresh=True,
    )
    again = decide(again_seen, POLICY, now)
    assert again.status == decision.status
    kept = [action for action in decision.actions if not isinstance(action, Announce)]
    assert list(again.actions) == kept
