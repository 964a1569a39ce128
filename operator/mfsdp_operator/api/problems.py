"""What is wrong with a job, as a person reads it: one problem a line, field first, fix last."""

from collections.abc import Iterable
from typing import NamedTuple

from pydantic import BaseModel, ValidationError

from mfsdp_trainer.config.problems import explain, field_name

from .refused import RIGHT_NAMES
from .rules import misspelt

type FieldPath = tuple[int | str, ...]


class Problem(NamedTuple):
    """One thing to change: the path of its field in the manifest, and what is wrong with it."""

    path: FieldPath
    message: str

    def __str__(self) -> str:
        return f"{field_name(self.path)}: {self.message}"


class InvalidSpecError(ValueError):
    """A job that cannot run as written. `details` has the paths, `problems` a line for each."""

    def __init__(self, details: Iterable[Problem]) -> None:
        self.details = tuple(details)
        super().__init__("; ".join(self.problems))

    @property
    def problems(self) -> tuple[str, ...]:
        """One line for each thing to change, its field first."""
        return tuple(str(problem) for problem in self.details)


def problem(path: str, message: str) -> Problem:
    """A problem by its dotted path, for instance `spec.checkpoint.path`."""
    return Problem(tuple(path.split(".")), message)


def describe(error: ValidationError, model: type[BaseModel], root: str) -> tuple[Problem, ...]:
    """The problems that pydantic found in the part of the manifest under `root`."""
    return tuple(
        Problem((root, *path), _message(tuple(path), sentence))
        for path, sentence in explain(error, model)
    )


def _message(path: FieldPath, sentence: str) -> str:
    if not path:
        return sentence.removeprefix("the file ")
    *parents, name = path
    if right := RIGHT_NAMES.get((field_name(parents), str(name))):
        return misspelt(str(name), right)
    # The line starts with the path already.
    start = field_name(path)
    return sentence.removeprefix(f"{start}: ").removeprefix(f"{start} ")
