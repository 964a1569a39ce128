"""What the API reads in `spec.template`, and what it says about one that cannot work.

CEL in the CRD says the same; here it holds for files, and for fields that have no schema.
"""

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from mfsdp_trainer.contract import CONTAINER_NAME

from . import rules
from .names import CHECKPOINT_VOLUME, RESERVED_LABEL_PREFIX
from .problems import Problem, problem


def trainer_container(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container named trainer, or an empty mapping; of a template of any shape."""
    containers = _mapping(template.get("spec")).get("containers")
    for container in containers if isinstance(containers, list) else ():
        if _mapping(container).get("name") == CONTAINER_NAME:
            return _mapping(container)
    return {}


def has_own_program(template: Mapping[str, Any]) -> bool:
    """Whether the template replaces the built-in trainer by a program of the user's."""
    return bool(trainer_container(template).get("command"))


def env_values(template: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The literal values that the template gives an environment variable of the trainer."""
    env = trainer_container(template).get("env")
    entries = [_mapping(entry) for entry in (env if isinstance(env, list) else ())]
    return tuple(str(e["value"]) for e in entries if e.get("name") == name and "value" in e)


def mount_over(template: Mapping[str, Any], path: str) -> str | None:
    """Where the trainer mounts a volume of the template's own so that it holds `path`, a directory.

    A mount of the operator's own volume of checkpoints (with a subPath, say) is none of these.
    """
    mounts = trainer_container(template).get("volumeMounts")
    for mount in map(_mapping, mounts if isinstance(mounts, list) else ()):
        where = str(mount.get("mountPath") or "")
        if where and mount.get("name") != CHECKPOINT_VOLUME and _holds(where, path):
            return where
    return None


def _holds(mount: str, path: str) -> bool:
    return PurePosixPath("/" + path.strip("/")).is_relative_to("/" + mount.strip("/"))


def template_problems(template: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with a template: one line each, naming field and fix."""
    for key in sorted(set(template) - {"metadata", "spec"}):
        yield problem(f"spec.template.{key}", "no such field: a template has metadata and spec")
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    if isinstance(metadata, Mapping):
        yield from _metadata_problems(metadata)
    else:
        yield problem("spec.template.metadata", "must be an object")
    if not isinstance(spec, Mapping):
        yield problem("spec.template.spec", "must be an object")
        return
    for field in rules.RESERVED_POD_FIELDS:
        if field in spec:
            yield problem(f"spec.template.spec.{field}", f"{field} {rules.RESERVED_FIELD}")
    yield from _container_problems(spec.get("containers", []))


def _metadata_problems(metadata: Mapping[str, Any]) -> Iterator[Problem]:
    for key in sorted(set(metadata) - {"labels", "annotations"}):
        yield problem(
            f"spec.template.metadata.{key}",
            "no such field: the operator names and owns the pods; labels and annotations are yours",
        )
    for key in _mapping(metadata.get("labels")):
        if str(key).startswith(RESERVED_LABEL_PREFIX) or key in rules.RESERVED_LABELS:
            yield problem("spec.template.metadata.labels", rules.RESERVED_LABEL)


def _container_problems(containers: object) -> Iterator[Problem]:
    where = "spec.template.spec.containers"
    if not isinstance(containers, list) or not all(isinstance(c, Mapping) for c in containers):
        yield problem(where, "must be a list of containers")
        return
    names = [container.get("name") for container in containers]
    if not all(isinstance(name, str) and name for name in names):
        yield problem(where, "every container needs a name")
        return
    for name in sorted({str(name) for name in names if names.count(name) > 1}):
        yield problem(where, f"the name {name} is used twice")


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
