"""Where a run saves itself, how often, and where the finished model goes."""

from enum import StrEnum
from typing import Final

from pydantic import Field, model_validator

from .base import ConfigModel, PathText

BEST_OF_SOME: Final = (
    "checkpoint.keepBest chooses among the checkpoints of everySteps: set checkpoint.everySteps, "
    "or leave keepBest at 0"
)


class ResumePolicy(StrEnum):
    """What a run does with checkpoints that it finds."""

    AUTO = "auto"
    NEVER = "never"


class CheckpointConfig(ConfigModel):
    """Sharded checkpoints (torch.distributed.checkpoint) and the exported model."""

    path: PathText = "/checkpoints"
    """Directory of the checkpoints, the same files from every node; with pvc it is the mount point.
    Or an object store: s3://BUCKET/PREFIX, gs://... or az://..., with credentials and endpoint
    from the container's environment (AWS_*, GOOGLE_*, AZURE_*) or the pod's own identity."""
    every_steps: int = Field(default=0, ge=0, le=1_000_000_000)
    """Save every so many steps, and at the end; 0: at the end only."""
    keep: int = Field(default=2, ge=1, le=1000)
    """How many of the newest checkpoints are kept."""
    keep_best: int = Field(default=0, ge=0, le=1000)
    """How many more are kept for their loss on held-out text, the lowest first; path/best names the
    best. Above 0, every checkpoint of everySteps is evaluated before it is written."""
    asynchronous: bool = True
    """Write checkpoints while the training goes on: it stands still only while the state is copied,
    into host memory of the size of each rank's share. false: until they are written."""
    resume: ResumePolicy = ResumePolicy.AUTO
    """auto: go on from the newest complete checkpoint in path. never: refuse to start over an
    existing one."""
    warm_start: PathText | None = None
    """Start at step 0 with the weights alone of another run's checkpoint: a directory step-..., or
    the directory or URL that holds such, of which the newest is taken. Only where path holds no
    checkpoint of this run yet."""
    export: bool = True
    """Write the finished model to path/export in the format that transformers' from_pretrained
    opens."""

    @model_validator(mode="after")
    def _best_of_some(self) -> "CheckpointConfig":
        if self.keep_best and not self.every_steps:
            raise ValueError(BEST_OF_SOME)
        return self
