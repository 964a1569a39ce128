"""What a run is configured by: one pydantic model a concern, composed into `TrainerConfig`.

This package imports no torch. The operator composes the same models into the custom resource, so
`kubectl explain`, the CRD's validation and `mfsdp-train --config` can never disagree.
"""

from .base import ConfigModel
from .checkpoint import CheckpointConfig
from .data import DataConfig, DataSource, TokenizerConfig
from .hang import HangConfig
from .logs import LoggingConfig
from .model import ModelConfig
from .performance import PerformanceConfig
from .run import TrainerConfig
from .sharding import Engine, ResolvedSharding, ShardingFields, ShardingStrategy, resolve_sharding
from .training import TrainingConfig

__all__ = [
    "CheckpointConfig",
    "ConfigModel",
    "DataConfig",
    "DataSource",
    "Engine",
    "HangConfig",
    "LoggingConfig",
    "ModelConfig",
    "PerformanceConfig",
    "ResolvedSharding",
    "ShardingFields",
    "ShardingStrategy",
    "TokenizerConfig",
    "TrainerConfig",
    "TrainingConfig",
    "resolve_sharding",
]
