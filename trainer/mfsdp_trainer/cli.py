"""`mfsdp-train`: run one node of a training run, as PID 1 of a pod or by hand.

    mfsdp-train --config run.yaml --nproc_per_node 2

Exits with a code of `contract.ExitCode`; the last line on stderr says why.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from .config import ShardingStrategy, TrainerConfig
from .config.load import Overrides, dump_config, load_config
from .config.yaml12 import YamlError, parse
from .contract import CONFIG_FILE, Env, Outcome, Reason
from .errors import ConfigError, describe, one_line
from .launcher.gang import Gang, Limits, env_int, find_gang, limits_from_env
from .launcher.outcome import encode, redact
from .launcher.supervisor import launch

PROGRAM: Final = "mfsdp-train"
WORKER: Final = ("-u", "-m", "mfsdp_trainer.worker")
_TERMINATION_LOG: Final = Path("/dev/termination-log")
_FLAGS: Final = {
    "use_megatron_fsdp": "useMegatronFSDP",
    "use_torch_fsdp2": "useTorchFSDP2",
    "data_parallel_sharding_strategy": "dataParallelShardingStrategy",
}
_log = logging.getLogger(__name__)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; see {PROGRAM} --help")


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"must be true or false; got {text!r}")
    return text.lower() == "true"


def _setting(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"must be FIELD=VALUE; got {text!r}")
    try:
        return name, parse(value).value
    except YamlError as error:
        raise argparse.ArgumentTypeError(f"{name}: {error}") from None


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=PROGRAM,
        description="Train one node's part of a run: start its workers, watch them, serve "
        "/progress, /metrics and /healthz, and say why the run ended.",
        epilog="Flags beat the environment, and that beats the file. SIGTERM or Ctrl-C: "
        "checkpoint, then end; twice: end now.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"the run's configuration, YAML or JSON (default: $MFSDP_CONFIG, else {CONFIG_FILE})",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="check the configuration, print it with all defaults resolved, and exit",
    )
    parser.add_argument(
        "--set",
        metavar="FIELD=VALUE",
        type=_setting,
        action="append",
        default=[],
        help="set any field of the configuration, e.g. --set training.steps=10 (repeatable)",
    )
    _add_sharding(parser)
    _add_gang(parser)
    return parser


def _add_sharding(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("sharding (each overrides its field of the file)")
    flag: dict[str, Any] = {"type": _boolean, "nargs": "?", "const": True, "metavar": "true|false"}
    group.add_argument(
        "--use_megatron_fsdp",
        **flag,
        help="shard with Megatron FSDP instead of replicating with DDP; needs GPUs. At most one "
        "of this and --use_torch_fsdp2",
    )
    group.add_argument(
        "--use_torch_fsdp2",
        **flag,
        help="shard with torch FSDP2 (fully_shard). At rest it keeps parameters, gradients and "
        "optimizer state sharded whatever the strategy",
    )
    group.add_argument(
        "--data_parallel_sharding_strategy",
        choices=[str(strategy) for strategy in ShardingStrategy],
        help="what is sharded over the data-parallel ranks: nothing (no_shard, ZeRO-0), optimizer "
        "state (optim, ZeRO-1), gradients too (optim_grads, ZeRO-2), parameters too "
        "(optim_grads_params, ZeRO-3). Default: no_shard without an engine, optim_grads_params "
        "with one",
    )


def _add_gang(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("gang (what the operator sets in a pod)")
    group.add_argument(
        "--nproc_per_node",
        type=int,
        metavar="N",
        help="processes on this node (default: $NPROC_PER_NODE, else procsPerNode of the file)",
    )
    group.add_argument(
        "--nnodes", type=int, metavar="N", help="nodes (default: $NNODES, else nodes of the file)"
    )
    group.add_argument(
        "--node_rank", type=int, metavar="R", help="this node, from 0 (default: $NODE_RANK)"
    )
    group.add_argument(
        "--master_addr",
        metavar="HOST",
        help="host of node rank 0 (default: $MASTER_ADDR, else this machine)",
    )
    group.add_argument(
        "--master_port",
        type=int,
        metavar="PORT",
        help="port on it (default: $MASTER_PORT, else 29500, or any free one with a single node)",
    )


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Flags, with dashes taken for the underscores of the originals: torchrun takes both."""
    spelt = []
    for argument in argv:
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            name = "--" + name[2:].replace("-", "_")
        spelt.append(name + equals + value)
    return _parser().parse_args(spelt)


def _overrides(arguments: argparse.Namespace) -> Overrides:
    overrides: dict[str, object] = dict(arguments.set)
    for flag, name in _FLAGS.items():
        if (value := getattr(arguments, flag)) is not None:
            overrides[name] = value
    gang = (("nodes", "nnodes"), ("procsPerNode", "nproc_per_node"))
    for name, flag in gang:
        given = getattr(arguments, flag)
        given = given if given is not None else env_int(flag.upper())
        if given is not None:
            overrides[name] = given
    return overrides


def _resolve(arguments: argparse.Namespace) -> tuple[TrainerConfig, Gang]:
    file = arguments.config or os.environ.get(Env.CONFIG) or CONFIG_FILE
    config = load_config(file, _overrides(arguments))
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
    print(f"# {sharding.engine} {sharding.strategy} on {sharding.world_size} ranks, ", end="")
    print(f"{sharding.shard_size} to a shard group, {sharding.micro_batches} micro-batches a step")


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


def run(argv: Sequence[str], worker: Sequence[str] = WORKER, limits: Limits | None = None) -> int:
    """Do what the command line says; returns the exit code.

    `worker` (arguments to the Python interpreter) and `limits` are for tests alone: no flag and no
    variable reaches them.
    """
    logging.basicConfig(format=f"{PROGRAM}: %(message)s", level=logging.INFO)
    try:
        arguments = _arguments(argv)
        config, gang = _resolve(arguments)
        if arguments.check:
            _show(config)
            return 0
        sharding = config.resolve()
        _log.info(
            "node %d of %d, %d processes each, %s %s, progress on port %d",
            gang.node_rank,
            gang.nodes,
            gang.procs,
            sharding.engine,
            sharding.strategy,
            config.logging.port,
        )
        outcome = launch(config, gang, limits or limits_from_env(), worker)
    except ConfigError as error:
        return _refuse(error)
    _write_termination_log(encode(outcome))
    at = f" at step {outcome.step}" if outcome.step is not None else ""
    _last_line(f"{outcome.reason}{at}{': ' if outcome.message else ''}{outcome.message}")
    return int(outcome.reason.exit_code)


def main() -> NoReturn:
    """Entry point of `mfsdp-train`."""
    sys.exit(run(sys.argv[1:]))
