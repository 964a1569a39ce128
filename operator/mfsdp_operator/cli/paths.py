"""Paths of the pod on this machine."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mfsdp_trainer.config import (
    CheckpointConfig,
    ConfigModel,
    DataConfig,
    DataSource,
    LoggingConfig,
    ModelConfig,
    TrainerConfig,
)

from .errors import UserError

type Mapped = tuple[tuple[str, Path], ...]
"""Directories of the pod, and those here that stand for them."""


def model_here(model: ModelConfig, mapped: Mapped) -> ModelConfig:
    """The model with its directory on this machine. Raises UserError where that is missing."""
    if model.path is None:
        return model
    return moved(model, path=existing("spec.model.path", model.path, mapped))


def moved[T: ConfigModel](section: T, **changes: object) -> T:
    """A section with other values."""
    return section.model_copy(update=changes)


@dataclass(frozen=True)
class Places:
    """Where the pod's directories are here."""

    mapped: Mapped
    checkpoint_path: str
    """Of the pod; what the run writes below it is written below `checkpoints` here."""
    checkpoints: str

    def read(self, field: str, path: str | None) -> str | None:
        """A path that must be there. Raises UserError where it is missing."""
        if path is None or "://" in path:
            return path
        beside = _below(path, self.checkpoint_path, self.checkpoints)
        return beside or existing(field, path, self.mapped)

    def write(self, field: str, path: str | None) -> str | None:
        """A path that the run makes. Raises UserError for one that nothing here stands for: a
        pod's own directories are not this machine's."""
        if path is None:
            return None
        pairs = [(self.checkpoint_path, self.checkpoints), *_absolute(self.mapped)]
        found = next((here for pod, to in pairs if (here := _below(path, pod, to))), None)
        if found is None and Path(path).is_absolute():
            parent = Path(path).parent
            raise UserError(
                f"{field}: {path} is a path of the pod: say what stands for its directory here: "
                f"--map {parent}=DIRECTORY, or put it below checkpoint.path {self.checkpoint_path}"
            )
        return found or path


def on_this_machine(config: TrainerConfig, places: Places, port: int) -> TrainerConfig:
    """A pod's configuration with every path of this machine. Raises UserError."""
    return config.model_copy(
        update={
            "model": model_here(config.model, places.mapped),
            "data": _data(config.data, places),
            "checkpoint": _checkpoint(config.checkpoint, places),
            "logging": moved(_logging(config.logging, places), port=port),
        }
    )


def _data(data: DataConfig, places: Places) -> DataConfig:
    tokenizer = moved(
        data.tokenizer,
        path=places.read("spec.data.tokenizer.path", data.tokenizer.path),
        chat_template=places.read("spec.data.tokenizer.chatTemplate", data.tokenizer.chat_template),
    )
    return moved(
        data,
        sources=tuple(_sources("sources", data.sources, places)),
        validation=tuple(_sources("validation", data.validation, places)),
        tokenizer=tokenizer,
        cache_path=places.write("spec.data.cachePath", data.cache_path),
    )


def _sources(name: str, sources: tuple[DataSource, ...], places: Places) -> Iterator[DataSource]:
    for index, source in enumerate(sources):
        yield moved(source, path=places.read(f"spec.data.{name}[{index}].path", source.path))


def _checkpoint(checkpoint: CheckpointConfig, places: Places) -> CheckpointConfig:
    warm_start = places.read("spec.checkpoint.warmStart", checkpoint.warm_start)
    return moved(checkpoint, path=places.checkpoints, warm_start=warm_start)


def _logging(logging: LoggingConfig, places: Places) -> LoggingConfig:
    return moved(
        logging,
        json_lines=places.write("spec.logging.jsonLines", logging.json_lines),
        tensorboard=places.write("spec.logging.tensorboard", logging.tensorboard),
    )


def _absolute(mapped: Mapped) -> Iterator[tuple[str, str]]:
    return ((pod, str(here.absolute())) for pod, here in mapped)


def _below(path: str, pod: str, here: str) -> str | None:
    """A path of the pod's directory in the one here that stands for it; None if it is not in it."""
    return here + path[len(pod) :] if path == pod or path.startswith(f"{pod}/") else None


def existing(field: str, path: str, mapped: Mapped) -> str:
    """A path of the pod on this machine. Raises UserError where it is missing."""
    found = path
    for pod, here in _absolute(mapped):
        found = _below(path, pod, here) or found
    if not _fixed_part(found).exists():
        raise UserError(
            f"{field}: {found} does not exist on this machine; if it is a directory of the pod, "
            f"say what stands for it: --map {_fixed_part(path)}=DIRECTORY"
        )
    return found


def _fixed_part(pattern: str) -> Path:
    """The path up to its first part with a wildcard."""
    path = Path(pattern)
    wild = [parent for parent in (path, *path.parents) if set(parent.name) & set("*?[")]
    return wild[-1].parent if wild else path
