"""`mfsdp local`: train a job file on this machine, without a cluster and without root.

The same trainer with the same configuration, as one node of nodes x procsPerNode processes. What a
pod has and this machine has not is refused or said.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mfsdp_operator.api.problems import InvalidSpecError
from mfsdp_operator.api.resolve import resolve
from mfsdp_operator.api.spec import JobSpec
from mfsdp_operator.api.template import trainer_container
from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.contract import CONTAINER_NAME

from .errors import UserError
from .jobfile import read_job
from .local_run import Run, free_port
from .paths import Mapped, Places, on_this_machine
from .validate import summary


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    nproc: int | None = None
    directory: Path | None = None
    mapped: Mapped = ()
    """A directory of the pod, and the one here that stands for it."""
    prompt: str = "def "
    verbose: bool = False


def local(file: str, name: str | None, options: Options) -> int:
    """Train a job to its end; the trainer's exit code. Raises UserError."""
    found = read_job(file, name)
    job, resolved = found.check()
    if resolved.own_program:
        raise UserError(
            f"{found.file}: template gives the trainer a command of its own, which needs its image:"
            " run that program yourself"
        )
    if find_spec("torch") is None:
        raise UserError(
            "the trainer is not installed here: from a checkout, pip install '.[operator,trainer]'"
        )
    directory = (options.directory or Path("runs") / job.meta.name).absolute()
    config = here(job.spec, directory, options)
    for note in _notes(job.spec, found.file):
        print(f"note: {note}")
    print(f"{job.meta.name}: {summary(resolve(_one_node(job.spec, options.nproc)))}")
    run = Run(job.meta.name, directory, config, _environment(job.spec))
    code = run.train(verbose=options.verbose)
    if code == 0:
        run.tell_results(options.prompt)
    return code


def here(spec: JobSpec, directory: Path, options: Options) -> TrainerConfig:
    """The trainer's configuration on this machine. Raises UserError, naming what is missing."""
    try:
        resolved = resolve(_one_node(spec, options.nproc)).trainer
    except InvalidSpecError as error:
        raise UserError("\n".join(error.problems)) from None
    assert resolved is not None, "only a job with a program of its own has none"
    _check_gpus(resolved)
    places = Places(options.mapped, resolved.checkpoint.path, str(directory / "checkpoints"))
    return on_this_machine(resolved, places, free_port())


def _one_node(spec: JobSpec, nproc: int | None) -> JobSpec:
    """The same gang in one place: all its processes on one node, which is this machine."""
    world_size = nproc or spec.nodes * spec.resolved_procs_per_node
    gpus = world_size if spec.gpus_per_node else 0
    changed = {"nodes": 1, "procs_per_node": world_size, "gpus_per_node": gpus}
    return spec.model_copy(update=changed)


def _check_gpus(config: TrainerConfig) -> None:
    present = len(list(Path("/dev").glob("nvidia[0-9]*")))
    if config.gpus_per_node > present:
        raise UserError(
            f"spec.gpusPerNode: the job's {config.gpus_per_node} processes need a GPU each, and "
            f"this machine has {present}: "
            + (f"try --nproc {present}, or " if present else "")
            + "set gpusPerNode to 0 to train on the CPU"
        )


def _notes(spec: JobSpec, file: str) -> Iterator[str]:
    """What of the job has no meaning here."""
    if spec.suspend:
        yield f"{file} says suspend: true; that is for the cluster, the job trains here"
    if left_out := tuple(_left_out(spec.template)):
        yield f"not applied on this machine, from template: {', '.join(left_out)}"
    for entry in _env(spec):
        if "valueFrom" in entry:
            # The trainer and its workers get this process's environment.
            here = (
                "is your shell's"
                if entry["name"] in os.environ
                else "is unset: set it in your shell"
            )
            yield f"{entry['name']} has its value from the cluster (valueFrom); here it {here}"


def _left_out(template: Mapping[str, Any]) -> Iterator[str]:
    """All that a template says, but what is null or false, and the trainer's variables."""
    for part in ("metadata", "spec"):
        for key, value in (template.get(part) or {}).items():
            if value and key != "containers":
                yield f"{part}.{key}"
    for container in (template.get("spec") or {}).get("containers") or ():
        if container["name"] != CONTAINER_NAME:
            yield f"the container {container['name']}"
    for key in sorted(set(trainer_container(template)) - {"name", "env"}):
        yield f"the trainer's {key}"


def _env(spec: JobSpec) -> list[dict[str, Any]]:
    env: list[dict[str, Any]] = trainer_container(spec.template).get("env") or []
    return env


def _environment(spec: JobSpec) -> dict[str, str]:
    """The trainer's variables in template that have a value of their own."""
    return {entry["name"]: str(entry["value"]) for entry in _env(spec) if "value" in entry}
