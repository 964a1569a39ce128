"""What the cluster tests of jobs use: a namespace with a volume, its jobs, and waits that end."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import yaml
from tests.api.bed import ROOT
from tests.api.cluster import kubectl

type Manifest = dict[str, Any]

CLAIM = "checkpoints"
KILL_A_WORKER = """
import os, signal
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        command = open(f"/proc/{pid}/cmdline", "rb").read()
    except OSError:
        continue
    if int(pid) not in (1, os.getpid()) and b"mfsdp_trainer.worker" in command:
        os.kill(int(pid), signal.SIGKILL)
"""


def wait_for[T](look: Callable[[], T | None], seconds: float, what: Callable[[], str]) -> T:
    """The first thing that `look` finds; fails after `seconds`, saying what it waited for."""
    end = monotonic() + seconds
    while (found := look()) is None:
        assert monotonic() < end, f"waited {seconds:.0f} s for {what()}"
        sleep(0.25)
    return found


def tiny(name: str, steps: int = 40, **fields: Any) -> Manifest:
    """A job that the built-in trainer does in seconds, on two nodes; saves every 10 steps."""
    llama = {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    }
    spec = {
        "nodes": 2,
        "gpusPerNode": 0,
        "useTorchFSDP2": True,
        "model": {"config": llama},
        "data": {"sources": [{"builtin": "python-stdlib"}], "sequenceLength": 64},
        "training": {
            "steps": steps,
            "globalBatchSize": 8,
            "microBatchSize": 2,
            "precision": "fp32",
        },
        "checkpoint": {"pvc": CLAIM, "path": f"/checkpoints/{name}", "everySteps": 10},
    }
    return job(name, spec | fields)


def own_program(name: str, script: str, nodes: int = 2) -> Manifest:
    """A job that runs a shell script of the user's own."""
    trainer = {"name": "trainer", "command": ["sh", "-c", script]}
    # A shell as first process does not hear SIGTERM.
    template = {"spec": {"containers": [trainer], "terminationGracePeriodSeconds": 1}}
    return job(name, {"nodes": nodes, "gpusPerNode": 0, "template": template})


def job(name: str, spec: Manifest) -> Manifest:
    """A job."""
    return {
        "apiVersion": "training.mfsdp.dev/v1alpha1",
        "kind": "MegatronFSDPJob",
        "metadata": {"name": name},
        "spec": spec,
    }


@dataclass(frozen=True)
class Team:
    """A namespace, as the people who work in it see it. `volume` is its claim's directory here."""

    namespace: str
    volume: Path

    def kubectl(self, *words: str, stdin: str | None = None, ok: bool = True) -> str:
        """kubectl in this namespace."""
        return kubectl("-n", self.namespace, *words, stdin=stdin, ok=ok)

    def apply(self, *manifests: Manifest) -> None:
        """kubectl apply."""
        text = yaml.safe_dump_all(manifests)
        self.kubectl("apply", "-f", "-", stdin=text)

    def items(self, kinds: str, selector: str = "") -> list[Manifest]:
        """All objects of some kinds."""
        found = self.kubectl("get", kinds, "-o", "json", *([f"-l{selector}"] if selector else []))
        listed: list[Manifest] = json.loads(found)["items"]
        return listed

    def status(self, name: str) -> Manifest:
        """Status of a job."""
        found = json.loads(self.kubectl("get", "mfj", name, "-o", "json"))
        status: Manifest = found.get("status", {})
        return status

    def pods(self, name: str) -> dict[str, str]:
        """Name -> uid of a job's pods."""
        found = self.items("pods", f"training.mfsdp.dev/job-name={name}")
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in found}

    def until(
        self, name: str, holds: Callable[[Manifest], bool], what: str, seconds: float = 180
    ) -> Manifest:
        """The status of a job once it holds. A job that fails meanwhile ends the wait."""

        def look() -> Manifest | None:
            status = self.status(name)
            if holds(status):
                return status
            assert status.get("phase") != "Failed", f"{name} failed: {describe(status)}"
            return None

        said = f"job {name} {what}"
        return wait_for(look, seconds, lambda: f"{said}: {describe(self.status(name))}")

    def until_phase(self, name: str, phase: str, seconds: float = 180) -> Manifest:
        """The status of a job once it is in a phase."""
        return self.until(name, lambda s: s.get("phase") == phase, f"to be {phase}", seconds)

    def until_saved(self, name: str, attempt: int = 1) -> int:
        """The step of the newest checkpoint, once an attempt trains and has one."""

        def holds(status: Manifest) -> bool:
            training = status.get("training", {})
            mine = status.get("attempt") == attempt and status["phase"] == "Running"
            return mine and bool(training.get("checkpointStep"))

        status = self.until(name, holds, f"to have a checkpoint in attempt {attempt}")
        step: int = status["training"]["checkpointStep"]
        return step

    def until_none(self, kinds: str, seconds: float = 120) -> None:
        """Wait until this namespace has none of these."""

        def look() -> bool | None:
            return None if self._own(kinds) else True

        wait_for(look, seconds, lambda: f"no {kinds} to be left: {self._own(kinds)}")

    def _own(self, kinds: str) -> list[str]:
        found = [(i["kind"], i["metadata"]["name"]) for i in self.items(kinds)]
        return [f"{kind} {name}" for kind, name in found if name != "kube-root-ca.crt"]

    def events(self, name: str) -> dict[str, str]:
        """Reason -> message of a job's Events."""
        about = f"involvedObject.kind=MegatronFSDPJob,involvedObject.name={name}"
        found = json.loads(self.kubectl("get", "events", f"--field-selector={about}", "-o", "json"))
        return {event["reason"]: event["message"] for event in found["items"]}


def describe(status: Manifest) -> str:
    """A status in a line or two, for a failed wait."""
    ready = next((c for c in status.get("conditions", ()) if c["type"] == "Ready"), {})
    shown = {k: status.get(k) for k in ("phase", "attempt", "workers", "training", "lastFailure")}
    return f"{ready.get('reason')}: {ready.get('message')}\n{json.dumps(shown)}"


def condition(status: Manifest, kind: str) -> Manifest:
    """A condition; empty where it is absent."""
    return next((c for c in status["conditions"] if c["type"] == kind), {})


def example(name: str) -> list[Manifest]:
    """The manifests of a file in examples/."""
    text = (ROOT / "examples" / name).read_text(encoding="utf-8")
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]
