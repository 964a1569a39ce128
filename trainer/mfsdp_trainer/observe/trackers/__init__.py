"""Where the numbers of a run go beside its log: JSON lines, TensorBoard, W&B, MLflow.

    Meter -> Journal -> one thread and one bounded queue a tracker -> Tracker

Rank 0 alone has trackers. None of them can stop a run or hold up a step: what a tracker raises is
told once, what it cannot keep up with is left out.
"""

from .journal import Journal
from .record import Kind, Record, Tracker

__all__ = ["Journal", "Kind", "Record", "Tracker"]
