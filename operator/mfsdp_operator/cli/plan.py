"""`mfsdp plan`: what a job needs of each GPU under every engine and strategy, before it runs.

The trainer looks at the model, in a process of its own: this command imports no torch.
"""

import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Final

from pydantic import ValidationError

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.config.data import TokenizerKind
from mfsdp_trainer.plan import ModelFacts, gpus
from mfsdp_trainer.plan.report import report

from .errors import UserError
from .jobfile import read_job
from .paths import Mapped, existing, model_here, moved
from .plan_view import show
from .snapshot import last_line, printable

_INSPECT: Final = (sys.executable, "-m", "mfsdp_trainer.inspection")


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    gpu: str | None = None
    """Its name; None: the one of `memory`, or the default."""
    memory: str | None = None
    mapped: Mapped = ()
    json: bool = False


def plan(file: str, name: str | None, options: Options) -> int:
    """Print the plan of a job. Raises UserError."""
    gpu = _gpu(options)
    found = read_job(file, name)
    job, resolved = found.check()
    if resolved.own_program or resolved.trainer is None:
        raise UserError(
            f"{found.file}: runs a program of its own: what that needs is not known here"
        )
    if find_spec("torch") is None:
        raise UserError(
            "the trainer, which knows the models, is not installed here: from a checkout, "
            "pip install '.[operator,trainer]'"
        )
    config = here(resolved.trainer, options.mapped)
    result = report(config, _look(config), gpu)
    if options.json:
        print(result.model_dump_json(by_alias=True, indent=2))
    else:
        show(job.meta.name or "job", result)
    return 0


def _gpu(options: Options) -> gpus.Gpu:
    """What the job is to fit. Raises UserError."""
    try:
        if options.memory is not None:
            return gpus.of_memory(options.memory)
        return gpus.named(options.gpu or gpus.DEFAULT)
    except ValueError as error:
        flag = "--gpu" if options.memory is None else "--memory"
        raise UserError(f"{flag}: {error}") from None


def here(config: TrainerConfig, mapped: Mapped) -> TrainerConfig:
    """The configuration with the paths that matter on this machine. Raises UserError."""
    model, data = model_here(config.model, mapped), config.data
    tokenizer = data.tokenizer
    # A tokenizer is asked for its size only where the model does not say its own.
    asked = tokenizer.kind is TokenizerKind.HUGGING_FACE and "vocab_size" not in (
        model.config or {}
    )
    if asked and model.path is None and tokenizer.path is not None:
        path = existing("spec.data.tokenizer.path", tokenizer.path, mapped)
        data = moved(data, tokenizer=moved(tokenizer, path=path))
    return moved(config, model=model, data=data)


def _look(config: TrainerConfig) -> ModelFacts:
    """The facts of the configuration's model. Raises UserError in the trainer's words."""
    model = config.model.path or (config.model.config or {}).get("model_type", "the model")
    print(f"computing one micro-batch of {printable(str(model))} without memory …", file=sys.stderr)
    looked = subprocess.run(
        _INSPECT,
        input=config.model_dump_json(by_alias=True),
        capture_output=True,
        text=True,
        check=False,
    )
    if looked.returncode:
        raise UserError(last_line(looked.stderr) or "the trainer ended without a word")
    try:
        return ModelFacts.model_validate_json(looked.stdout)
    except ValidationError:
        raise UserError(
            "the trainer installed here is of another version than this command: "
            "install both from one checkout"
        ) from None
