"""`logging.tensorboard`: event files for TensorBoard, by torch's own writer."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from .record import Kind, Record

if TYPE_CHECKING:
    from torch.utils.tensorboard.writer import SummaryWriter

PREFIXES = {Kind.STEP: "train", Kind.EVALUATION: "eval", Kind.CHECKPOINT: "checkpoint"}
"""What the names of numbers start with, as TensorBoard, W&B and MLflow group them."""


class TensorBoard:
    """One directory for all attempts; numbers past the step that a run resumes from give way."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._writer: SummaryWriter | None = None

    def take(self, record: Record) -> None:
        """See `Tracker.take`."""
        if self._writer is None:
            self._writer = _open(self._directory, record.step)
        if record.kind is Kind.RUN:
            facts = json.dumps(dict(record.values), indent=1)
            self._writer.add_text("run", f"```\n{facts}\n```", record.step)
        elif record.kind in PREFIXES:
            for name, number in record.numbers.items():
                tag = f"{PREFIXES[record.kind]}/{name}"
                self._writer.add_scalar(tag, number, record.step, walltime=record.time)

    def close(self, *, well: bool) -> None:
        """See `Tracker.close`."""
        if self._writer is not None:
            self._writer.close()


def _open(directory: Path, step: int) -> "SummaryWriter":
    from torch.utils.tensorboard.writer import SummaryWriter  # a second to import

    return SummaryWriter(str(directory), purge_step=step + 1, flush_secs=10)
