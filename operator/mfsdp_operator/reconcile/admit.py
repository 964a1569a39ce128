"""The first look at a job: does its spec add up? Later looks go by what was pinned then."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from mfsdp_operator.api.job import name_problem, parse_spec
from mfsdp_operator.api.problems import InvalidSpecError
from mfsdp_operator.api.resolve import ResolvedJob, resolve, spec_problems
from mfsdp_operator.api.spec import JobSpec, RestartPolicy
from mfsdp_operator.api.status import JobStatus, WorkersStatus
from mfsdp_operator.builders.overlay import overlay_problems
from mfsdp_operator.objects import JobView


def understand(job: JobView) -> tuple[JobSpec, ResolvedJob]:
    """The spec with its defaults and what follows from it.

    Raises InvalidSpecError with a line for every problem; the API server refuses most of them
    before, but not what is inside `template`.
    """
    name = name_problem(job.meta.name)
    if name:
        raise InvalidSpecError([name])
    spec = parse_spec(job.spec)
    problems = [*spec_problems(spec), *overlay_problems(spec)]
    if problems:
        raise InvalidSpecError(problems)
    return spec, resolve(spec)


def admitted(status: JobStatus, spec: JobSpec, resolved: ResolvedJob) -> JobStatus:
    """The status once a spec is understood: what the job needs, and what it resolved to."""
    return status.model_copy(
        update={
            "sharding": resolved.sharding,
            "gpus": resolved.gpus,
            "workers": WorkersStatus(desired=spec.nodes, summary=f"0/{spec.nodes}"),
        }
    )


def restart_policy(spec: Mapping[str, Any]) -> RestartPolicy:
    """The restart limits in effect; they may be changed while a job runs."""
    try:
        return RestartPolicy.model_validate(spec.get("restarts") or {}, extra="ignore")
    except ValidationError:
        return RestartPolicy()
