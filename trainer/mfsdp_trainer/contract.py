"""What the operator and the trainer promise each other. Imports no torch: both sides use it.

* Environment: the names below are set on the `trainer` container.
* Exit codes: `mfsdp-train` ends with a code of `ExitCode`.
* Termination message: `Outcome` as JSON of at most `OUTCOME_MAX_BYTES`.
* `GET /progress` on the pod of node rank 0: `Progress` as JSON.
"""

from enum import IntEnum, StrEnum
from typing import Final, Literal

from pydantic import Field

from .config.base import ConfigModel

OUTCOME_MAX_BYTES: Final = 4096
PROGRESS_MAX_BYTES: Final = 65_536
CONTAINER_NAME: Final = "trainer"
CONFIG_MOUNT: Final = "/etc/mfsdp"
CONFIG_FILE: Final = "/etc/mfsdp/config.yaml"


class Env(StrEnum):
    """Environment variables that the operator sets and `mfsdp-train` reads.

    Beside them the operator sets MASTER_ADDR, MASTER_PORT, NNODES, NODE_RANK, NPROC_PER_NODE and
    torchrun's
    PET_* forms of the same, for programs other than ours; and for these alone the job's sharding
    (`OwnProgramEnv`).
    """

    CONFIG = "MFSDP_CONFIG"
    JOB_NAME = "MFSDP_JOB_NAME"
    JOB_UID = "MFSDP_JOB_UID"
    ATTEMPT = "MFSDP_ATTEMPT"
    RENDEZVOUS_TIMEOUT = "MFSDP_RENDEZVOUS_TIMEOUT"
    TERMINATION_LOG = "MFSDP_TERMINATION_LOG"
    STOP_TIMEOUT = "MFSDP_STOP_TIMEOUT"


class OwnProgramEnv(StrEnum):
    """What a program of the user's own is told of the job's sharding fields."""

    ENGINE = "MFSDP_ENGINE"
    STRATEGY = "MFSDP_SHARDING_STRATEGY"
    REPLICAS = "MFSDP_DATA_PARALLEL_REPLICAS"
    CHECKPOINT_DIR = "MFSDP_CHECKPOINT_DIR"
    FSDP_ARGS = "MFSDP_FSDP_ARGS"
    """The same as command line of Megatron-SWIFT; empty without an engine."""


class ExitCode(IntEnum):
    """Why `mfsdp-train` ended. 80 and up: clear of the shell's, Python's and signals' codes."""

    DONE = 0
    CONFIG_ERROR = 80
    DATA_ERROR = 81
    NON_FINITE_LOSS = 82
    OUT_OF_MEMORY = 83
    COLLECTIVE_TIMEOUT = 84
    HANG = 85
    PREEMPTED = 86
    CRASH = 87
    RENDEZVOUS_FAILED = 88
    CHECKPOINT_ERROR = 89


class Reason(StrEnum):
    """The same, in the words of `status` and conditions."""

    DONE = "Done"
    CONFIG_ERROR = "ConfigError"
    DATA_ERROR = "DataError"
    NON_FINITE_LOSS = "NonFiniteLoss"
    OUT_OF_MEMORY = "OutOfMemory"
    COLLECTIVE_TIMEOUT = "CollectiveTimeout"
    HANG = "Hang"
    PREEMPTED = "Preempted"
    CRASH = "Crash"
    RENDEZVOUS_FAILED = "RendezvousFailed"
    CHECKPOINT_ERROR = "CheckpointError"

    @property
    def exit_code(self) -> ExitCode:
        """The exit code that goes with the reason."""
        return ExitCode[self.name]


PERMANENT_REASONS: Final = frozenset(
    {Reason.CONFIG_ERROR, Reason.DATA_ERROR, Reason.NON_FINITE_LOSS}
)
"""Reasons that another attempt would meet again: never retried."""


class Outcome(ConfigModel):
    """Why a pod's trainer ended: the termination message."""

    tag: Literal["mfsdp.dev/outcome"] = "mfsdp.dev/outcome"
    """Marks the message as ours: any other termination message is not trusted."""
    reason: Reason
    """Why it ended."""
    message: str = Field(default="", max_length=2048)
    """One line for a person: the first error of the first rank that failed, and the fix where one
    is known."""
    step: int | None = None
    """Last finished optimizer step, if training had begun."""
    rank: int | None = None
    """Global rank that failed first, if one is known."""
    checkpoint_step: int | None = None
    """Step of the newest published checkpoint, from the pod of rank 0."""


class Phase(StrEnum):
    """What a run is doing now."""

    STARTING = "Starting"
    RENDEZVOUS = "Rendezvous"
    LOADING = "Loading"
    TRAINING = "Training"
    EVALUATING = "Evaluating"
    SAVING = "Saving"
    EXPORTING = "Exporting"
    DONE = "Done"


class Progress(ConfigModel):
    """Where a run stands: what /progress answers. Times are Unix seconds; numbers are finite or
    absent."""

    job_uid: str = Field(default="", max_length=64)
    """Echo of MFSDP_JOB_UID: a recycled pod address must not answer for another job."""
    attempt: int = 0
    """Echo of MFSDP_ATTEMPT."""
    phase: Phase = Phase.STARTING
    """What the run is doing now."""
    step: int = 0
    """Finished optimizer steps."""
    total_steps: int = 0
    """Optimizer steps of the whole run."""
    loss: float | None = None
    """Mean loss per token of the last step, over all ranks."""
    eval_loss: float | None = None
    """Mean loss per token on held-out text at the last evaluation."""
    grad_norm: float | None = None
    """Global gradient norm of the last step, before clipping."""
    learning_rate: float | None = None
    """Learning rate of the last step."""
    tokens_per_second: float | None = None
    """Trained tokens a second over all ranks, over the last logging interval."""
    tokens_per_second_per_rank: float | None = None
    """The same of one rank: of a GPU, or of a process on the CPU."""
    mfu: float | None = None
    """Model FLOPs utilisation, from 0 to 1; absent where the device's peak is not known."""
    step_seconds: float | None = None
    """Mean seconds of a step over the last logging interval."""
    tokens: int = 0
    """Tokens that this attempt trained on, over all ranks."""
    memory_bytes: int | None = None
    """Memory that rank 0 holds: of its GPU, or of the process without one."""
    peak_memory_bytes: int | None = None
    """The most that it has held."""
    eta_seconds: float | None = None
    """Estimated seconds until the last step."""
    checkpoint_step: int | None = None
    """Step of the newest published checkpoint."""
    bad_records: int | None = None
    """Lines and records of the data that were left out, see data.maxBadRecords."""
    checkpoint_seconds: float | None = None
    """Seconds that the newest checkpoint held training up."""
    part_seconds: dict[str, float] = {}
    """Seconds of each part of the run so far, as rank 0 saw it (see `timeline.Part`)."""
    resumed_from_step: int | None = None
    """Step of the checkpoint that this attempt went on from."""
    updated_at: float = 0.0
    """When the numbers were taken."""
