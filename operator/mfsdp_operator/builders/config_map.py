"""The pin: an immutable config map with all that a job runs with, fixed when it is first seen.

`config.yaml` is the file of the trainer; `pin.json` is read by the operator itself, which makes the
pods of every attempt from it.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from mfsdp_operator.api.job import JobMeta
from mfsdp_operator.api.names import config_map_name
from mfsdp_operator.api.resolve import ResolvedJob
from mfsdp_operator.api.spec import JobSpec

from .meta import child_metadata
from .pod import build_template

CONFIG_KEY: Final = "config.yaml"
PIN_KEY: Final = "pin.json"


class PinError(ValueError):
    """A config map that is not one of ours, or was damaged."""


class Pin(BaseModel):
    """What the operator has to remember of a job's first sight."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: int = 1
    nodes: int
    pod_template: dict[str, Any]


def build_config_map(
    job: JobMeta, spec: JobSpec, resolved: ResolvedJob, image: str
) -> dict[str, Any]:
    """The config map of a job. `image` is the built-in trainer's."""
    pin = Pin(nodes=spec.nodes, pod_template=build_template(job, spec, resolved, image))
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": child_metadata(job, config_map_name(job.name)),
        "immutable": True,
        "data": {CONFIG_KEY: _config(spec, resolved), PIN_KEY: pin.model_dump_json()},
    }


def read_pin(config_map: Mapping[str, Any]) -> Pin:
    """The pin in a job's config map. Raises PinError."""
    try:
        return Pin.model_validate(json.loads((config_map.get("data") or {})[PIN_KEY]))
    except (KeyError, ValueError, ValidationError) as error:
        name = config_map.get("metadata", {}).get("name")
        raise PinError(
            f"config map {name} holds no usable {PIN_KEY}: delete the job and create it again"
        ) from error


def _config(spec: JobSpec, resolved: ResolvedJob) -> str:
    """The trainer's file; for a program of the user's own, the choice that it may want to read."""
    if resolved.trainer is not None:
        content = resolved.trainer.model_dump(mode="json", by_alias=True, exclude_none=True)
    else:
        content = {
            "useMegatronFSDP": spec.use_megatron_fsdp,
            "useTorchFSDP2": spec.use_torch_fsdp2,
            "dataParallelShardingStrategy": resolved.sharding.strategy.value,
            "dataParallelReplicas": spec.data_parallel_replicas,
            "nodes": spec.nodes,
            "procsPerNode": resolved.procs_per_node,
            "gpusPerNode": spec.gpus_per_node,
        }
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    return text
