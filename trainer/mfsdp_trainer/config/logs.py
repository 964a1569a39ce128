"""What a run prints, serves, and writes for machines."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from .base import ConfigModel, PathText

type Name = Annotated[str, Field(min_length=1, max_length=256)]

PROFILE_END: Final = "logging.profile: startStep + steps - 1 must not exceed training.steps"
OFFLINE_BESIDE: Final = (
    "logging.wandb.mode offline writes beside the checkpoints, and checkpoint.path is an object "
    "store: use online, or a directory"
)


class WandbMode(StrEnum):
    """Whether Weights & Biases is spoken to while the run goes on."""

    ONLINE = "online"
    OFFLINE = "offline"


class WandbConfig(ConfigModel):
    """Weights & Biases. The image needs the package wandb: docs/jobs.md says how."""

    project: Name
    """Project there."""
    entity: Name | None = None
    """User or team there; unset: the API key's own."""
    name: Name | None = None
    """Name of the run there; unset: the job's name."""
    mode: WandbMode = WandbMode.ONLINE
    """online needs WANDB_API_KEY in the trainer container (template, from a Secret). offline
    writes checkpoint.path/wandb, for `wandb sync`."""


class MlflowConfig(ConfigModel):
    """MLflow. The image needs the package mlflow: docs/jobs.md says how."""

    tracking_uri: Name
    """Tracking server, such as http://mlflow:5000. Credentials come from MLFLOW_TRACKING_USERNAME
    and
    MLFLOW_TRACKING_PASSWORD in the trainer container (template, from a Secret)."""
    experiment: Name
    """Experiment there; made if it does not exist."""
    name: Name | None = None
    """Name of the run there; unset: the job's name."""


class ProfileConfig(ConfigModel):
    """A trace of some steps by torch's profiler, and on a GPU a snapshot of its memory, of rank 0,
    in checkpoint.path/profile. At any time: kubectl exec POD -- mfsdp-train profile."""

    start_step: int = Field(ge=1, le=1_000_000_000)
    """First step to trace; the first ones of an attempt are slower than those to come."""
    steps: int = Field(default=3, ge=1, le=100)
    """How many steps. Nothing is written by an attempt that goes on behind startStep, or ends
    before the last of them."""

    @property
    def last_step(self) -> int:
        """Last step to trace."""
        return self.start_step + self.steps - 1


class LoggingConfig(ConfigModel):
    """Log lines, the HTTP endpoint, and where the numbers go beside them."""

    every_steps: int = Field(default=1, ge=1, le=1_000_000)
    """Print one line and update /progress and /metrics every so many steps."""
    port: int = Field(default=9400, ge=1024, le=65_535)
    """Port of /progress, /metrics and /healthz in the pod."""
    peak_tflops: float | None = Field(default=None, gt=0, le=1_000_000)
    """Dense bf16 TFLOP/s of one GPU, for the MFU; unset: by the GPU's name, and no MFU where that
    is not known. Without effect where gpusPerNode is 0: there is no MFU of a CPU."""
    json_lines: PathText | None = None
    """File that gets one JSON object a line for each logging interval, evaluation and checkpoint,
    for the start and for the end. Attempts of a job append to it, each line with its attempt."""
    tensorboard: PathText | None = None
    """Directory of event files for TensorBoard."""
    wandb: WandbConfig | None = None
    """Send the numbers to Weights & Biases, whose package the image must have."""
    mlflow: MlflowConfig | None = None
    """Send the numbers to an MLflow tracking server; the image must have its package."""
    profile: ProfileConfig | None = None
    """Trace some steps."""
