"""What a template may not contain, beyond what `api.template` refuses: fields of the gang's pods.

Who may create jobs may, through `template`, do what who creates pods may (the namespace's pod
security decides). The refusals here are about the gang: variables on which its ranks must agree,
files and volumes of the operator's, its GPUs, and limits that would end single pods of it.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from mfsdp_operator.api.names import CHECKPOINT_VOLUME, CONFIG_VOLUME
from mfsdp_operator.api.problems import Problem, problem
from mfsdp_operator.api.spec import DEFAULT_GPU_RESOURCE, JobSpec
from mfsdp_operator.api.template import has_own_program, trainer_container
from mfsdp_operator.api.template_schema import CONTAINER_LISTS, POD_LISTS
from mfsdp_trainer.contract import CONFIG_MOUNT, CONTAINER_NAME

from .merge import merge
from .pod_env import RESERVED_ENV

_RESERVED_SPEC: Final = {
    "setHostnameAsFQDN": "pods find each other by their host names",
    "activeDeadlineSeconds": "it would end single pods of the gang",
    "ephemeralContainers": "they can only be added to a pod that runs",
}
_LISTS: Final = ("containers", *POD_LISTS)
_CONTAINER_LISTS: Final = ("env", *CONTAINER_LISTS)
_TRAINER: Final = f"spec.template.spec.containers[{CONTAINER_NAME}]"


def overlay_problems(job: JobSpec) -> list[Problem]:
    """What is wrong with a template of any shape, each problem naming its field and the fix."""
    template = job.template
    spec = template.get("spec") or {}
    if not isinstance(spec, Mapping):
        return []  # api.template says so
    problems = [*_metadata_problems(template.get("metadata")), *_reserved(spec)]
    if all(_is_list_of_objects(spec.get(key)) for key in _LISTS):  # api.template_shape says so
        problems += [*_volume_problems(spec), *_sidecar_problems(spec)]
        problems += [*_trainer_problems(template), *_gpu_problems(job)]
    return problems


def _metadata_problems(metadata: object) -> Iterator[Problem]:
    for kind in ("labels", "annotations"):
        entries = metadata.get(kind) if isinstance(metadata, Mapping) else None
        if entries is None:
            continue
        if not isinstance(entries, Mapping):
            yield problem(f"spec.template.metadata.{kind}", "must be an object of strings")
            continue
        for key, value in entries.items():
            if not isinstance(value, str):
                said = f"{key} must be a string, not {value!r}: put it in quotes"
                yield problem(f"spec.template.metadata.{kind}", said)


def _reserved(spec: Mapping[str, Any]) -> Iterator[Problem]:
    for key, why in _RESERVED_SPEC.items():
        if key in spec:
            yield problem(f"spec.template.spec.{key}", f"leave it to the operator: {why}")


def _volume_problems(spec: Mapping[str, Any]) -> Iterator[Problem]:
    for volume in spec.get("volumes") or ():
        if volume.get("name") in (CONFIG_VOLUME, CHECKPOINT_VOLUME):
            said = f"the name {volume['name']} is the operator's: choose another"
            yield problem("spec.template.spec.volumes", said)


def _sidecar_problems(spec: Mapping[str, Any]) -> Iterator[Problem]:
    """The trainer alone has an image of ours: under another name it is taken for a sidecar."""
    for kind in ("containers", "initContainers"):
        for container in spec.get(kind) or ():
            name = container.get("name")
            if not container.get("image") and (kind, name) != ("containers", CONTAINER_NAME):
                said = (
                    "a container beside the trainer needs an image; the trainer's own is called "
                    f"{CONTAINER_NAME}"
                )
                yield problem(f"spec.template.spec.{kind}[{name}]", said)


def _trainer_problems(template: Mapping[str, Any]) -> Iterator[Problem]:
    trainer = trainer_container(template)
    if not all(_is_list_of_objects(trainer.get(key)) for key in _CONTAINER_LISTS):
        return  # api.template_shape says so
    if trainer.get("args") and not has_own_program(template):
        yield _of_trainer(
            "args",
            "the built-in trainer is configured by the fields of spec: remove args, or give a "
            "command of your own as well",
        )
    if "terminationMessagePath" in trainer:
        yield _of_trainer("terminationMessagePath", "leave it to the operator: it reads the file")
    for entry in trainer.get("env") or ():
        if entry.get("name") in RESERVED_ENV:
            said = f"{entry['name']} is set by the operator, since all ranks must agree on it"
            yield _of_trainer("env", said)
    for mount in trainer.get("volumeMounts") or ():
        if str(mount.get("mountPath", "")).rstrip("/") == CONFIG_MOUNT:
            yield _of_trainer("volumeMounts", f"{CONFIG_MOUNT} holds the operator's own files")


def _gpu_problems(job: JobSpec) -> Iterator[Problem]:
    """The template wins in the pod, and the trainer would count on other GPUs than it has."""
    trainer, gpus = trainer_container(job.template), str(job.gpus_per_node)
    names = {job.gpu_resource} if job.gpus_per_node else {job.gpu_resource, DEFAULT_GPU_RESOURCE}
    ours = {"resources": {"limits": dict.fromkeys(names, gpus)}}
    theirs = {key: trainer[key] for key in ours if key in trainer}
    resources = _object(merge(ours, theirs).get("resources"))
    for kind, absent in (("limits", "0"), ("requests", gpus)):
        given = _object(resources.get(kind))
        for name in sorted(names):
            if str(given.get(name, absent)) != gpus:
                said = f"leave {name} to gpusPerNode, which also says how many processes there are"
                yield _of_trainer(f"resources.{kind}", said)


def _of_trainer(field: str, message: str) -> Problem:
    return Problem((*_TRAINER.split("."), *field.split(".")), message)


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _is_list_of_objects(value: object) -> bool:
    return value is None or (
        isinstance(value, list) and all(isinstance(entry, Mapping) for entry in value)
    )
