"""What /progress and /metrics answer: rank 0's progress where it is, and each rank's silence."""

from dataclasses import dataclass

from mfsdp_trainer.contract import Progress

from .gang import Gang
from .rundir import RunDir


@dataclass
class View:
    """The run as seen from this node. Written by the supervisor, read by the server's threads."""

    gang: Gang
    run_dir: RunDir
    silent_seconds: dict[int, float] | None = None
    """Seconds since each local rank's last sign of life; replaced, never changed in place."""

    def progress(self) -> Progress:
        """The newest progress, with our own word for which job and attempt it belongs to."""
        known = self.run_dir.progress() or self._from_heartbeats()
        return known.model_copy(update={"job_uid": self.gang.job_uid, "attempt": self.gang.attempt})

    def memory_bytes(self) -> dict[int, float]:
        """Memory of each local rank that has told it."""
        beats = self.run_dir.heartbeats(self.gang.ranks)
        return {rank: b.memory for rank, b in beats.items() if b.memory is not None}

    def _from_heartbeats(self) -> Progress:
        """Nodes without rank 0 know no more than their own ranks' phase and step."""
        beats = self.run_dir.heartbeats(self.gang.ranks).values()
        last = max(beats, key=lambda beat: beat.at, default=None)
        if last is None:
            return Progress()
        return Progress(phase=last.phase, step=max(beat.step or 0 for beat in beats))
