"""What the operator keeps of an object: the few fields that a decision needs.

A pod from the API server is 5 to 20 KB of JSON; a `PodView` is a few hundred bytes. Everything in
these views was written by others: labels and owner references decide whose an object is, and
`controller_uid` is checked against the job's before an object is used.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mfsdp_trainer.config import LoggingConfig
from mfsdp_trainer.contract import CONTAINER_NAME

from .api.job import JobMeta, parse_meta, parse_status
from .api.names import LABEL_ATTEMPT, LABEL_JOB_NAME, LABEL_NODE_RANK
from .api.status import JobStatus
from .api.template import has_own_program
from .clock import from_rfc3339

Raw = dict[str, Any]


@dataclass(frozen=True, slots=True)
class JobView:
    """A job: its spec as it is (it may be wrong), and our own status, typed."""

    meta: JobMeta
    spec: Mapping[str, Any]
    status: JobStatus

    @property
    def suspended(self) -> bool:
        """Whether the user wants no pods."""
        return self.spec.get("suspend") is True

    @property
    def built_in_trainer(self) -> bool:
        """Whether the pods run our trainer, whose word is believed."""
        template = self.spec.get("template")
        return not (isinstance(template, Mapping) and has_own_program(template))

    @property
    def progress_port(self) -> int:
        """Where the built-in trainer answers."""
        logging = self.spec.get("logging")
        given = logging.get("port") if isinstance(logging, Mapping) else None
        return given if isinstance(given, int) else LoggingConfig().port


@dataclass(frozen=True, slots=True)
class Terminated:
    """How the trainer container of a pod ended."""

    exit_code: int
    signal: int
    reason: str
    message: str
    finished_at: float


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod of a gang. Empty strings stand for what the API server has not said."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    controller_uid: str
    job_name: str
    attempt: int
    rank: int
    created: float | None
    """Unix seconds."""
    deleting: bool
    phase: str
    ready: bool
    node: str
    ip: str
    reason: str
    message: str
    disruption: str
    """Reason of a true DisruptionTarget condition."""
    unschedulable: str
    """Why the scheduler found no node."""
    waiting_reason: str
    """Why a container does not start, for instance ImagePullBackOff."""
    waiting_message: str
    prepared: bool | None
    """Volumes and network are there, so that containers may start. None: not said."""
    initializing: str
    """The init container that runs now."""
    running: bool
    """The trainer container runs."""
    terminated: Terminated | None


@dataclass(frozen=True, slots=True)
class ServiceView:
    """A service that carries our labels."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    controller_uid: str


def job_view(manifest: Mapping[str, Any]) -> JobView:
    """The view of a job from the API server."""
    spec = manifest.get("spec")
    return JobView(
        meta=parse_meta(manifest),
        spec=spec if isinstance(spec, Mapping) else {},
        status=parse_status(manifest.get("status")),
    )


def controller_uid(meta: Mapping[str, Any]) -> str:
    """The uid of the object's controlling owner; empty without one."""
    for owner in meta.get("ownerReferences") or ():
        if owner.get("controller"):
            return str(owner.get("uid") or "")
    return ""


def service_view(raw: Raw) -> ServiceView:
    """The view of a service."""
    meta = raw["metadata"]
    return ServiceView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
        controller_uid=controller_uid(meta),
    )


def pod_view(raw: Raw) -> PodView | None:
    """The view of a pod; None for one whose labels are not those that we set."""
    meta, status = raw["metadata"], raw.get("status") or {}
    labels = meta.get("labels") or {}
    attempt, rank = _number(labels.get(LABEL_ATTEMPT)), _number(labels.get(LABEL_NODE_RANK))
    if attempt is None or rank is None:
        return None
    conditions = {c.get("type"): c for c in status.get("conditions") or ()}
    state = _trainer_state(status)
    waiting = _first_waiting(status)
    return PodView(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
        controller_uid=controller_uid(meta),
        job_name=labels.get(LABEL_JOB_NAME, ""),
        attempt=attempt,
        rank=rank,
        created=from_rfc3339(meta.get("creationTimestamp")),
        deleting=bool(meta.get("deletionTimestamp")),
        phase=status.get("phase", ""),
        ready=conditions.get("Ready", {}).get("status") == "True",
        node=(raw.get("spec") or {}).get("nodeName", ""),
        ip=status.get("podIP", ""),
        reason=status.get("reason", ""),
        message=status.get("message", ""),
        disruption=_disruption(conditions),
        unschedulable=_unschedulable(conditions),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        prepared=_prepared(conditions),
        initializing=_initializing(status),
        running="running" in state,
        terminated=_terminated(state),
    )


def _number(label: str | None) -> int | None:
    return int(label) if label is not None and label.isascii() and label.isdigit() else None


def _disruption(conditions: Mapping[str, Raw]) -> str:
    condition = conditions.get("DisruptionTarget", {})
    if condition.get("status") != "True":
        return ""
    return str(condition.get("reason") or "DisruptionTarget")


def _unschedulable(conditions: Mapping[str, Raw]) -> str:
    condition = conditions.get("PodScheduled", {})
    if condition.get("status") != "False":
        return ""
    return str(condition.get("message") or condition.get("reason") or "")


def _prepared(conditions: Mapping[str, Raw]) -> bool | None:
    said = conditions.get("PodReadyToStartContainers", {}).get("status")
    return None if said is None else said == "True"


def _initializing(status: Raw) -> str:
    for container in status.get("initContainerStatuses") or ():
        if "running" in (container.get("state") or {}):
            return str(container.get("name") or "")
    return ""


def _trainer_state(status: Raw) -> Raw:
    for container in status.get("containerStatuses") or ():
        if container.get("name") == CONTAINER_NAME:
            return container.get("state") or {}
    return {}


def _first_waiting(status: Raw) -> Raw:
    """Why the first container that waits does so; starting up in the normal way is no reason."""
    containers: Iterable[Raw] = (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    )
    for container in containers:
        waiting = (container.get("state") or {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return dict(waiting)
    return {}


def _terminated(state: Raw) -> Terminated | None:
    ended = state.get("terminated")
    if not ended:
        return None
    return Terminated(
        exit_code=int(ended.get("exitCode", 0)),
        signal=int(ended.get("signal") or 0),
        reason=str(ended.get("reason") or ""),
        message=str(ended.get("message") or ""),
        finished_at=from_rfc3339(ended.get("finishedAt")) or 0.0,
    )
