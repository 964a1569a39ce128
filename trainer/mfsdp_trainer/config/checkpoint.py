"""Where a run saves itself, how often, and where the finished model goes."""

from enum import StrEnum

from pydantic import Field

from .base import ConfigModel, PathText


class ResumePolicy(StrEnum):
    """What a run does with checkpoints that it finds."""

    AUTO = "auto"
    NEVER = "never"


class CheckpointConfig(ConfigModel):
    """Sharded checkpoints (torch.distributed.checkpoint) and the exported model."""

    path: PathText = "/checkpoints"
    """Directory of the checkpoints, the same files from every node. With pvc it is the mount
    point."""
    every_steps: int = Field(default=0, ge=0, le=1_000_000_000)
    """Save every so many steps, and at the end; 0: at the end only."""
    keep: int = Field(default=2, ge=1, le=1000)
    """How many of the newest checkpoints are kept."""
    resume: ResumePolicy = ResumePolicy.AUTO
    """auto: go on from the newest complete checkpoint in path. never: refuse to start over an
    existing one."""
    export: bool = True
    """Write the finished model to path/export in the format that transformers' from_pretrained
    opens."""
