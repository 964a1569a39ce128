"""Jobs from apply to the end, on two real nodes with the real trainer."""

import json

from tests.api.cluster import kubectl
from tests.cluster.conftest import DEPLOYMENT, SYSTEM
from tests.cluster.kit import CLAIM, Team, condition, describe, example, own_program, tiny, wait_for


def test_quickstart_completes_though_the_operator_is_killed(team: Team) -> None:
    [quickstart] = example("quickstart.yaml")
    quickstart["spec"]["checkpoint"]["pvc"] = CLAIM
    team.apply(quickstart)
    team.until(
        "quickstart",
        lambda s: s.get("training", {}).get("step", 0) >= 10,
        "to have trained for 10 steps",
        seconds=300,
    )
    before = team.pods("quickstart")
    assert set(before) == {"quickstart-1-0", "quickstart-1-1"}
    nodes = {pod["spec"]["nodeName"] for pod in team.items("pods")}
    assert nodes == {"node1", "node2"}

    killed = _operator_pod()
    kubectl("-n", SYSTEM, "delete", "pod", killed, "--grace-period=0", "--force")
    kubectl("-n", SYSTEM, "rollout", "status", DEPLOYMENT, "--timeout=55s")
    assert _operator_pod() != killed

    status = team.until_phase("quickstart", "Complete", seconds=900)
    assert team.pods("quickstart") == before
    assert (status["attempt"], status["restarts"]["total"]) == (1, 0)
    assert status["training"]["step"] == status["training"]["totalSteps"] == 300
    assert condition(status, "Ready")["status"] == "True"
    assert (team.volume / "export" / "config.json").is_file()


def _operator_pod() -> str:
    found = json.loads(kubectl("-n", SYSTEM, "get", "pods", "-o", "json"))["items"]
    [pod] = [p for p in found if not p["metadata"].get("deletionTimestamp")]
    name: str = pod["metadata"]["name"]
    return name


def test_suspended_job_lets_go_and_goes_on(team: Team) -> None:
    team.apply(tiny("pause", steps=300))
    team.until_saved("pause")
    team.kubectl("patch", "mfj", "pause", "--type=merge", "-p", '{"spec":{"suspend":true}}')
    team.until_none("pods")
    status = team.until_phase("pause", "Suspended")
    assert condition(status, "Suspended")["status"] == "True"
    assert condition(status, "Ready") == {}
    saved = status["training"]["step"]
    assert saved < 300, "suspended too late to show anything"
    team.kubectl("patch", "mfj", "pause", "--type=merge", "-p", '{"spec":{"suspend":false}}')
    status = team.until_phase("pause", "Complete", seconds=300)
    assert (status["attempt"], status["restarts"]["total"]) == (2, 0)
    # It stopped between steps and saved there: nothing was trained twice.
    assert status["training"]["resumedFromStep"] >= saved - 1


def test_deleted_job_leaves_no_child(team: Team) -> None:
    team.apply(own_program("gone", "sleep 600"))
    team.until_phase("gone", "Running")
    assert len(team.items("pods,services,configmaps")) >= 4
    team.kubectl("delete", "mfj", "gone", "--wait=false")
    team.until_none("mfj,pods,services,configmaps")


def test_finished_job_keeps_its_pods_for_their_logs(team: Team) -> None:
    team.apply(own_program("speaks", "echo my rank is $NODE_RANK of $NNODES, meet at $MASTER_ADDR"))
    team.until_phase("speaks", "Complete")
    logs = team.kubectl("logs", "speaks-1-1")
    assert logs == "my rank is 1 of 2, meet at speaks-1-0.speaks\n"


def test_pods_are_refused_until_the_quota_allows_them(team: Team) -> None:
    team.apply(
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "few"},
            "spec": {"hard": {"pods": "1"}},
        }
    )
    team.apply(own_program("crowded", "true"))

    def refused() -> bool | None:
        status = team.status("crowded")
        ready = condition(status, "Ready") if "conditions" in status else {}
        return True if ready.get("reason") == "QuotaExceeded" else None

    wait_for(refused, 60, lambda: f"the quota to show: {describe(team.status('crowded'))}")
    assert "exceeded quota: few" in condition(team.status("crowded"), "Ready")["message"]
    team.kubectl("delete", "resourcequota", "few")
    team.until_phase("crowded", "Complete")
