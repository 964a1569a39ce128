"""Settings of the operator, from environment variables named `MFSDP_` and the field in capitals.

The chart sets them from its values; by hand, for instance:

    MFSDP_TRAINER_IMAGE=registry.example/mfsdp-trainer:0.1.0 mfsdp-operator
"""

import os
from collections.abc import Mapping
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

PREFIX = "MFSDP_"


class SettingsError(Exception):
    """An environment variable that is missing or wrong; the message has a line for each."""


class Settings(BaseModel):
    """Everything that an installation may choose. Times are seconds."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    trainer_image: str = Field(min_length=1)
    """Image of the built-in trainer. Required."""
    watch_namespaces: tuple[str, ...] = ()
    """Comma-separated namespaces to serve; empty: all of them."""
    workers: int = Field(default=32, ge=1, le=1024)
    """Jobs that are reconciled at the same time."""
    write_rate: float = Field(default=400.0, gt=0)
    """Writes a second to the API server, on average."""
    write_burst: int = Field(default=800, ge=1)
    """Writes that may come at once before the rate holds."""
    progress_interval: float = Field(default=30.0, ge=1)
    """Progress is written into a job's status no more often than this."""
    poll_interval: float = Field(default=2.0, ge=0.5)
    """How often a running trainer is asked for its progress."""
    restart_backoff: float = Field(default=2.0, ge=0)
    """Wait before the attempt after the first failure; it doubles with every further failure."""
    restart_backoff_max: float = Field(default=300.0, ge=0)
    """Longest wait between two attempts."""
    resync_interval: float = Field(default=420.0, ge=10)
    """How often all jobs are listed anew, to notice what the watch missed. Jittered."""
    http_port: int = Field(default=8080, ge=0, le=65_535)
    """Port of /livez and /readyz; 0: none."""
    log_format: str = Field(default="plain", pattern="^(plain|full|json)$")
    """plain, full (with times and levels) or json."""
    log_level: str = Field(default="info", pattern="^(debug|info|warning)$")
    """debug, info or warning."""

    @field_validator("watch_namespaces", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Self:
        """Read the settings. Raises SettingsError naming each wrong variable."""
        env = os.environ if env is None else env
        names = {name: PREFIX + name.upper() for name in cls.model_fields}
        given = {name: env[key] for name, key in names.items() if env.get(key)}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            lines = [
                f"{names[str(details['loc'][0])]}: {details['msg']}" for details in error.errors()
            ]
            raise SettingsError("\n".join(lines)) from error
