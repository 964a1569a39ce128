"""A job as the API server hands it out, typed: `parse_job(manifest)`.

Metadata, spec and status are parsed apart, so that the operator can still say on a job's status
that its spec is wrong.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from mfsdp_trainer.config.plain import MAX_DEPTH, is_too_deep

from . import rules
from .names import API_VERSION, KIND, MAX_JOB_NAME
from .problems import InvalidSpecError, Problem, describe, problem
from .spec import JobSpec
from .status import JobStatus


@dataclass(frozen=True, slots=True)
class JobMeta:
    """The part of ObjectMeta that is needed. `uid` and `resource_version` are empty in a file."""

    namespace: str
    name: str
    uid: str
    resource_version: str
    generation: int
    deleting: bool


@dataclass(frozen=True, slots=True)
class Job:
    """A MegatronFSDPJob with a spec that is well formed (not yet one that adds up: `resolve`)."""

    meta: JobMeta
    spec: JobSpec
    status: JobStatus


def name_problem(name: str) -> Problem | None:
    """What is wrong with a job's name; None if nothing is."""
    if not name:
        return problem("metadata.name", rules.NAME_REQUIRED)
    if len(name) > MAX_JOB_NAME:
        return problem("metadata.name", rules.NAME_LENGTH)
    if not re.fullmatch(rules.NAME_PATTERN, name):
        return problem("metadata.name", rules.NAME_FORM)
    return None


def parse_meta(manifest: Mapping[str, Any]) -> JobMeta:
    """Metadata of a manifest; what is absent is empty or zero."""
    meta = manifest.get("metadata")
    meta = meta if isinstance(meta, Mapping) else {}
    return JobMeta(
        namespace=str(meta.get("namespace") or ""),
        name=str(meta.get("name") or ""),
        uid=str(meta.get("uid") or ""),
        resource_version=str(meta.get("resourceVersion") or ""),
        generation=_whole(meta.get("generation")),
        deleting=bool(meta.get("deletionTimestamp")),
    )


def _whole(value: object) -> int:
    """A number of the API server's; zero for what a person wrote in its place."""
    return value if isinstance(value, int) else 0


def parse_spec(raw: object) -> JobSpec:
    """The spec of a manifest. Raises InvalidSpecError with a line for every problem."""
    if is_too_deep(raw):
        raise InvalidSpecError([problem("spec", f"must not nest deeper than {MAX_DEPTH} levels")])
    # Through JSON and strictly: as the API server, it takes "2" for no number, and a field by its
    # outside name only.
    text = json.dumps(_as_stored({} if raw is None else raw))
    try:
        return JobSpec.model_validate_json(text, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidSpecError(describe(error, JobSpec, "spec")) from error


def _as_stored(value: object, name: str = "") -> object:
    """What the API server makes of a value: null counts as unset, and 10.0 as 10."""
    if name in ("template", "config"):
        return value
    if isinstance(value, dict):
        return {key: _as_stored(child, key) for key, child in value.items() if child is not None}
    if isinstance(value, list):
        return [_as_stored(child) for child in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def parse_status(raw: object) -> JobStatus:
    """The status of a manifest. Fields of a newer operator are ignored: a downgrade must work."""
    return JobStatus.model_validate({} if raw is None else raw, extra="ignore")


def parse_job(manifest: Mapping[str, Any]) -> Job:
    """Parse a whole manifest, from the API server or from a file.

    Raises InvalidSpecError with a line for every problem, each naming its field.
    """
    if (manifest.get("apiVersion"), manifest.get("kind")) != (API_VERSION, KIND):
        raise InvalidSpecError([problem("kind", f"must be {KIND} of apiVersion {API_VERSION}")])
    meta = parse_meta(manifest)
    if wrong := name_problem(meta.name):
        raise InvalidSpecError([wrong])
    return Job(meta, parse_spec(manifest.get("spec")), parse_status(manifest.get("status")))
