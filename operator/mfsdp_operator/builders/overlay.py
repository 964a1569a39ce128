"""What a template may not contain: fields that are the operator's, or would break out of the gang.

Who may create jobs may, through `template`, do what who creates pods may (the namespace's pod
security decides). The refusals here are about identity: labels that would join another job's
service, owners, names, and variables on which the ranks must agree.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mfsdp_operator.api.names import LABEL_MANAGED_BY, RESERVED_LABEL_PREFIX
from mfsdp_operator.api.template import has_own_program, trainer_container
from mfsdp_trainer.contract import CONFIG_MOUNT, CONTAINER_NAME

from .pod_env import RESERVED_ENV

CONFIG_VOLUME: Final = "mfsdp-config"
CHECKPOINT_VOLUME: Final = "mfsdp-checkpoint"

_METADATA: Final = frozenset({"labels", "annotations"})
_RESERVED_SPEC: Final = {
    "restartPolicy": "a failed pod restarts the whole gang, which the operator does",
    "hostname": "pods find each other by it",
    "subdomain": "pods find each other by it",
    "setHostnameAsFQDN": "pods find each other by their host names",
    "nodeName": "it bypasses the scheduler: use nodeSelector or affinity",
    "activeDeadlineSeconds": "it would end single pods of a gang",
    "ephemeralContainers": "they can only be added to a pod that runs",
}
_LISTS: Final = (
    "containers",
    "initContainers",
    "volumes",
    "tolerations",
    "imagePullSecrets",
    "topologySpreadConstraints",
)
_CONTAINER_LISTS: Final = ("env", "envFrom", "ports", "volumeMounts")


def template_problems(template: Mapping[str, Any]) -> list[str]:
    """What is wrong with a template, one line a problem, each naming its field."""
    return [*_metadata_problems(template), *_spec_problems(template)]


def _metadata_problems(template: Mapping[str, Any]) -> Iterator[str]:
    metadata = template.get("metadata") or {}
    if not isinstance(metadata, Mapping):
        return  # api.template.shape_problems says so
    for key in sorted(set(metadata) - _METADATA):
        yield f"spec.template.metadata.{key}: only labels and annotations can be set on pods"
    for kind in sorted(_METADATA & set(metadata)):
        entries = metadata[kind]
        path = f"spec.template.metadata.{kind}"
        if not isinstance(entries, Mapping):
            yield f"{path}: must be an object of strings"
            continue
        for key, value in entries.items():
            if not isinstance(value, str):
                yield f"{path}.{key}: must be a string, not {value!r}: put it in quotes"
            if key.startswith(RESERVED_LABEL_PREFIX) or key == LABEL_MANAGED_BY:
                yield f"{path}.{key}: reserved for the operator"


def _spec_problems(template: Mapping[str, Any]) -> Iterator[str]:
    spec = template.get("spec") or {}
    if not isinstance(spec, Mapping):
        return
    for key, why in _RESERVED_SPEC.items():
        if key in spec:
            yield f"spec.template.spec.{key}: reserved for the operator: {why}"
    malformed = [key for key in _LISTS if not _is_list_of_objects(spec.get(key))]
    for key in malformed:
        yield f"spec.template.spec.{key}: must be a list of objects"
    if not malformed:
        yield from _volume_problems(spec)
        yield from _trainer_problems(template)


def _volume_problems(spec: Mapping[str, Any]) -> Iterator[str]:
    for volume in spec.get("volumes") or ():
        if volume.get("name") in (CONFIG_VOLUME, CHECKPOINT_VOLUME):
            yield f"spec.template.spec.volumes: the name {volume['name']} is the operator's"


def _trainer_problems(template: Mapping[str, Any]) -> Iterator[str]:
    trainer = trainer_container(template)
    path = f"spec.template.spec.containers[{CONTAINER_NAME}]"
    malformed = [key for key in _CONTAINER_LISTS if not _is_list_of_objects(trainer.get(key))]
    for key in malformed:
        yield f"{path}.{key}: must be a list of objects"
    if malformed:
        return
    if trainer.get("args") and not has_own_program(template):
        yield (
            f"{path}.args: the built-in trainer is configured by the fields of spec: remove args, "
            "or give a command of your own as well"
        )
    if "terminationMessagePath" in trainer:
        yield f"{path}.terminationMessagePath: reserved for the operator"
    for entry in trainer.get("env") or ():
        if entry.get("name") in RESERVED_ENV:
            yield f"{path}.env: {entry['name']} is set by the operator: all ranks must agree on it"
    for mount in trainer.get("volumeMounts") or ():
        if str(mount.get("mountPath", "")).rstrip("/") == CONFIG_MOUNT:
            yield f"{path}.volumeMounts: {CONFIG_MOUNT} holds the operator's own files"


def _is_list_of_objects(value: object) -> bool:
    return value is None or (
        isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value)
    )
