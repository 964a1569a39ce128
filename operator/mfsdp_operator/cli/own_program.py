"""A program of the user's own as a pod runs it: the container as the kubelet reads it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from pydantic.alias_generators import to_camel

from mfsdp_operator.api.job import Job
from mfsdp_operator.api.resolve import ResolvedJob
from mfsdp_operator.api.rules import BUILT_IN_SECTIONS
from mfsdp_operator.api.spec import JobSpec
from mfsdp_operator.api.template import trainer_container
from mfsdp_operator.builders.pod import build_template, stamp

_BUILT_IN_ALONE: Final = (*BUILT_IN_SECTIONS, "performance", "logging", "hang")
_REFERENCE: Final = re.compile(r"\$(?:\$|\(([^()]*)\))")


@dataclass(frozen=True)
class Program:
    """One pod's program. Variables without a literal value (`valueFrom`) are the cluster's to
    know."""

    command: tuple[str, ...]
    env: Mapping[str, str]
    elsewhere: tuple[str, ...]
    """Names of the variables whose values are not in the job."""


def unread(spec: JobSpec) -> tuple[str, ...]:
    """Fields that the job sets and only the built-in trainer reads."""
    sections = [name for name in _BUILT_IN_ALONE if name in spec.model_fields_set]
    given = sorted(spec.checkpoint.model_fields_set - {"path", "pvc"})
    return (*sections, *(f"checkpoint.{to_camel(name)}" for name in given))


def program(job: Job, resolved: ResolvedJob, rank: int = 0) -> Program:
    """The program of one node rank in the first attempt."""
    # In a file a job has no uid.
    meta = replace(job.meta, uid=job.meta.uid or "UID")
    template = build_template(meta, job.spec, resolved, image="")
    container = trainer_container(stamp(template, meta, 1, rank))
    env = _environment(container["env"])
    words = [*container["command"], *(container.get("args") or ())]
    return Program(
        command=tuple(expand(str(word), env) for word in words),
        env=env,
        elsewhere=tuple(entry["name"] for entry in container["env"] if "valueFrom" in entry),
    )


def _environment(entries: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Values may refer to variables before them."""
    env: dict[str, str] = {}
    for entry in entries:
        if "valueFrom" not in entry:
            env[entry["name"]] = expand(str(entry.get("value") or ""), env)
    return env


def expand(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` becomes its value and `$$` a dollar, as the kubelet does; unknown names stay."""

    def value(found: re.Match[str]) -> str:
        name = found[1]
        return "$" if name is None else env.get(name, found[0])

    return _REFERENCE.sub(value, text)
