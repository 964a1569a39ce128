"""The trackers that a configuration asks for."""

import importlib.util
import os
from pathlib import Path

from mfsdp_trainer.beside import beside_checkpoints
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.contract import Env
from mfsdp_trainer.errors import ConfigError

from .journal import Journal
from .json_lines import JsonLines
from .mlflow import Mlflow
from .record import Tracker
from .tensorboard import TensorBoard
from .wandb import Wandb


def open_journal(config: TrainerConfig) -> Journal:
    """All trackers, with their threads; for rank 0 alone.

    Raises ConfigError for a package that the image lacks and for a file that cannot be written.
    What a server says comes later, from the threads, and stops nothing.
    """
    logging = config.logging
    job, uid = os.environ.get(Env.JOB_NAME, ""), os.environ.get(Env.JOB_UID, "")
    trackers: dict[str, Tracker] = {}
    if logging.json_lines is not None:
        attempt = int(os.environ.get(Env.ATTEMPT) or 0)
        path = _local("jsonLines", logging.json_lines)
        trackers["logging.jsonLines"] = JsonLines(path, attempt)
    if logging.tensorboard is not None:
        trackers["logging.tensorboard"] = TensorBoard(_local("tensorboard", logging.tensorboard))
    if logging.wandb is not None:
        _require("wandb")
        directory = beside_checkpoints(config, "wandb")
        trackers["logging.wandb"] = Wandb(logging.wandb, job, uid, directory)
    if logging.mlflow is not None:
        _require("mlflow")
        trackers["logging.mlflow"] = Mlflow(logging.mlflow, job, uid)
    return Journal(trackers)


def _local(field: str, path: str) -> Path:
    """A path that can be appended to."""
    if "://" in path:
        raise ConfigError(
            f"logging.{field} {path}: must be a path in the container, not an object store, where "
            "nothing can be appended to: choose one on a volume"
        )
    return Path(path)


def _require(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        raise ConfigError(
            f"logging.{package} needs the package {package}, which this image does not have: add "
            f"it as docs/jobs.md shows and set that image in template, or drop logging.{package}"
        )
