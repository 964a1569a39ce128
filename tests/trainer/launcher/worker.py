"""A worker that ends in the way it is told to: python worker.py SCENARIO.

It speaks to PID 1 through the real Reporter, as the trainer does, and comes to its end by real
means: signals, exhausted memory, collectives that time out.
"""

import ctypes
import datetime
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

from mfsdp_trainer import errors
from mfsdp_trainer.contract import Phase, Reason
from mfsdp_trainer.reporting import RUN_DIR_ENV, Reporter

FOREVER = 3600.0


def wait_for_ever() -> None:
    threading.Event().wait(FOREVER)


def train(reporter: Reporter, steps: int | None = None) -> None:
    """Steps of a few milliseconds, until told to stop."""
    reporter.phase(Phase.TRAINING)
    tick = threading.Event()
    step = 0
    while steps is None or step < steps:
        tick.wait(0.01)
        step += 1
        reporter.heartbeat(step)
        reporter.progress(step=step, total_steps=steps or 0, loss=1.0 / step)
        if reporter.stop_requested:
            reporter.progress(checkpoint_step=step)
            raise errors.PreemptedError(f"a checkpoint of step {step} is published")
    reporter.outcome(Reason.DONE)


def done(reporter: Reporter) -> None:
    train(reporter, steps=5)


def fail_second(reporter: Reporter) -> None:
    """Rank 1 raises the error named in the environment, rank 0 trains on."""
    if reporter.rank == 1:
        reporter.heartbeat(7)
        raise getattr(errors, os.environ["TEST_ERROR"])(os.environ["TEST_MESSAGE"])
    train(reporter)


def crash(reporter: Reporter) -> None:
    train(reporter, steps=3) if reporter.rank else {}["no such key"]


def exit_code(_reporter: Reporter) -> None:
    os._exit(3)


def exit_silently(_reporter: Reporter) -> None:
    os._exit(0)


def abort(reporter: Reporter) -> None:
    os.abort() if reporter.rank == 1 else wait_for_ever()


def watchdog(reporter: Reporter) -> None:
    """What NCCL's watchdog leaves at a timeout: a flight record, and SIGABRT."""
    dump = os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(reporter.rank)
    Path(dump).write_bytes(b"trace")
    os.abort()


def eat_memory(reporter: Reporter) -> None:
    if reporter.rank == 0:
        wait_for_ever()
    blocks = []
    while True:
        blocks.append(bytearray(os.urandom(1 << 20)) * 16)


def killed_from_outside(_reporter: Reporter) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _gloo(reporter: Reporter, timeout: float) -> None:
    """Meet the others as the trainer's workers do."""
    reporter.phase(Phase.RENDEZVOUS)
    import torch.distributed as dist

    from mfsdp_trainer.rendezvous import meet

    dist.init_process_group(
        "gloo",
        store=meet(),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=datetime.timedelta(seconds=timeout),
    )


def meet_and_train(reporter: Reporter) -> None:
    import torch.distributed as dist

    _gloo(reporter, 60)
    dist.barrier()
    train(reporter, steps=3)
    dist.barrier()
    dist.destroy_process_group()


def collective_timeout(reporter: Reporter) -> None:
    """Rank 1 does not come to a collective."""
    import torch
    import torch.distributed as dist

    _gloo(reporter, 3)
    if reporter.rank == 1:
        wait_for_ever()
    dist.all_reduce(torch.ones(1))


def lose_peer(reporter: Reporter) -> None:
    """The last rank is killed while all others wait for it in a collective."""
    import torch
    import torch.distributed as dist

    _gloo(reporter, 60)
    dist.barrier()
    if reporter.rank == dist.get_world_size() - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(1))


def hang(reporter: Reporter) -> None:
    """Stuck in C code, where no Python handler runs."""
    reporter.phase(Phase.TRAINING)
    reporter.heartbeat(4)
    ctypes.CDLL(None).pause()


def load(reporter: Reporter) -> None:
    reporter.phase(Phase.LOADING)
    wait_for_ever()


def deaf(reporter: Reporter) -> None:
    """Trains, and never looks whether it should stop."""
    reporter.phase(Phase.TRAINING)
    reporter.heartbeat(1)
    reporter.progress(step=1)
    wait_for_ever()


def burn(reporter: Reporter) -> None:
    """Every core busy, as in a real step on the CPU."""
    reporter.phase(Phase.TRAINING)
    reporter.heartbeat(1)
    reporter.progress(step=1)
    while True:
        pass


def leave_orphans(reporter: Reporter) -> None:
    """Children whose parent is gone when they end, which makes PID 1 their parent."""
    for _ in range(3):
        subprocess.run(["sh", "-c", "sh -c 'exec true' & exit 0"], check=True)
    train(reporter)


def show(reporter: Reporter) -> None:
    """Tell what a worker is given, then end well."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MFSDP_CONFIG", RUN_DIR_ENV)
    print(" ".join(f"{name}={os.environ[name]}" for name in names))
    print(Path(os.environ["MFSDP_CONFIG"]).read_text(encoding="utf-8"))
    reporter.outcome(Reason.DONE)


SCENARIOS: dict[str, Callable[[Reporter], None]] = {
    scenario.__name__: scenario
    for scenario in (
        abort,
        burn,
        collective_timeout,
        crash,
        deaf,
        done,
        eat_memory,
        exit_code,
        exit_silently,
        fail_second,
        hang,
        killed_from_outside,
        leave_orphans,
        load,
        lose_peer,
        meet_and_train,
        show,
        train,
        watchdog,
    )
}


def main() -> int:
    reporter = Reporter.from_env()
    try:
        SCENARIOS[sys.argv[1]](reporter)
    except errors.TrainerError as error:
        return reporter.failed(error)
    except Exception as error:  # noqa: BLE001 - as the trainer's own worker does
        traceback.print_exc()
        return reporter.failed(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
