"""The command line of `mfsdp`. Each subcommand is a module; all end with an exit code.

Wrong usage and wrong files are told in one line each, never as a traceback.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of `mfsdp`; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except UserError as error:
        sys.stdout.flush()
        for line in str(error).splitlines():
            print(f"mfsdp: {line}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader, `head` for instance, has seen enough
        return 0


class _Parser(argparse.ArgumentParser):
    """A parser whose help ends with what takes too long to import for every command."""

    more: Callable[[], str] | None = None

    def format_help(self) -> str:
        """See argparse."""
        if self.more is not None:
            self.epilog = self.more()
        return super().format_help()


def _parser() -> _Parser:
    parser = _Parser(
        prog="mfsdp",
        description="Sharded training jobs (MegatronFSDPJob): check, try out, watch.",
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_validate(commands)
    _add_render(commands)
    _add_plan(commands)
    _add_local(commands)
    _add_watch(commands)
    return parser


type _Commands = "argparse._SubParsersAction[_Parser]"


def _add(commands: _Commands, name: str, text: str) -> _Parser:
    return commands.add_parser(name, help=text, description=f"{text}.", allow_abbrev=False)


def _add_validate(commands: _Commands) -> None:
    text = "Check job files without a cluster, with the API server's own rules"
    parser = _add(commands, "validate", text)
    parser.add_argument("files", nargs="+", metavar="FILE", help="job file; - for standard input")
    parser.set_defaults(run=_validate)


def _add_render(commands: _Commands) -> None:
    text = "Print what the pods get: the trainer's configuration, or a program's environment"
    parser = _add(commands, "render", text)
    _add_job(parser)
    parser.set_defaults(run=_render)


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="job file; - for standard input")
    parser.add_argument("--name", help="which job, if the file has several")


def _add_plan(commands: _Commands) -> None:
    text = "Tell what a job needs of each GPU, under every engine and strategy"
    parser = _add(commands, "plan", text)
    _add_job(parser)
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--gpu", metavar="NAME", help="what it is to fit (default: h100-80gb)")
    size.add_argument("--memory", metavar="SIZE", help="its memory instead, for instance 80Gi")
    _add_map(parser)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    parser.more = _gpus
    parser.set_defaults(run=_plan)


def _gpus() -> str:
    from mfsdp_trainer.plan import gpus

    return f"names of GPUs: {', '.join(gpus.NAMES)}"


def _add_map(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--map",
        type=_mapping,
        action="append",
        default=[],
        metavar="POD=HERE",
        help="a directory of the pod, and the one on this machine that stands for it (repeatable)",
    )


def _add_local(commands: _Commands) -> None:
    text = "Train a job on this machine, without a cluster and without root"
    parser = _add(commands, "local", text)
    _add_job(parser)
    parser.add_argument(
        "--nproc", type=_count, metavar="N", help="processes (default: nodes x procsPerNode)"
    )
    parser.add_argument(
        "--dir",
        type=Path,
        metavar="DIR",
        help="where checkpoints, model and log go (default: runs/NAME); a run in it goes on",
    )
    _add_map(parser)
    parser.add_argument("--prompt", default="def ", help="what the sample at the end starts with")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show the trainer's log, not a progress bar"
    )
    parser.set_defaults(run=_local)


def _add_watch(commands: _Commands) -> None:
    text = "Follow a job on a cluster until it ends; exit code 0 if it completes"
    parser = _add(commands, "watch", text)
    parser.add_argument("name", metavar="NAME", help="name of the MegatronFSDPJob")
    parser.add_argument("-n", "--namespace", help="its namespace (default: the kubectl context's)")
    parser.set_defaults(run=_watch)


def _count(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text!r}")
    return value


def _mapping(text: str) -> tuple[str, Path]:
    pod, equals, here = text.partition("=")
    if not equals or not pod.startswith("/") or not here:
        raise argparse.ArgumentTypeError(f"must be POD=HERE, for instance /data=./text: {text!r}")
    return pod.rstrip("/"), Path(here)


# The subcommands are imported when they run: a client of the API server takes a second to import.


def _validate(arguments: argparse.Namespace) -> int:
    from .validate import validate

    return validate(arguments.files)


def _render(arguments: argparse.Namespace) -> int:
    from .validate import render

    return render(arguments.file, arguments.name)


def _plan(arguments: argparse.Namespace) -> int:
    from .plan import Options, plan

    options = Options(
        gpu=arguments.gpu,
        memory=arguments.memory,
        mapped=tuple(arguments.map),
        json=arguments.output == "json",
    )
    return plan(arguments.file, arguments.name, options)


def _local(arguments: argparse.Namespace) -> int:
    from .local import Options, local

    options = Options(
        nproc=arguments.nproc,
        directory=arguments.dir,
        mapped=tuple(arguments.map),
        prompt=arguments.prompt,
        verbose=arguments.verbose,
    )
    return local(arguments.file, arguments.name, options)


def _watch(arguments: argparse.Namespace) -> int:
    from .watch import watch

    return watch(arguments.name, arguments.namespace)


if __name__ == "__main__":
    sys.exit(main())
