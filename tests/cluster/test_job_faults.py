"""Jobs that meet faults: what was killed goes on from its checkpoint, what cannot work stops."""

from tests.cluster.kit import KILL_A_WORKER, Team, condition, tiny, wait_for


def test_killed_pod_resumes_from_the_checkpoint(team: Team) -> None:
    team.apply(tiny("shot", steps=200))
    saved = team.until_saved("shot")
    first = team.pods("shot")
    team.kubectl("delete", "pod", "shot-1-1", "--grace-period=0", "--force")
    status = team.until_phase("shot", "Complete", seconds=300)
    assert status["attempt"] == 2
    assert status["restarts"] == {"failures": 0, "disruptions": 1, "total": 1}
    assert status["lastFailure"]["disruption"] is True
    assert status["training"]["resumedFromStep"] >= saved
    assert status["training"]["step"] == 200
    assert not set(first.values()) & set(team.pods("shot").values())


def test_crash_of_the_program_is_a_failure_and_resumes(team: Team) -> None:
    team.apply(tiny("crash", steps=200))
    saved = team.until_saved("crash")
    team.kubectl("exec", "crash-1-1", "--", "python3", "-c", KILL_A_WORKER)
    status = team.until_phase("crash", "Complete", seconds=300)
    assert status["restarts"] == {"failures": 1, "disruptions": 0, "total": 1}
    assert "SIGKILL" in status["lastFailure"]["message"]
    assert status["training"]["resumedFromStep"] >= saved
    assert "Restarting" in team.events("crash")


def test_what_only_the_pod_can_find_out_fails_once(team: Team) -> None:
    data = {"sources": [{"path": "/nowhere/text"}], "sequenceLength": 64}
    team.apply(tiny("nodata", data=data))

    def failed() -> dict[str, object] | None:
        status = team.status("nodata")
        return status if status.get("phase") == "Failed" else None

    status = wait_for(failed, 120, lambda: f"nodata to fail: {team.status('nodata')}")
    assert (status["attempt"], condition(status, "Failed")["reason"]) == (1, "DataError")
    said = condition(status, "Failed")["message"]
    assert "data.sources" in said
    assert "/nowhere/text" in said
    assert "\n" not in said
    assert condition(status, "Stalled")["status"] == "True"
    assert team.events("nodata")["DataError"] == said
    # The failed pod is kept, and its log ends with the same line.
    failed_pod = status["lastFailure"]["pod"]  # type: ignore[index]
    assert "/nowhere/text" in team.kubectl("logs", failed_pod).splitlines()[-1]


def test_a_template_that_cannot_work_is_refused_with_its_field(team: Team) -> None:
    manifest = tiny("bent")
    trainer = {"name": "trainer", "env": [{"name": "NODE_RANK", "value": "0"}]}
    manifest["spec"]["template"] = {"spec": {"containers": [trainer]}}
    team.apply(manifest)

    def failed() -> bool | None:
        return True if team.status("bent").get("phase") == "Failed" else None

    wait_for(failed, 60, lambda: f"bent to fail: {team.status('bent')}")
    told = condition(team.status("bent"), "Failed")
    assert told["reason"] == "InvalidSpec"
    assert "NODE_RANK is set by the operator" in told["message"]
    assert team.pods("bent") == {}
