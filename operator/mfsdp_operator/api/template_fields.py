"""The names of a pod's and a container's fields: the API server drops a misspelt one unseen.

A job would then train without the volume, the limit or the toleration that its author wrote. Names
are held against those of Kubernetes 1.37, at the first level of the pod's spec and of each
container; deeper ones are the API server's to judge.
"""

import difflib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mfsdp_trainer.contract import CONTAINER_NAME

from .names import OWN_VOLUMES
from .problems import FieldPath, Problem
from .template_names import CONTAINER_FIELDS, POD_FIELDS

_POD: Final = ("spec", "template", "spec")


def field_problems(template: Mapping[str, Any]) -> Iterator[Problem]:
    """Fields that do not exist, and mounts of volumes that do not; of a template of any shape."""
    spec = template.get("spec")
    if not isinstance(spec, Mapping):
        return
    yield from _unknown(spec, POD_FIELDS, "a pod's spec", _POD)
    for kind in ("initContainers", "containers"):
        for number, container in _objects(spec, kind):
            yield from _unknown(container, CONTAINER_FIELDS, "a container", (*_POD, kind, number))
            yield from _mount_problems(container, spec, (*_POD, kind, number))


def _unknown(
    value: Mapping[str, Any], fields: frozenset[str], what: str, path: FieldPath
) -> Iterator[Problem]:
    for key in sorted(str(key) for key in value if key not in fields):
        yield Problem((*path, key), f"is not a field of {what}: {_hint(key, fields)}")


def _hint(key: str, fields: frozenset[str]) -> str:
    if key in CONTAINER_FIELDS:
        return f"it belongs to a container, for instance {CONTAINER_NAME}"
    if key in POD_FIELDS:
        return "it belongs to template.spec"
    by_lower = {field.lower(): field for field in sorted(fields)}
    near = difflib.get_close_matches(key.lower(), by_lower, 1)
    return f"did you mean {by_lower[near[0]]}?" if near else "remove it"


def _mount_problems(
    container: Mapping[str, Any], spec: Mapping[str, Any], path: FieldPath
) -> Iterator[Problem]:
    known = OWN_VOLUMES | {str(volume.get("name")) for _, volume in _objects(spec, "volumes")}
    for number, mount in _objects(container, "volumeMounts"):
        name = str(mount.get("name"))
        if "name" in mount and name not in known:
            near = difflib.get_close_matches(name, sorted(known), 1)
            hint = f"did you mean {near[0]}, or add it there?" if near else "add it there"
            yield Problem(
                (*path, "volumeMounts", number, "name"),
                f"no volume {name} is in template.spec.volumes: {hint}",
            )


def _objects(value: Mapping[str, Any], key: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The objects in a list, with their places; others are refused elsewhere."""
    entries = value.get(key)
    for number, entry in enumerate(entries if isinstance(entries, list) else ()):
        if isinstance(entry, Mapping):
            yield number, entry
