"""The torchrun example on the cluster, applied as its own comment says; and meanwhile a pod that
cannot start."""

from tests.api.bed import ROOT
from tests.cluster.kit import CLAIM, Manifest, Team, condition, describe, example, job, wait_for


def test_the_torchrun_example_trains_while_a_pod_without_its_secret_is_told_of(team: Team) -> None:
    team.apply(_without_its_secret("stuck"))
    script = ROOT / "examples" / "own-program" / "train_fsdp2.py"
    team.kubectl("create", "configmap", "torchrun-program", f"--from-file={script}")
    [torchrun] = example("own-program/torchrun.yaml")
    torchrun["spec"]["checkpoint"]["pvc"] = CLAIM
    team.apply(torchrun)

    status = team.until_phase("torchrun", "Complete", seconds=300)
    assert (status["attempt"], status["sharding"]["engine"]) == (1, "torch_fsdp2")
    log = team.kubectl("logs", "torchrun-1-0")
    assert "rank 0 of 2 begins at step 1\n" in log
    assert "checkpoint of step 400 is published" in log
    assert sorted(path.name for path in team.volume.iterdir()) == ["step-300", "step-400"]

    ready = wait_for(
        lambda: _stuck(team), 120, lambda: f"a word on the pod: {describe(team.status('stuck'))}"
    )
    assert "pod stuck-1-0: its volumes or its network are not ready on node" in ready["message"]
    assert team.events("stuck")["PodsStuck"] == ready["message"]


def _without_its_secret(name: str) -> Manifest:
    mount = {"name": "key", "mountPath": "/key"}  # what no container mounts, no kubelet waits for
    trainer = {"name": "trainer", "command": ["true"], "volumeMounts": [mount]}
    volume = {"name": "key", "secret": {"secretName": "nobody-made-it"}}
    pod = {"containers": [trainer], "volumes": [volume]}
    return job(name, {"gpusPerNode": 0, "template": {"spec": pod}})


def _stuck(team: Team) -> Manifest | None:
    status = team.status("stuck")
    ready = condition(status, "Ready") if "conditions" in status else {}
    return ready if ready.get("reason") == "PodsStuck" else None
