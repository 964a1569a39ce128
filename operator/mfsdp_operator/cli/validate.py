"""`mfsdp validate` and `mfsdp render`: what a job file means, without a cluster."""

import sys
from collections.abc import Sequence

import yaml

from mfsdp_operator.api.job import Job
from mfsdp_operator.api.names import KIND
from mfsdp_operator.api.resolve import ResolvedJob
from mfsdp_trainer.config.load import dump_config
from mfsdp_trainer.words import counted, listed

from .errors import UserError
from .jobfile import JobFile, read_job, read_jobs
from .own_program import Program, program, unread


def validate(files: Sequence[str]) -> int:
    """Check every job of every file; 1 if any is wrong, or there is none."""
    verdicts: list[bool] = []
    for file in files:
        try:
            jobs = read_jobs(file)
        except UserError as error:
            verdicts.append(_complain(error))
            continue
        if not jobs:
            print(f"{file}: holds no {KIND}")
        verdicts += [_validate(job) for job in jobs]
    return 0 if verdicts and all(verdicts) else 1


def _validate(found: JobFile) -> bool:
    try:
        job, resolved = found.check()
    except UserError as error:
        return _complain(error)
    told = summary(resolved) + _unread(job, resolved)
    print(f"{found.file}: {job.meta.name or 'job'}: valid: {told}")
    return True


def _complain(error: UserError) -> bool:
    print(error, file=sys.stderr)
    return False


def summary(resolved: ResolvedJob) -> str:
    """What runs, in a few words."""
    if resolved.own_program:
        return f"a program of its own on {counted(resolved.world_size, 'rank')}"
    sharding = resolved.sharding
    ranks = counted(sharding.world_size, "rank")
    batches = counted(sharding.micro_batches, "micro-batch", "micro-batches")
    return f"{sharding.engine} {sharding.strategy} on {ranks}, {batches} a step"


def _unread(job: Job, resolved: ResolvedJob) -> str:
    names = unread(job.spec) if resolved.own_program else ()
    return f"; {listed(names)} {'is' if len(names) == 1 else 'are'} not read by it" if names else ""


def render(file: str, name: str | None) -> int:
    """Print the trainer's configuration as the pods get it, or what a program of one's own gets."""
    job, resolved = read_job(file, name).check()
    if resolved.own_program:
        _render_program(program(job, resolved))
    elif resolved.trainer is not None:
        print(dump_config(resolved.trainer), end="")
    return 0


def _render_program(shown: Program) -> None:
    print("# What the pod of node rank 0 runs in its first attempt, with values for $(NAME).")
    what = {"command": list(shown.command), "env": dict(shown.env)}
    print(yaml.safe_dump(what, sort_keys=False, allow_unicode=True, width=100), end="")
    for variable in shown.elsewhere:
        print(f"# {variable}: known in the cluster")
