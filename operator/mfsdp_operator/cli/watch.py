"""`mfsdp watch`: follow a job on a cluster until it ends.

The job's status says what the operator knows. Where the user may, rank 0's own /progress is read
through the API server's proxy to the pod, which is newer than the status.
"""

import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kubernetes.aio import config
from pydantic import ValidationError

from mfsdp_operator.api.job import JobMeta, parse_meta, parse_status
from mfsdp_operator.api.names import KIND, pod_name
from mfsdp_operator.api.status import JobPhase, JobStatus
from mfsdp_operator.kube import Kube, KubeError, NotFoundError
from mfsdp_trainer.contract import Progress

from .display import Display, open_display
from .errors import UserError
from .snapshot import Snapshot, duration, line, printable
from .status_view import ending, seconds_taken, snapshot_of

_POLL_SECONDS: Final = 1.0
_PROXY_SECONDS: Final = 3.0
_UNREACHABLE_SECONDS: Final = 300.0
_UNSEEN_SECONDS: Final = 20.0
_IN_POD_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_ENDED: Final = (JobPhase.COMPLETE, JobPhase.FAILED)


def watch(name: str, namespace: str | None) -> int:
    """Follow a job; 0 if it completes, 1 if it fails or is deleted."""
    try:
        return asyncio.run(_watch(name, namespace))
    except config.ConfigException as error:
        raise UserError(f"no cluster to ask: {error}; set KUBECONFIG") from None
    except KubeError as error:
        raise UserError(f"the API server says: {printable(error)}") from None


async def _watch(name: str, namespace: str | None) -> int:
    kube = await Kube.connect()
    try:
        where = namespace or await _default_namespace()
        return await Follower(kube, where, name).follow(open_display())
    finally:
        await kube.close()


async def _default_namespace() -> str:
    if _IN_POD_NAMESPACE.is_file():
        return _IN_POD_NAMESPACE.read_text(encoding="utf-8").strip()
    _, current = config.list_kube_config_contexts()  # type: ignore[no-untyped-call]
    return str(current["context"].get("namespace") or "default")


@dataclass
class Look:
    """What one look at the job found."""

    meta: JobMeta
    status: JobStatus
    spec: dict[str, Any]


class Follower:
    """Follows one job; use once."""

    def __init__(self, kube: Kube, namespace: str, name: str) -> None:
        self._kube = kube
        self._namespace = namespace
        self._name = name
        self._uid = ""
        self._may_proxy = True
        self._lost_since: float | None = None
        self._last: Look | None = None

    async def follow(self, display: Display) -> int:
        """Show the job until it ends; the exit code."""
        started = time.monotonic()
        with display:
            while True:
                look = await self._look()
                if look is None:
                    break
                shown = await self._shown(look, time.monotonic() - started)
                display.show(shown)
                if look.status.phase in _ENDED:
                    break
                await asyncio.sleep(_POLL_SECONDS)
        if look is None:
            print(f"{self._name}: deleted while it was watched", file=sys.stderr)
            return 1
        return self._told(look, shown)

    async def _look(self) -> Look | None:
        """The job now, or as last seen while the API server is away; None once it is deleted."""
        try:
            job = await self._kube.get_job(self._namespace, self._name)
        except NotFoundError:
            if self._last is not None:
                return None
            raise UserError(
                f"no {KIND} {self._name} in namespace {self._namespace}: kubectl get mfj -A"
            ) from None
        except KubeError as error:
            return self._away(error)
        self._lost_since = None
        look = Look(parse_meta(job), parse_status(job.get("status")), job.get("spec") or {})
        if self._last is not None and look.meta.uid != self._last.meta.uid:
            return None  # another job of the same name
        self._last = look
        return look

    def _away(self, error: KubeError) -> Look:
        if self._last is None or error.status not in (0, 429, 500, 502, 503, 504):
            raise error
        now = time.monotonic()
        self._lost_since = self._lost_since or now
        if now - self._lost_since > _UNREACHABLE_SECONDS:
            raise UserError(
                f"the API server has not answered for {duration(_UNREACHABLE_SECONDS)}; the job may"
                f" well go on: {printable(error)}"
            )
        return self._last

    async def _shown(self, look: Look, watched: float) -> Snapshot:
        message = ""
        if self._lost_since is not None:
            message = "the API server does not answer; trying again"
        elif look.status.observed_generation < 0 and watched > _UNSEEN_SECONDS:
            message = "no operator has looked at this job yet: is it installed? helm list -A"
        return snapshot_of(self._name, look.status, await self._progress(look), message)

    async def _progress(self, look: Look) -> Progress | None:
        """What rank 0 says itself, where we may ask it and it answers for this attempt."""
        status = look.status
        if not self._may_proxy or status.phase is not JobPhase.RUNNING or status.training is None:
            return None
        pod = pod_name(self._name, status.attempt, 0)
        port = (look.spec.get("logging") or {}).get("port", 9400)
        try:
            asked = self._kube.pod_proxy(self._namespace, pod, port, "progress")
            found = Progress.model_validate(
                await asyncio.wait_for(asked, _PROXY_SECONDS), extra="ignore"
            )
        except KubeError as error:
            self._may_proxy = error.status != 403
            return None
        except (TimeoutError, ValidationError):
            return None
        same = (found.job_uid, found.attempt) == (look.meta.uid, status.attempt)
        return found if same else None

    def _told(self, look: Look, shown: Snapshot) -> int:
        if look.status.phase is JobPhase.COMPLETE:
            took = seconds_taken(look.status)
            print(line(shown) + (f"  in {duration(took)}" if took is not None else ""), flush=True)
            return 0
        for text in ending(self._namespace, look.status):
            print(f"{self._name}: {text}", file=sys.stderr)
        return 1
