"""Processes for tests that need ranks: started once, reused by every test of a file.

`Gang.run(size, function, *arguments)` calls `function(world, *arguments)` on ranks 0 to size - 1,
in one gloo process group that is kept while the size stays the same, and returns their results in
rank order. An exception of a rank comes back as a result too: a test may want to see it on each.

With MFSDP_TEST_DEVICE=cuda (tests/gpu/run.sh) each rank has a GPU, the group speaks NCCL, and tests
of more ranks than there are GPUs are skipped.
"""

import multiprocessing
import os
import pickle
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

ON_GPU = os.environ.get("MFSDP_TEST_DEVICE", "cpu") == "cuda"
DEADLINE = 400.0
"""Seconds that one call may take on a busy machine of two cores."""


@dataclass
class Raised:
    """What a rank raised instead of returning."""

    error: BaseException
    trace: str


class _Rank:
    """The loop of one process."""

    def __init__(self, rank: int, pipe: Connection) -> None:
        self._rank = rank
        self._pipe = pipe
        self._world: Any = None
        self._rendezvous = ""

    def serve(self) -> None:
        while True:
            size, rendezvous, function, arguments = self._pipe.recv()
            try:
                self._join(size, rendezvous)
                answer = function(self._world, *arguments)
            except Exception as error:  # noqa: BLE001 - the boundary: handed back to the test
                answer = Raised(_portable(error), traceback.format_exc())
            self._pipe.send(answer)

    def _join(self, size: int, rendezvous: str) -> None:
        import torch
        import torch.distributed as dist

        from mfsdp_trainer.gloo import use_one_worker
        from mfsdp_trainer.world import World

        if self._rendezvous == rendezvous:
            return
        self._rendezvous = rendezvous
        torch.set_num_threads(1)
        if self._world is not None:
            dist.destroy_process_group()
            self._world = None
        device = torch.device("cuda", self._rank) if ON_GPU else torch.device("cpu")
        if ON_GPU:
            torch.cuda.set_device(device)
        use_one_worker()
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if ON_GPU else "gloo",
            init_method=f"file://{rendezvous}",
            rank=self._rank,
            world_size=size,
            timeout=timedelta(seconds=120),
        )
        self._world = World.joined(device)


def _portable(error: Exception) -> Exception:
    """The exception, or one that tells of it where it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - whatever its own __reduce__ or __init__ raises
        return RuntimeError(repr(error))
    return error


def _main(rank: int, pipe: Connection, environment: dict[str, str]) -> None:
    # The server's is as old as the first gang of the session.
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    _Rank(rank, pipe).serve()


def _require_gpus(ranks: int) -> None:
    if not ON_GPU:
        return
    import pytest
    import torch

    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} GPUs, here are {torch.cuda.device_count()}")


class Gang:
    """Up to `most` processes, started when first needed."""

    def __init__(self, most: int = 4) -> None:
        self._most = most
        self._processes: list[Any] = []
        self._pipes: list[Connection] = []
        self._directory = tempfile.TemporaryDirectory(prefix="gang-")
        self._size = 0
        self._groups = 0

    def run(self, size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call on each rank; every rank's result or `Raised`."""
        assert size <= self._most
        _require_gpus(size)
        self._start(size)
        if size != self._size:
            self._size = size
            self._groups += 1
        rendezvous = str(Path(self._directory.name) / f"store-{self._groups}")
        pipes = self._pipes[:size]
        for pipe in pipes:
            pipe.send((size, rendezvous, function, arguments))
        return [self._answer(rank, pipe, function) for rank, pipe in enumerate(pipes)]

    def results(self, size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """The same where no rank may raise."""
        answers = self.run(size, function, *arguments)
        for rank, answer in enumerate(answers):
            assert not isinstance(answer, Raised), f"rank {rank}: {answer.trace}"
        return answers

    def _answer(self, rank: int, pipe: Connection, function: Callable[..., Any]) -> Any:
        ready = wait([pipe, self._processes[rank].sentinel], timeout=DEADLINE)
        if pipe not in ready:
            state = "ended" if ready else f"gave no answer in {DEADLINE:.0f} s"
            self.stop()
            raise AssertionError(f"rank {rank} {state} in {function.__name__}")
        try:
            return pipe.recv()
        except EOFError:
            raise AssertionError(f"rank {rank} died in {function.__name__}") from None

    def _start(self, size: int) -> None:
        """Have at least so many processes."""
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        # Forked from a process that has imported the trainer and done nothing else: each starts
        # as fresh as a spawned one, without the seconds of CPU that the imports take.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.trainer.imports"])
        for rank in range(len(self._processes), size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_main, args=(rank, theirs, dict(os.environ)), daemon=True
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def stop(self) -> None:
        """End the processes that this gang started; by themselves they take ten seconds to."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(timeout=30)
        self._processes, self._pipes = [], []
