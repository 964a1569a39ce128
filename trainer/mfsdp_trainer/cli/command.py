"""What `mfsdp-train` does: resolve the configuration, run this node, tell why it ended."""

import logging
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from mfsdp_trainer.config import TrainerConfig
from mfsdp_trainer.config.load import dump_config, load_config
from mfsdp_trainer.contract import CONFIG_FILE, Env, Outcome, Reason
from mfsdp_trainer.errors import ConfigError, describe, one_line
from mfsdp_trainer.launcher.gang import Gang, Limits, find_gang, find_limits
from mfsdp_trainer.launcher.outcome import encode, redact
from mfsdp_trainer.launcher.stop import StopRequests
from mfsdp_trainer.launcher.supervisor import launch
from mfsdp_trainer.words import counted

from .arguments import PROGRAM, overrides_of, parse_arguments
from .profile import profile

WORKER: Final = ("-u", "-m", "mfsdp_trainer.worker")
_TERMINATION_LOG: Final = Path("/dev/termination-log")
_log = logging.getLogger(__name__)


def _resolve(arguments: Namespace) -> tuple[TrainerConfig, Gang]:
    file = arguments.config or os.environ.get(Env.CONFIG) or CONFIG_FILE
    config = load_config(file, overrides_of(arguments))
    gang = find_gang(
        nodes=config.nodes,
        procs=config.procs_per_node,
        node_rank=arguments.node_rank,
        master_addr=arguments.master_addr,
        master_port=arguments.master_port,
    )
    return config, gang


def _show(config: TrainerConfig) -> None:
    sharding = config.resolve()
    print(dump_config(config), end="")
    print(
        f"# {sharding.engine} {sharding.strategy} on {counted(sharding.world_size, 'rank')}, ",
        end="",
    )
    batches = counted(sharding.micro_batches, "micro-batch", "micro-batches")
    print(f"{sharding.shard_size} to a shard group, {batches} a step")


def _refuse(error: ConfigError) -> int:
    """Tell all problems, a line each, and the first of them last."""
    outcome = Outcome(reason=Reason.CONFIG_ERROR, message=redact(describe(error)))
    _write_termination_log(encode(outcome))
    first, *others = [redact(one_line(line)) for line in str(error).splitlines()]
    for line in others:
        print(f"{PROGRAM}: {line}", file=sys.stderr)
    more = f" (and {len(others)} more, above)" if others else ""
    _last_line(f"{outcome.reason}: {first}{more}")
    return int(outcome.reason.exit_code)


def _last_line(text: str) -> None:
    print(f"{PROGRAM}: {text}", file=sys.stderr, flush=True)


def _in_words(outcome: Outcome) -> str:
    """Reason, step, rank and message, each where it is known and not said already."""
    at = f" at step {outcome.step}" if outcome.step is not None else ""
    named = outcome.rank is None or outcome.message.startswith("rank ")
    who = "" if named else f" of rank {outcome.rank}"
    return f"{outcome.reason}{at}{who}{': ' if outcome.message else ''}{outcome.message}"


def _write_termination_log(text: str) -> None:
    """The kubelet makes the file; by hand there is none, and none is made in /dev."""
    given = os.environ.get(Env.TERMINATION_LOG)
    path = Path(given) if given else _TERMINATION_LOG
    if not given and not path.exists():
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        _log.warning("cannot write the termination message to %s: %s", path, error.strerror)


def _profile(argv: Sequence[str]) -> int:
    """The other thing that this program does; it leaves no outcome: it is no run."""
    try:
        return profile(argv)
    except ConfigError as error:
        _last_line(str(error))
        return 1


def run(
    argv: Sequence[str],
    stop: StopRequests,
    worker: Sequence[str] = WORKER,
    limits: Limits | None = None,
) -> int:
    """Do what the command line says; returns the exit code.

    `stop` listens already. `worker` (arguments to the Python interpreter) and `limits` are for
    tests alone: no flag and no variable reaches them.
    """
    logging.basicConfig(format=f"{PROGRAM}: %(message)s", level=logging.INFO)
    if argv[:1] == ["profile"]:
        return _profile(argv[1:])
    try:
        arguments = parse_arguments(argv)
        config, gang = _resolve(arguments)
        if arguments.check:
            _show(config)
            return 0
        sharding = config.resolve()
        _log.info(
            "node %d of %d, %s each, %s %s, progress on port %d",
            gang.node_rank,
            gang.nodes,
            counted(gang.procs, "process", "processes"),
            sharding.engine,
            sharding.strategy,
            config.logging.port,
        )
        outcome = launch(config, gang, limits or find_limits(config.hang), worker, stop)
    except ConfigError as error:
        return _refuse(error)
    except Exception as error:  # noqa: BLE001 - logged and recorded
        # A fault of our own, or a full disk: it must reach the kubelet like any other end.
        _log.exception("the launcher broke off")
        outcome = Outcome(reason=Reason.CRASH, message=redact(describe(error)))
    _write_termination_log(encode(outcome))
    _last_line(_in_words(outcome))
    return int(outcome.reason.exit_code)
