"""What the API reads in `spec.template`, which has no schema: its container `trainer`.

The rules here cannot be CEL: inside a preserve-unknown field no path compiles.
"""

from collections.abc import Mapping
from typing import Any

from mfsdp_trainer.contract import CONTAINER_NAME

MAX_CONNECTIONS_ENV = "CUDA_DEVICE_MAX_CONNECTIONS"


def trainer_container(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container named trainer, or an empty mapping. Tolerates any shape: see `shape_problems`
    for what is said about a wrong one."""
    spec = template.get("spec")
    containers = spec.get("containers") if isinstance(spec, Mapping) else None
    for container in containers if isinstance(containers, list) else ():
        if isinstance(container, Mapping) and container.get("name") == CONTAINER_NAME:
            return container
    return {}


def has_own_program(template: Mapping[str, Any]) -> bool:
    """Whether the template replaces the built-in trainer by a program of the user's."""
    return bool(trainer_container(template).get("command"))


def env_value(template: Mapping[str, Any], name: str) -> str | None:
    """The literal value that the template gives an environment variable of the trainer."""
    env = trainer_container(template).get("env")
    for entry in env if isinstance(env, list) else ():
        if isinstance(entry, Mapping) and entry.get("name") == name:
            value = entry.get("value")
            return None if value is None else str(value)
    return None


def shape_problems(template: Mapping[str, Any]) -> list[str]:
    """What is wrong with the template's outline: one line each."""
    problems = [
        f"spec.template.{key}: no such field: a template has metadata and spec"
        for key in sorted(set(template) - {"metadata", "spec"})
    ]
    for key in ("metadata", "spec"):
        if not isinstance(template.get(key, {}), Mapping):
            problems.append(f"spec.template.{key}: must be an object")
    spec = template.get("spec")
    if isinstance(spec, Mapping):
        problems += _container_problems(spec.get("containers", []))
    return problems


def _container_problems(containers: object) -> list[str]:
    if not isinstance(containers, list) or not all(isinstance(c, Mapping) for c in containers):
        return ["spec.template.spec.containers: must be a list of containers"]
    names = [container.get("name") for container in containers]
    if not all(isinstance(name, str) and name for name in names):
        return ["spec.template.spec.containers: every container needs a name"]
    repeated = sorted({str(name) for name in names if names.count(name) > 1})
    return [f"spec.template.spec.containers: the name {name} is used twice" for name in repeated]
