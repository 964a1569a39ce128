"""Reads a run's configuration from a file, and writes the resolved one for the workers.

Every problem becomes one line: file, line, field as the user wrote it, what is wrong, the fix.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from mfsdp_trainer.errors import ConfigError

from .problems import explain, field_name
from .run import TrainerConfig
from .yaml12 import Document, FieldPath, YamlError, parse

type Overrides = Mapping[str, object]
"""Values that beat those of the file, by their dotted path, e.g. {"training.steps": 10}."""


def load_config(path: str | Path, overrides: Overrides | None = None) -> TrainerConfig:
    """The configuration in a YAML or JSON file, with overrides laid over it.

    Raises ConfigError with a line for each problem.
    """
    file = Path(path)
    document = _read(file)
    values = _overlaid(document.value, overrides or {}, file)
    try:
        return TrainerConfig.model_validate(values, by_alias=True, by_name=False)
    except ValidationError as error:
        problems = sorted(explain(error, TrainerConfig), key=lambda p: document.line(p[0]) or 0)
        raise ConfigError(
            "\n".join(
                f"{_place(file, document, where, overrides or {})}: {what}"
                for where, what in problems
            )
        ) from None


def dump_config(config: TrainerConfig) -> str:
    """The configuration as YAML that `load_config` reads back unchanged."""
    values = config.model_dump(mode="json", by_alias=True, exclude_none=True)
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _read(file: Path) -> Document:
    try:
        document = parse(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file} does not exist: name the configuration with --config") from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text: {error.reason}") from None
    except YamlError as error:
        line = f":{error.line}" if error.line else ""
        raise ConfigError(f"{file}{line}: {error}") from None
    if not isinstance(document.value, dict):
        raise ConfigError(f"{file}: must be a mapping of fields such as model, data and training")
    if document.value.get("kind") == "MegatronFSDPJob":
        raise ConfigError(
            f"{file} is a MegatronFSDPJob for kubectl, not a trainer's configuration: "
            f"run it on this machine with `make local JOB={file}`"
        )
    return document


def _overlaid(values: dict[str, Any], overrides: Overrides, file: Path) -> dict[str, Any]:
    result = copy.deepcopy(values)
    for dotted, value in overrides.items():
        *parents, leaf = dotted.split(".")
        node: Any = result
        for parent in parents:
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError(f"{file}: {parent} is not a mapping, so {dotted} cannot be set")
        node[leaf] = value
    return result


def _place(file: Path, document: Document, where: FieldPath, overrides: Overrides) -> str:
    """`file:line`, or what else set the field."""
    name = field_name(where)
    if name in overrides:
        return f"{file} with {name} set on the command line or by the environment"
    line = document.line(where)
    return f"{file}:{line}" if line and where else str(file)
