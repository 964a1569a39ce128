"""What `decide` is given and what it answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mfsdp_operator.api.status import JobStatus, TrainingStatus
from mfsdp_operator.objects import JobView, PodView

SETTLE_SECONDS = 2.0
"""After the first failed pod the others have this long to say why: the first one that is seen is
often only the echo of another."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings that decisions depend on. Times are seconds."""

    trainer_image: str
    progress_interval: float = 30.0
    restart_backoff: float = 2.0
    restart_backoff_max: float = 300.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server would not make an object; asked again not before `retry_at`."""

    reason: str
    message: str
    retry_at: float
    delay: float = 0.0
    """The wait that ends then; the next one is twice as long."""
    permanent: bool = False
    """Asked again it would say the same: the job cannot go on."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What the operator remembers between two looks at a job, and may forget at any time."""

    attempt: int = 0
    """The attempt that the rest is about."""
    failure_seen_at: float | None = None
    """When the first failed pod of the attempt was seen."""
    refusal: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """A look at a job and its children. `pods` are those that the job controls, of any attempt."""

    job: JobView
    pods: tuple[PodView, ...] = ()
    service_exists: bool = False
    training: TrainingStatus | None = None
    """The newest answer of the trainer, if there is one."""
    training_problem: str = ""
    """Why there is none."""
    memory: Memory = field(default_factory=Memory)
    fresh: bool = False
    """The job was read from the API server just now, not taken from the watch."""


@dataclass(frozen=True, slots=True)
class CreateService:
    """Make the headless service."""


@dataclass(frozen=True, slots=True)
class CreateConfigMap:
    """Make the pin, unless it exists."""

    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CreatePods:
    """Make the pods of these node ranks, from the pin."""

    attempt: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Tell a pod to end, within its grace period."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Announce:
    """An Event for `kubectl describe`."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


Action = CreateService | CreateConfigMap | CreatePods | DeletePod | Announce


@dataclass(frozen=True, slots=True)
class Decision:
    """The status to write, then the actions to take, in order; none if the write is refused."""

    status: JobStatus
    actions: tuple[Action, ...] = ()
    memory: Memory = field(default_factory=Memory)
    look_again_at: float | None = None
    """Unix seconds; something is due then even if nothing happens before."""
    refresh: bool = False
    """The view contradicts itself: read the job and decide anew. Nothing else is set."""
