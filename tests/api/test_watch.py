"""`mfsdp watch` against the real API server, with a job whose status the test writes."""

import os
import threading
import time
from collections.abc import Callable

import pytest
from kubernetes.aio.config import kube_config
from tests.api.cluster import Jobs, Manifest
from tests.api.refusals import base

from mfsdp_operator import kube
from mfsdp_operator.cli.main import main

_DEADLINE = 30.0


class Watch:
    """`mfsdp watch` in a thread: its output so far, and its exit code."""

    def __init__(self, jobs: Jobs, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = ""
        self.err = ""
        self.code: int | None = None
        self._thread = threading.Thread(
            target=self._run, args=(["watch", name, "-n", jobs.namespace],), daemon=True
        )
        self._thread.start()

    def _run(self, arguments: list[str]) -> None:
        self.code = main(arguments)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition on the output."""
        deadline = time.monotonic() + _DEADLINE
        while True:
            # The order counts: what was printed before the end must be in the output.
            ended = not self._thread.is_alive()
            out, err = self._capsys.readouterr()
            self.out += out
            self.err += err
            if condition():
                return
            assert not ended, f"ended with {self.code} before {what}: {self.out}{self.err}"
            assert time.monotonic() < deadline, f"waited {_DEADLINE} s for {what}: {self.out}"
            self._thread.join(0.05)

    def end(self) -> int | None:
        """Wait for the exit code."""
        self.until(lambda: not self._thread.is_alive(), "the end")
        return self.code


@pytest.fixture
def watch(
    twins: Jobs, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Watch]:
    """Starts `mfsdp watch` on a job of this run's own group."""
    monkeypatch.setattr(kube, "JOBS", f"apis/{twins.api_version}")
    # The client reads KUBECONFIG when it is imported, which is before the cluster is known.
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", os.environ["KUBECONFIG"])
    return lambda name: Watch(twins, name, capsys)


def stored(twins: Jobs, name: str) -> Manifest:
    manifest = base()
    manifest["metadata"]["name"] = name
    return twins.create(manifest)


def say(twins: Jobs, job: Manifest, **status: object) -> None:
    """Write the job's status."""
    current = twins.get(job["metadata"]["name"])
    twins.replace_status(current | {"status": {"observedGeneration": 1, **status}})


def test_follows_to_complete(twins: Jobs, watch: Callable[[str], Watch]) -> None:
    job = stored(twins, "well")
    watched = watch("well")
    watched.until(lambda: "well  waiting" in watched.out, "the first line")
    training: dict[str, object] = {"phase": "Training", "totalSteps": 10, "step": 3, "loss": "2.5"}
    workers = {"summary": "2/2"}
    say(twins, job, phase="Running", workers=workers, training=training)
    watched.until(lambda: "step 3/10  loss 2.500" in watched.out, "step 3")
    assert "pods 2/2" in watched.out
    say(twins, job, phase="Complete", workers=workers, training=training | {"step": 10})
    assert watched.end() == 0
    assert "well  Complete" in watched.out
    assert "step 10/10" in watched.out


def test_a_failed_job_is_exit_code_1_with_its_reason(
    twins: Jobs, watch: Callable[[str], Watch]
) -> None:
    job = stored(twins, "badly")
    condition = {
        "type": "Failed",
        "status": "True",
        "reason": "DataError",
        "message": "data.sources: /nowhere does not exist",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }
    say(twins, job, phase="Failed", conditions=[condition], lastFailure={"pod": "badly-1-0"})
    watched = watch("badly")
    assert watched.end() == 1
    assert "badly: DataError: data.sources: /nowhere does not exist" in watched.err
    assert f"kubectl logs -n {twins.namespace} badly-1-0" in watched.err


def test_a_deleted_job_ends_the_watch(twins: Jobs, watch: Callable[[str], Watch]) -> None:
    stored(twins, "gone")
    watched = watch("gone")
    watched.until(lambda: "gone  waiting" in watched.out, "the first line")
    twins.delete("gone")
    assert watched.end() == 1
    assert "deleted while it was watched" in watched.err


def test_no_such_job(twins: Jobs, watch: Callable[[str], Watch]) -> None:
    watched = watch("never")
    assert watched.end() == 1
    assert f"no MegatronFSDPJob never in namespace {twins.namespace}" in watched.err
