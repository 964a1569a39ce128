"""What a run prints and serves."""

from pydantic import Field

from .base import ConfigModel


class LoggingConfig(ConfigModel):
    """Log lines and the HTTP endpoint of the trainer."""

    every_steps: int = Field(default=1, ge=1, le=1_000_000)
    """Print one line and update /progress and /metrics every so many steps."""
    port: int = Field(default=9400, ge=1024, le=65_535)
    """Port of /progress, /metrics and /healthz in the pod."""
