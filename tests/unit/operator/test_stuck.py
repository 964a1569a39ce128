"""Pods that do not start and whose status does not say why: volumes, networks, schedulers."""

from typing import Any

import pytest
from tests.unit.operator.story import Story, told
from tests.unit.operator.views import NOW, pod, running

from mfsdp_operator.clock import to_rfc3339
from mfsdp_operator.objects import PodView


def pending(created: float = NOW, prepared: str = "False", **status: Any) -> PodView:
    """A pod of rank 0 on its node, of which the kubelet says that it makes the container."""
    conditions = [{"type": "PodReadyToStartContainers", "status": prepared}]
    state = {"waiting": {"reason": "ContainerCreating"}}
    fields = {"phase": "Pending", "conditions": conditions, "created": to_rfc3339(created)}
    return pod(0, 1, state, **fields | status)


def reason_and_message(story: Story) -> tuple[str, str]:
    """What the Ready condition says."""
    [ready] = [c for c in story.status.conditions if c.type == "Ready"]
    return ready.reason, ready.message


def test_a_pod_whose_volumes_do_not_come_is_told_after_a_minute_and_once(new: Story) -> None:
    new.sees(service=False)
    decision = new.sees(pending(), running(1))
    assert reason_and_message(new) == ("PodsStarting", "1 of 2 trainers run")
    assert decision.look_again_at == NOW + 60
    new.now = NOW + 60
    decision = new.sees(pending(), running(1))
    reason, message = reason_and_message(new)
    assert reason == "PodsStuck"
    assert message.startswith("pod llama-1-0: its volumes or its network are not ready on node0")
    assert message.endswith("kubectl describe pod llama-1-0 shows which")
    assert told(decision) == [("PodsStuck", message)]
    new.now += 30
    assert told(new.sees(pending(), running(1))) == []


INIT = [{"name": "fetch", "state": {"running": {}}}]
OFF = {"node": "", "conditions": []}


@pytest.mark.parametrize(
    ("status", "reason", "says"),
    [
        ({"prepared": "True"}, "PodsStarting", "pod llama-1-0: its image is still being pulled"),
        ({"initContainerStatuses": INIT}, "PodsStarting", "its init container fetch runs"),
        (OFF, "PodsStuck", "no scheduler has looked at it: is schedulerName"),
        ({"conditions": []}, "PodsStuck", "its volumes or its network are not ready"),
    ],
    ids=["image", "init container", "no scheduler", "an older kubelet"],
)
def test_what_takes_long_is_named(
    new: Story, status: dict[str, Any], reason: str, says: str
) -> None:
    new.sees(service=False)
    new.now = NOW + 61
    new.sees(pending(**status), running(1))
    shown, message = reason_and_message(new)
    assert (shown, says in message) == (reason, True), message
