"""How long a run may be silent before it counts as hung: a limit for each thing that it does."""

from typing import Annotated

from pydantic import Field

from .base import ConfigModel

type Limit = Annotated[int, Field(ge=1, le=2_592_000)]


class HangConfig(ConfigModel):
    """Seconds without a sign of life after which an attempt ends as Hang, with the stacks of every
    rank in the log. Each phase has a limit of its own: loading or saving is no hang."""

    start_seconds: Limit = 900
    """From the start of the container until the trainer's libraries are loaded."""
    load_seconds: Limit = 3600
    """Reading and tokenising data, loading the model, restoring a checkpoint."""
    first_step_seconds: Limit = 1800
    """The first step of an attempt, which compiles, tunes and connects."""
    step_seconds: Limit = 900
    """Any other step."""
    evaluate_seconds: Limit = 1800
    """An evaluation."""
    save_seconds: Limit = 1800
    """A checkpoint, as far as training waits for it."""
    export_seconds: Limit = 3600
    """The export of the finished model."""
    collective_seconds: Limit = 1800
    """How long a rank waits for the others in one collective of the training before the attempt
    ends as CollectiveTimeout. While the first step runs it waits at least firstStepSeconds."""
