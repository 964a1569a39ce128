"""`status` of a MegatronFSDPJob. The operator alone writes it."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, WithJsonSchema

from mfsdp_trainer.config import ConfigModel, ResolvedSharding

type Timestamp = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]
"""RFC 3339, in UTC."""


class JobPhase(StrEnum):
    """One word for columns; conditions say more."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class AttemptState(StrEnum):
    """Where the current attempt stands. It decides what a missing pod means."""

    CREATING = "Creating"
    """Its pods are being made: a missing pod is yet to come."""
    ACTIVE = "Active"
    """All its pods were made: a missing pod has vanished."""
    ENDED = "Ended"
    """It is over. The next one starts once every pod of it is gone and nothing forbids it."""


class Condition(ConfigModel):
    """A Kubernetes condition (meta/v1)."""

    type: str = Field(max_length=316)
    """Ready, Reconciling, Stalled, Suspended, PodsReady, Running, Restarting, Complete or
    Failed."""
    status: Literal["True", "False", "Unknown"]
    """Whether the condition holds."""
    reason: str = Field(min_length=1, max_length=1024)
    """One word, for machines."""
    message: str = Field(default="", max_length=32768)
    """One sentence, for people."""
    last_transition_time: Timestamp
    """When status changed last."""
    observed_generation: int = Field(default=0, ge=0)
    """metadata.generation that this was computed for."""


class WorkersStatus(ConfigModel):
    """Pods of the current attempt."""

    desired: int = 0
    """Pods that the gang needs."""
    created: int = 0
    """Pods that exist."""
    ready: int = 0
    """Pods that are ready."""
    succeeded: int = 0
    """Pods whose trainer ended well."""
    failed: int = 0
    """Pods whose trainer failed."""
    summary: str = ""
    """ready/desired, for the printer column."""


class RestartCounts(ConfigModel):
    """Attempts started again, by cause."""

    failures: int = 0
    """After a failure of the program."""
    disruptions: int = 0
    """After an eviction, a lost node, a deleted pod."""
    total: int = 0
    """Both."""


class TrainingStatus(ConfigModel):
    """The trainer's progress as last polled. Numbers are strings, rounded: the API has no portable
    floats."""

    step: int = 0
    """Finished optimizer steps."""
    total_steps: int = 0
    """Optimizer steps of the run."""
    phase: str = ""
    """What the trainer is doing; Stopped when its attempt has ended early."""
    loss: str = ""
    """Mean loss per token of the last step."""
    eval_loss: str = ""
    """Mean loss per token on held-out text."""
    tokens_per_second: str = ""
    """Trained tokens a second, over all ranks."""
    mfu: str = ""
    """Model FLOPs utilisation in percent, where the peak of the GPUs is known."""
    eta_seconds: int | None = None
    """Estimated seconds until the last step."""
    resumed_from_step: int | None = None
    """Step of the checkpoint that the attempt went on from."""
    checkpoint_step: int | None = None
    """Step of the newest checkpoint."""
    updated_at: str = ""
    """When this was polled."""


class LastFailure(ConfigModel):
    """What ended the last attempt that did not end well."""

    attempt: int = 0
    """Which attempt."""
    disruption: bool = False
    """true: an eviction, a lost node or a deleted pod ended it, not the program."""
    reason: str = ""
    """One word."""
    message: str = ""
    """One line: the first error of the first rank that failed."""
    pod: str = ""
    """Which pod."""
    exit_code: int | None = None
    """Exit code of the trainer container."""
    time: str = ""
    """When it was seen."""


class JobStatus(ConfigModel):
    """Everything that the operator says about a job."""

    observed_generation: int = -1
    """metadata.generation that the status was computed for; -1 until the operator has seen the
    job."""
    phase: JobPhase | None = None
    """Pending, Starting, Running, Restarting, Suspended, Complete or Failed."""
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=32,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
    )
    """Ready, Reconciling, Stalled (kstatus), Suspended, PodsReady, Running, Restarting, Complete,
    Failed."""
    attempt: int = 0
    """Number of the current attempt; 0 before the first."""
    attempt_state: AttemptState | None = None
    """Creating, Active or Ended; absent before the first attempt."""
    next_attempt_time: Timestamp | None = None
    """The next attempt starts no earlier: back-off after a failure."""
    sharding: ResolvedSharding | None = None
    """Engine, strategy, world size and micro-batches in effect."""
    gpus: int = 0
    """GPUs of the whole gang."""
    workers: WorkersStatus = WorkersStatus()
    """Pods of the current attempt."""
    restarts: RestartCounts = RestartCounts()
    """Attempts started again, by cause."""
    training: TrainingStatus | None = None
    """Progress of the built-in trainer."""
    last_failure: LastFailure | None = None
    """Why the last failed attempt ended."""
    start_time: Timestamp | None = None
    """When the first attempt began."""
    completion_time: Timestamp | None = None
    """When the job ended."""
