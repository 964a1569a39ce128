"""Lays a user's pod template over the operator's own, as a strategic merge would.

Objects merge key by key, `null` removes our default, lists with a natural key merge by it and all
other lists are replaced. `overlay.py` says beforehand what a template may not contain.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mfsdp_trainer.contract import CONTAINER_NAME

_LIST_KEYS: Final = {
    "env": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "name",
    "volumes": "name",
    "containers": "name",
    "initContainers": "name",
    "imagePullSecrets": "name",
}
_APPENDED: Final = frozenset({"envFrom"})
_REPLACED: Final = frozenset(
    {
        "livenessProbe",
        "readinessProbe",
        "startupProbe",
        "lifecycle",
        "affinity",
        "topologySpreadConstraints",
    }
)
"""Taken whole: half of ours and half of the user's would be neither."""


def merge(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """`theirs` laid over `ours`; neither is changed."""
    merged = dict(ours)
    for key, value in theirs.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge_value(key, merged.get(key), value)
    return merged


def _merge_value(key: str, ours: object, theirs: object) -> object:
    if key in _REPLACED or ours is None:
        return theirs
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return merge(ours, theirs)
    if isinstance(ours, Sequence) and isinstance(theirs, Sequence) and not isinstance(ours, str):
        if key in _LIST_KEYS:
            return _merge_lists(ours, theirs, _LIST_KEYS[key])
        if key in _APPENDED:
            return [*ours, *theirs]
        if key == "tolerations":
            return _merge_tolerations(ours, theirs)
    return theirs


def _merge_lists(ours: Sequence[Any], theirs: Sequence[Any], key: str) -> list[Any]:
    """Entries of the same key merge in our place and order; new ones follow."""
    by_key = {entry.get(key): entry for entry in theirs}
    known = {entry.get(key) for entry in ours}
    merged = [_merge_entry(entry, by_key.get(entry.get(key)), key) for entry in ours]
    return merged + [entry for entry in theirs if entry.get(key) not in known]


def _merge_entry(ours: Mapping[str, Any], theirs: Mapping[str, Any] | None, key: str) -> object:
    if theirs is None:
        return ours
    # A volume, a variable or a mount of the same key is another one, not a blend of the two. Only
    # the trainer container is meant to be both.
    return merge(ours, theirs) if ours.get(key) == CONTAINER_NAME else theirs


def _merge_tolerations(ours: Sequence[Any], theirs: Sequence[Any]) -> list[Any]:
    """The user's, and those of ours whose taint the user says nothing about."""
    named = {entry.get("key") for entry in theirs}
    return [*theirs, *(entry for entry in ours if entry.get("key") not in named)]
