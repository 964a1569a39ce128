"""`mfsdp local`: train a job file on this machine, without a cluster and without root.

The same trainer with the same configuration, as one node of nodes x procsPerNode processes. What a
pod has and this machine has not is refused or said.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from mfsdp_operator.api.problems import InvalidSpecError
from mfsdp_operator.api.resolve import resolve
from mfsdp_operator.api.spec import JobSpec
from mfsdp_operator.api.template import trainer_container
from mfsdp_trainer.config import TrainerConfig

from .errors import UserError
from .jobfile import read_job
from .local_run import Run, free_port
from .paths import Mapped, Places, on_this_machine
from .validate import summary

_NOT_HERE: Final = ("initContainers", "volumes", "nodeSelector", "affinity", "tolerations")


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
    pod = spec.template.get("spec") or {}
    left_out = [f"spec.{key}" for key in _NOT_HERE if pod.get(key)]
    trainer = set(trainer_container(spec.template)) - {"name", "env"}
    left_out += [f"the trainer's {key}" for key in sorted(trainer)]
    if left_out:
        yield f"not applied on this machine, from template: {', '.join(left_out)}"


def _environment(spec: JobSpec) -> dict[str, str]:
    """The trainer's variables in template that have a value of their own."""
    entries = trainer_container(spec.template).get("env") or []
    return {entry["name"]: str(entry["value"]) for entry in entries if "value" in entry}
