"""The bed's command line: ``python3 tests/bed COMMAND``. Results go to standard output."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from . import builds, cluster, images, network, selection, status
from .components import Component, launch, pid_of, stop
from .components import await_health as wait_for
from .locks import locked
from .prerequisites import RUNTIME_PACKAGES, install_packages, require_root
from .settings import DEFAULT_NAME, RUN_ROOT, Bed, Node
from .shell import BedError

Command = Callable[[argparse.Namespace], int]


def _lock(name: str) -> Path:
    return RUN_ROOT / f"{name}.lock"


def _existing(name: str) -> Bed:
    bed = selection.find(name)
    if bed is None:
        raise BedError(f"there is no bed named {name}: `python3 tests/bed --name {name} up` first")
    cluster.refuse_foreign(bed)
    return bed


def _running(name: str) -> Bed:
    bed = _existing(name)
    if not bed.run.exists():
        raise BedError(f"bed {name} is down: `python3 tests/bed --name {name} up` first")
    return bed


def _up(args: argparse.Namespace) -> int:
    install_packages(RUNTIME_PACKAGES)
    with locked(RUN_ROOT / "slots.lock", "another bed's start"):
        bed = selection.choose(args.name, args.nodes)
        cluster.refuse_foreign(bed)
        selection.claim(bed)
    cluster.up(bed)
    print(f"up: KUBECONFIG={bed.kubeconfig} (context {bed.context}), registry {bed.registry}")
    return 0


def _down(args: argparse.Namespace) -> int:
    bed = selection.find(args.name) or Bed(args.name, 0, 1)
    cluster.down(bed, args.purge)
    _lock(args.name).unlink(missing_ok=True)  # who waits for it sees that, and makes its own
    return 0


def _status(args: argparse.Namespace) -> int:
    healthy = status.show(_existing(args.name))
    return 0 if healthy else 1


def _env(args: argparse.Namespace) -> int:
    bed = _existing(args.name)
    print(f"export KUBECONFIG={bed.kubeconfig}")
    print(f'export PATH={bed.binaries}:"$PATH"')
    print(f"export MFSDP_REGISTRY={bed.registry}")
    return 0


def _which(args: argparse.Namespace) -> int:
    path = builds.find(args.program)
    if path is None:
        raise BedError(f"{args.program} is not built yet: `python3 tests/bed up` builds it")
    print(path)
    return 0


def _images(args: argparse.Namespace) -> int:
    bed = _running(args.name)
    if args.targets == ["probe"]:
        print(images.push_probe(bed))
        return 0
    for name in images.build(bed, args.targets, args.file, args.context):
        print(name)
    return 0


def _pick_node(bed: Bed, name: str) -> Node:
    for node in bed.nodes:
        if node.name == name:
            return node
    raise BedError(f"no node {name}; there are: {', '.join(n.name for n in bed.nodes)}")


def _node(args: argparse.Namespace) -> int:
    bed = _running(args.name)
    node = _pick_node(bed, args.node)
    if args.action == "stop":
        cluster.end_node(node)
    elif args.action == "start":
        cluster.restart_node(node)
    else:
        network.set_cable(node, plugged=args.action == "join")
    return 0


def _pick_component(bed: Bed, name: str) -> Component:
    known = {component.name: component for component in cluster.components(bed)}
    if name not in known:
        raise BedError(f"no component {name}; there are: {', '.join(known)}")
    return known[name]


def _component(args: argparse.Namespace) -> int:
    component = _pick_component(_running(args.name), args.component)
    if args.action == "stop":
        stop(component)
    else:
        launch(component)
        wait_for(component)
    return 0


def _logs(args: argparse.Namespace) -> int:
    component = _pick_component(_existing(args.name), args.component)
    if pid_of(component) is None:
        print(f"({component.name} does not run now)", file=sys.stderr)
    follow = ["-F"] if args.follow else []
    return subprocess.call(["tail", "-n", str(args.lines), *follow, str(component.log)])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 tests/bed", description=cluster.__doc__)
    name = os.environ.get("MFSDP_BED_NAME", DEFAULT_NAME)
    parser.add_argument("--name", default=name, help=f"which bed (default: {name})")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, action: Command, help: str, locks: bool = True) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help, description=help)
        command.set_defaults(call=action, locks=locks, command=name)
        return command

    up = add("up", _up, "bring the cluster up, or repair it")
    up.add_argument("--nodes", type=int, help="how many nodes (default: those that are up, else 2)")
    down = add("down", _down, "end everything; images and built programs stay")
    down.add_argument("--purge", action="store_true", help="remove this bed's files too")
    add("status", _status, "show every component; exit code 0 when all are healthy", locks=False)
    add("env", _env, "print shell exports to use the cluster by hand", locks=False)
    which = add("which", _which, "print the path of a built program, such as helm", locks=False)
    which.add_argument("program", metavar="PROGRAM")
    _add_images(add("images", _images, "build images and push them; print their names", False))
    node = add("node", _node, "stop/start: power off and on; cut/join: pull and plug the cable")
    node.add_argument("action", choices=["stop", "start", "cut", "join"])
    node.add_argument("node", metavar="NODE", help="node1, node2, …")
    component = add("component", _component, "stop or start one program")
    component.add_argument("action", choices=["stop", "start"])
    component.add_argument("component", metavar="COMPONENT", help="a name that `status` shows")
    logs = add("logs", _logs, "show a component's log", locks=False)
    logs.add_argument("component", metavar="COMPONENT", help="a name that `status` shows")
    logs.add_argument("-f", "--follow", action="store_true")
    logs.add_argument("-n", "--lines", type=int, default=100)
    return parser


def _add_images(command: argparse.ArgumentParser) -> None:
    command.add_argument("targets", nargs="*", default=["operator", "trainer"],
                         help="stages of the Dockerfile, or `probe`: a tiny image for tests"
                         " (default: operator trainer)")  # fmt: skip
    command.add_argument("--file", type=Path, help="Dockerfile (default: CONTEXT/Dockerfile)")
    command.add_argument("--context", type=Path, default=images.REPOSITORY,
                         help="folder that it copies from (default: the repository)")  # fmt: skip


def _on_terminate(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # ends what runs below us on the way out, as Ctrl-C does


def main(argv: Sequence[str]) -> int:
    """Run one command; return the exit code."""
    signal.signal(signal.SIGTERM, _on_terminate)
    args = _parser().parse_args(argv)
    try:
        selection.check_name(args.name)
        if not args.locks:
            return int(args.call(args))
        require_root(f"python3 tests/bed {args.command}")
        with locked(_lock(args.name), f"another command on bed {args.name}"):
            return int(args.call(args))
    except BrokenPipeError:  # `status | head`
        return 141
    except (BedError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; run `up` to go on or `down` to clean up", file=sys.stderr)
        return 130
