"""Where this node stands in the gang: ranks, addresses and limits, from flags and environment."""

import os
import socket
from dataclasses import dataclass, field
from typing import Final

from mfsdp_trainer.config import HangConfig
from mfsdp_trainer.contract import Env
from mfsdp_trainer.errors import ConfigError

_HOUR: Final = 3600.0
_MAX_PORT: Final = 65_535
_YEAR: Final = 365 * 24 * _HOUR


@dataclass(frozen=True)
class Limits:
    """How long things may take, in seconds."""

    hang: HangConfig = field(default_factory=HangConfig)
    """Without a sign of life, by phase."""
    rendezvous: float = 600.0
    stop: float = 105.0
    """From SIGTERM until workers that did not finish their checkpoint are killed. Below the pod's
    terminationGracePeriodSeconds (120), or the kubelet kills first and nobody says why."""


@dataclass(frozen=True)
class Gang:
    """This node's place among `nodes` nodes of `procs` processes each."""

    nodes: int
    node_rank: int
    procs: int
    master_addr: str
    master_port: int
    job_uid: str = ""
    attempt: int = 0

    @property
    def run_id(self) -> str:
        """Name of this attempt, as torchrun's TORCHELASTIC_RUN_ID."""
        return f"{self.job_uid or 'local'}-{self.attempt}"

    @property
    def ranks(self) -> range:
        """Global ranks of this node's workers."""
        return range(self.node_rank * self.procs, (self.node_rank + 1) * self.procs)


def env_seconds(name: str, default: float) -> float:
    """A time from the environment. Raises ConfigError naming the variable."""
    text = os.environ.get(name, "")
    try:
        seconds = float(text) if text else default
    except ValueError:
        raise ConfigError(f"environment variable {name} must be a number; got {text!r}") from None
    if not 0 <= seconds <= _YEAR:  # also false for NaN
        raise ConfigError(
            f"environment variable {name} must be seconds from 0 to {_YEAR:.0f}; got {text}"
        )
    return seconds


def env_int(name: str) -> int | None:
    """A whole number from the environment, if it is set. Raises ConfigError."""
    text = os.environ.get(name, "")
    try:
        return int(text) if text else None
    except ValueError:
        raise ConfigError(
            f"environment variable {name} must be a whole number; got {text!r}"
        ) from None


def find_limits(hang: HangConfig) -> Limits:
    """Limits with those that the environment sets. Raises ConfigError."""
    return Limits(
        hang=hang,
        rendezvous=env_seconds(Env.RENDEZVOUS_TIMEOUT, Limits.rendezvous),
        stop=env_seconds(Env.STOP_TIMEOUT, Limits.stop),
    )


def find_gang(
    *,
    nodes: int,
    procs: int,
    node_rank: int | None,
    master_addr: str | None,
    master_port: int | None,
) -> Gang:
    """Place this node, from flags where they are given and else from the environment.

    Raises ConfigError naming the flag that is missing or wrong.
    """
    rank = node_rank if node_rank is not None else env_int("NODE_RANK")
    addr = master_addr or os.environ.get("MASTER_ADDR") or None
    port = master_port if master_port is not None else env_int("MASTER_PORT")
    if nodes > 1 and (rank is None or addr is None):
        raise ConfigError(
            f"{nodes} nodes need --node_rank (0 to {nodes - 1}) and --master_addr (the host of "
            "node rank 0) on each of them; --nnodes 1 runs all on this machine"
        )
    rank = rank or 0
    if not 0 <= rank < nodes:
        raise ConfigError(f"--node_rank must be from 0 to {nodes - 1}; got {rank}")
    if port is not None and not 1 <= port <= _MAX_PORT:
        raise ConfigError(f"--master_port (MASTER_PORT) must be from 1 to {_MAX_PORT}; got {port}")
    return Gang(
        nodes=nodes,
        node_rank=rank,
        procs=procs,
        master_addr=addr or "127.0.0.1",
        master_port=port or (29500 if nodes > 1 else _free_port()),
        job_uid=os.environ.get(Env.JOB_UID, "")[:64],
        attempt=env_int(Env.ATTEMPT) or 0,
    )


def _free_port() -> int:
    """A port for one machine alone: several runs by hand must not clash on the usual one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
