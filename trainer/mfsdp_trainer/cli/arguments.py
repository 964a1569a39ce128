"""The command line of `mfsdp-train`: its flags, and what they say about the configuration."""

import argparse
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from mfsdp_trainer.config import ShardingStrategy
from mfsdp_trainer.config.load import Overrides
from mfsdp_trainer.config.yaml12 import YamlError, parse
from mfsdp_trainer.contract import CONFIG_FILE
from mfsdp_trainer.errors import ConfigError
from mfsdp_trainer.launcher.gang import env_int

PROGRAM: Final = "mfsdp-train"
_FLAGS: Final = {
    "use_megatron_fsdp": "useMegatronFSDP",
    "use_torch_fsdp2": "useTorchFSDP2",
    "data_parallel_sharding_strategy": "dataParallelShardingStrategy",
}


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
        "checkpoint, then end; twice: end now. `mfsdp-train profile` traces a run that goes on.",
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


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Parse flags; dashes count as the underscores of the originals, as torchrun has it.

    Raises ConfigError.
    """
    spelt = []
    for argument in argv:
        name, equals, value = argument.partition("=")
        if name.startswith("--"):
            name = "--" + name[2:].replace("-", "_")
        spelt.append(name + equals + value)
    return _parser().parse_args(spelt)


def overrides_of(arguments: argparse.Namespace) -> Overrides:
    """Fields that flags and environment set over the file. Raises ConfigError."""
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
