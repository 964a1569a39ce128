"""`mfsdp validate` and `mfsdp render`: what a job file means, without a cluster."""

import sys
from collections.abc import Sequence

from mfsdp_operator.api.names import KIND
from mfsdp_operator.api.resolve import ResolvedJob
from mfsdp_trainer.config.load import dump_config

from .errors import UserError
from .jobfile import JobFile, read_job, read_jobs


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
    print(f"{found.file}: {job.meta.name or 'job'}: valid: {summary(resolved)}")
    return True


def _complain(error: UserError) -> bool:
    print(error, file=sys.stderr)
    return False


def summary(resolved: ResolvedJob) -> str:
    """What runs, in a few words."""
    if resolved.own_program:
        return f"a program of its own on {resolved.world_size} ranks"
    sharding = resolved.sharding
    return (
        f"{sharding.engine} {sharding.strategy} on {sharding.world_size} ranks, "
        f"{sharding.micro_batches} micro-batches a step"
    )


def render(file: str, name: str | None) -> int:
    """Print the trainer's configuration as the pods get it."""
    found = read_job(file, name)
    _, resolved = found.check()
    if resolved.trainer is None:
        raise UserError(
            f"{found.file}: runs a program of its own: there is no trainer configuration"
        )
    print(dump_config(resolved.trainer), end="")
    return 0
