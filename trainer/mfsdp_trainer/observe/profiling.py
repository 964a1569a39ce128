"""A trace of some steps, when the configuration or somebody inside the pod asks for one.

`mfsdp-train profile` in the pod leaves a request in the run directory, which the first rank of that
node finds before its next step. There is no way to ask over the network: a trace slows a run down
and fills its disk. Opens in https://ui.perfetto.dev; memory in https://pytorch.org/memory_viz.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from mfsdp_trainer.config.logs import ProfileConfig
from mfsdp_trainer.errors import said
from mfsdp_trainer.reporting import Reporter, TraceAnswer

_log = logging.getLogger(__name__)


class Profiler:
    """Traces this rank's steps. Cheap while nobody asks: one look for a file a step."""

    def __init__(self, reporter: Reporter, directory: Path, config: ProfileConfig | None) -> None:
        """`config` is what rank 0 traces unasked."""
        self._reporter = reporter
        self._directory = directory
        self._config = config if reporter.rank == 0 else None
        self._trace: _Trace | None = None

    @contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Surrounds optimizer step `step`, counted from 1."""
        if self._trace is None and (steps := self._asked(step)):
            self._trace = _Trace(step, step + steps - 1)
        yield
        if self._trace is not None and step == self._trace.last:
            self._reporter.answer_trace(self._write(self._trace))
            self._trace = None

    def _asked(self, step: int) -> int:
        """How many steps to trace from this one on; mostly 0."""
        if self._config is not None and self._config.start_step == step:
            return self._config.steps
        return self._reporter.trace_request()

    def _write(self, trace: "_Trace") -> TraceAnswer:
        """The files, or why there are none: a full disk is no reason to stop training."""
        name = f"steps-{trace.first}-{trace.last}-rank-{self._reporter.rank}"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            files = trace.write(self._directory, name)
        except (OSError, RuntimeError) as error:
            _log.warning("the trace of steps %d to %d is lost: %s", *trace.steps, said(error))
            return TraceAnswer(error=said(error))
        for file in files:
            _log.warning("steps %d to %d are traced in %s", *trace.steps, file)
        return TraceAnswer(files=tuple(str(file) for file in files))


class _Trace:
    """One recording, from its making to `write`."""

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last
        self._gpu = torch.cuda.is_available()
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._gpu else [])]
        self._profile = profile(activities=activities, record_shapes=True, profile_memory=True)
        if self._gpu:
            torch.cuda.memory._record_memory_history(max_entries=1_000_000)
        self._profile.start()

    @property
    def steps(self) -> tuple[int, int]:
        return self.first, self.last

    def write(self, directory: Path, name: str) -> list[Path]:
        """End the recording; the files that it left."""
        if self._gpu:
            torch.cuda.synchronize()
        self._profile.stop()
        files = [directory / f"{name}.trace.json.gz"]
        self._profile.export_chrome_trace(str(files[0]))
        if self._gpu:
            files.append(directory / f"{name}.memory.pickle")
            torch.cuda.memory._dump_snapshot(str(files[1]))
            torch.cuda.memory._record_memory_history(enabled=None)
        return files
