"""Carries out what was decided. Every action may be repeated: a name that is taken is looked at,
and an object counts as made only if this job controls it."""

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, assert_never

from .api.job import JobMeta
from .api.names import API_VERSION, KIND, MANAGED_BY, config_map_name, pod_name, service_name
from .api.reasons import JobReason
from .builders.config_map import Pin, PinError, read_pin
from .builders.meta import job_labels
from .builders.pod import stamp
from .builders.service import build_service
from .clock import to_rfc3339
from .informer import Store
from .kube import AlreadyExistsError, ConflictError, Kube, KubeError, NotFoundError
from .objects import PodView, ServiceView, controller_uid, pod_view, service_view
from .reconcile.state import (
    Action,
    Announce,
    CreateConfigMap,
    CreatePods,
    CreateService,
    DeletePod,
)

_log = logging.getLogger(__name__)
_FIRST_BATCH = 8
"""Pods that are made at once; each batch is twice the one before. One refusal ends it."""
_OUT_OF_REACH = frozenset({0, 429, 502, 503, 504})


class Refused(Exception):  # noqa: N818 - it is an answer, not a fault
    """The API server would not make an object, and said why."""

    def __init__(self, reason: str, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.permanent = permanent
        """Asked again it would say the same."""


class Actor:
    """Acts on the API server, and shows the stores at once what came of it."""

    def __init__(self, kube: Kube, pods: Store[PodView], services: Store[ServiceView]) -> None:
        self._kube = kube
        self._pods = pods
        self._services = services
        self._pins: dict[str, Pin] = {}

    async def carry_out(self, job: JobMeta, actions: Sequence[Action]) -> None:
        """Do all of it, in order. Raises Refused, or KubeError when the server is out of reach."""
        deletions = [action for action in actions if isinstance(action, DeletePod)]
        await _together([partial(self._delete, job, deletion) for deletion in deletions])
        try:
            for action in actions:
                await self._act(job, action)
        finally:
            self._pins.pop(job.uid, None)

    async def _act(self, job: JobMeta, action: Action) -> None:
        match action:
            case Announce():
                await self._announce(job, action)
            case CreateConfigMap():
                await self._create_pin(job, action.manifest)
            case CreateService():
                await self._create_service(job)
            case CreatePods():
                await self._create_pods(job, action)
            case DeletePod():
                pass
            case _:
                assert_never(action)

    async def _delete(self, job: JobMeta, action: DeletePod) -> None:
        try:
            answer = await self._kube.delete_pod(job.namespace, action.name, action.uid)
        except (NotFoundError, ConflictError):
            answer = {}  # gone, or another pod has the name by now
        if answer.get("kind") == "Pod" and (view := pod_view(answer)) is not None:
            self._pods.put(view)
        else:
            self._pods.forget(action.uid)

    async def _create_pin(self, job: JobMeta, manifest: Mapping[str, Any]) -> None:
        try:
            made = await _asked(self._kube.create_config_map(manifest), "config map")
        except AlreadyExistsError:
            return
        self._pins[job.uid] = read_pin(made)

    async def _pin(self, job: JobMeta) -> Pin:
        """What the job was pinned to. The config map of another job of that name is not ours."""
        pin = self._pins.pop(job.uid, None)
        if pin is not None:
            return pin
        name = config_map_name(job.name)
        try:
            found = await self._kube.get_config_map(job.namespace, name)
        except NotFoundError as error:
            raise Refused(JobReason.CONFIG_MAP_MISSING, f"config map {name} is gone") from error
        _check_owner(job, found)
        try:
            return read_pin(found)
        except PinError as error:
            raise Refused(JobReason.CONFIG_MAP_UNUSABLE, str(error)) from error

    async def _create_service(self, job: JobMeta) -> None:
        try:
            made = await _asked(self._kube.create_service(build_service(job)), "service")
        except AlreadyExistsError:
            made = await self._kube.get_service(job.namespace, service_name(job.name))
            _check_owner(job, made)
        self._services.put(service_view(made))

    async def _create_pods(self, job: JobMeta, action: CreatePods) -> None:
        """In growing batches: a quota that is used up is asked eight times, not a thousand."""
        pin = await self._pin(job)
        ranks, size = list(action.ranks), _FIRST_BATCH
        while ranks:
            batch, ranks = ranks[:size], ranks[size:]
            await _together(
                [partial(self._create_pod, job, pin, action.attempt, rank) for rank in batch]
            )
            size *= 2

    async def _create_pod(self, job: JobMeta, pin: Pin, attempt: int, rank: int) -> None:
        manifest = stamp(pin.pod_template, job, attempt, rank)
        try:
            made = await _asked(self._kube.create_pod(manifest), "pod")
        except AlreadyExistsError:
            made = await self._kube.get_pod(job.namespace, pod_name(job.name, attempt, rank))
            _check_owner(job, made)
        view = pod_view(made)
        if view is None or (view.attempt, view.rank) != (attempt, rank):
            name = manifest["metadata"]["name"]
            raise Refused(
                JobReason.POD_CHANGED, f"pod {name} lacks the labels of its rank: delete it"
            )
        self._pods.put(view)

    async def _announce(self, job: JobMeta, action: Announce) -> None:
        """Post an Event. It is news, not state: when it cannot be posted the log has to do."""
        _log.info("%s/%s: %s: %s", job.namespace, job.name, action.reason, action.message)
        try:
            await self._kube.create_event(build_event(job, action, time.time()))
        except AlreadyExistsError:
            return
        except KubeError as error:
            _log.warning("%s/%s: event %s: %s", job.namespace, job.name, action.reason, error)


def build_event(job: JobMeta, action: Announce, now: float) -> dict[str, Any]:
    """An Event about a job. The same news twice has the same name, and the second is refused."""
    text = f"{job.uid}/{action.reason}/{action.message}"
    when = to_rfc3339(now)
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{job.name}.{hashlib.sha256(text.encode()).hexdigest()[:16]}",
            "namespace": job.namespace,
            "labels": job_labels(job),
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "namespace": job.namespace,
            "name": job.name,
            "uid": job.uid,
        },
        "type": action.type,
        "reason": action.reason,
        "message": action.message[:1024],
        "source": {"component": MANAGED_BY},
        "firstTimestamp": when,
        "lastTimestamp": when,
        "count": 1,
    }


async def _together(calls: Sequence[Callable[[], Awaitable[None]]]) -> None:
    """Run all calls to their end, then raise the first error, if any."""
    results = await asyncio.gather(*(call() for call in calls), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result


async def _asked(request: Awaitable[dict[str, Any]], what: str) -> dict[str, Any]:
    """The answer to a request to make something. A refusal that the user can act on is Refused."""
    try:
        return await request
    except AlreadyExistsError:
        raise
    except KubeError as error:
        if error.status in _OUT_OF_REACH or error.status == 409:
            raise
        raise refusal(error, what) from error


def refusal(error: KubeError, what: str) -> Refused:
    """The answer to the user. Template and pin never change: an invalid pod stays invalid."""
    reason = _reason(error)
    message = f"the API server refused a {what}: {error}"
    if reason == JobReason.CREATE_INVALID and what == "pod":
        message = f"{message}; fix spec.template and create the job again"
        return Refused(reason, message, permanent=True)
    return Refused(reason, message)


def _reason(error: KubeError) -> str:
    if error.status == 403 and "exceeded quota" in error.message:
        return JobReason.QUOTA_EXCEEDED
    if "admission webhook" in error.message or "failed calling webhook" in error.message:
        return JobReason.WEBHOOK_REFUSED
    if "ValidatingAdmissionPolicy" in error.message:
        return JobReason.POLICY_REFUSED  # a 422 as well, but policies can be changed
    if error.status == 400 and "cannot be handled as a" in error.message:
        return JobReason.CREATE_INVALID  # a field that is unknown, or of the wrong type
    return {403: JobReason.CREATE_FORBIDDEN, 422: JobReason.CREATE_INVALID}.get(
        error.status, JobReason.CREATE_REFUSED
    )


def _check_owner(job: JobMeta, found: Mapping[str, Any]) -> None:
    """Names can be taken by others: use nothing that this very job does not control."""
    if controller_uid(found["metadata"]) != job.uid:
        name, kind = found["metadata"]["name"], found.get("kind", "object")
        raise Refused(
            JobReason.NAME_TAKEN,
            f"{kind} {name} exists and is not this job's: delete it, or rename the job",
        )
