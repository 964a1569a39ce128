"""Paths of the pod on this machine."""

from pathlib import Path

from mfsdp_trainer.config import ConfigModel, ModelConfig

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


def existing(field: str, path: str, mapped: Mapped) -> str:
    """A path of the pod on this machine. Raises UserError where it is missing."""
    found = path
    for pod, local_path in mapped:
        if path == pod or path.startswith(f"{pod}/"):
            found = str(local_path.absolute()) + path[len(pod) :]
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
