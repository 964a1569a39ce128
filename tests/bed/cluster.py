"""Bringing a bed up, finding what is wrong with it, and taking it down without a trace.

`up` is the same whether nothing runs, everything runs or something died: every step makes only what
is missing. State lives in the kernel (control groups, namespaces, links) and on disk, never in a
process.
"""

import json
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import builds, cgroups, control_plane, mounts, network, nodes, oci, pki
from .components import Component, await_health, launch, pid_of, stop
from .progress import Progress
from .selection import remembered
from .settings import Bed, Node, cache_root
from .shell import BedError, run, wait_until

SOCKET_LIMIT = 107  # bytes of a Unix socket's path
LONGEST_SOCKET = "kubelet/device-plugins/kubelet.sock"
STEPS = 7


def components(bed: Bed) -> list[Component]:
    """Return every program of the bed, in the order in which they start."""
    plane = [
        control_plane.etcd(bed),
        control_plane.registry(bed),
        control_plane.api_server(bed),
        control_plane.forward(bed),
        control_plane.controller_manager(bed),
        control_plane.scheduler(bed),
        control_plane.coredns(bed),
    ]
    return [*plane, *(component for node in bed.nodes for component in on_node(node))]


def on_node(node: Node) -> list[Component]:
    """Return the programs of one node, in the order in which they start."""
    return [nodes.containerd(node), nodes.kubelet(node), nodes.proxy(node)]


def _start(*wanted: Component) -> None:
    """Start programs side by side and wait until all are healthy."""
    for component in wanted:
        launch(component)
    for component in wanted:
        await_health(component)


def refuse_foreign(bed: Bed) -> None:
    """Raise when a bed of the same name runs from another cache folder."""
    state = remembered(bed.run).get("state", str(bed.state))
    if state != str(bed.state):
        raise BedError(
            f"a bed named {bed.name} is up already, with its files in {state}. End it with "
            f"`XDG_CACHE_HOME={Path(state).parents[3]} python3 tests/bed --name {bed.name} down`, "
            "or choose another --name"
        )


def _refuse_long_paths(bed: Bed) -> None:
    longest = len(f"{bed.state}/node{bed.size}/{LONGEST_SOCKET}")
    if longest > SOCKET_LIMIT:
        raise BedError(
            f"{cache_root()} is too long a path for the kubelet's sockets, by "
            f"{longest - SOCKET_LIMIT} characters: set XDG_CACHE_HOME to a shorter one"
        )


def _link_binaries(bed: Bed) -> None:
    bed.binaries.mkdir(parents=True, exist_ok=True)
    for piece in builds.PIECES:
        for name in piece.binaries:
            fresh = bed.binaries / f".{name}"
            fresh.unlink(missing_ok=True)
            fresh.symlink_to(builds.binary(piece.name, name))
            fresh.replace(bed.binaries / name)


def _make_certificates(bed: Bed) -> None:
    if pki.ensure(bed):  # nothing that runs with the old ones could talk to the rest
        for component in reversed(components(bed)):
            stop(component)


def _start_storage(bed: Bed) -> str:
    """Start what keeps data; return the name of the pause image, which is in the registry then."""
    _start(control_plane.etcd(bed), control_plane.registry(bed))
    return _pause_image(bed)


def _pause_image(bed: Bed) -> str:
    return oci.push_binary(bed, "bed/pause", builds.binary("tools", "pause"))


def _start_control_plane(bed: Bed) -> None:
    control_plane.write_corefile(bed)
    _start(control_plane.api_server(bed), control_plane.forward(bed))
    run(
        builds.binary("kubernetes", "kubectl"), f"--kubeconfig={bed.kubeconfig}",
        "apply", "--server-side", "--force-conflicts", "--filename=-",
        text=control_plane.coredns_rights(),
    )  # fmt: skip
    _start(
        control_plane.controller_manager(bed),
        control_plane.scheduler(bed),
        control_plane.coredns(bed),
    )


def _forget_containers(node: Node) -> bool:
    """Drop all containers from the runtime's records, and return whether there were any.

    Images stay. The cluster's objects are new after a `down`: nobody would ever ask for them again.
    """
    program = str(builds.binary("containerd", "ctr"))
    ctr = [program, f"--address={node.socket}", "--namespace=k8s.io"]
    containers = run(*ctr, "containers", "list", "--quiet").split()
    if containers:
        run(*ctr, "containers", "delete", *containers)
    sandboxes = _sandboxes(run(*ctr, "sandboxes", "list"))
    if sandboxes:
        run(*ctr, "sandboxes", "remove", "--force", *sandboxes)
    return bool(containers or sandboxes)


def _sandboxes(table: str) -> list[str]:
    return [line.split()[0] for line in table.splitlines()[1:] if line.split()]


def _start_runtime(node: Node) -> None:
    """Start the node's container runtime, clean of what an earlier life of the bed left in it."""
    runtime, clean = nodes.containerd(node), node.run / "clean"
    if pid_of(runtime) is None:
        end_node(node)
    _start(runtime)
    if not clean.exists():
        if _forget_containers(node):
            stop(runtime)
            _start(runtime)
        clean.touch()


def start_nodes(wanted: Sequence[Node], pause_image: str) -> None:
    """Start nodes side by side until all are Ready."""
    for node in wanted:
        nodes.write_configuration(node, pause_image)
    with ThreadPoolExecutor() as pool:
        list(pool.map(_start_runtime, wanted))
    for node in wanted:
        network.set_cable(node, plugged=True)
    programs = [program for node in wanted for program in on_node(node)]
    _start(*programs)


def restart_node(node: Node) -> None:
    """Start a node that was ended, and wait until it is Ready."""
    start_nodes([node], _pause_image(node.bed))


def end_node(node: Node) -> None:
    """End everything on a node at once, as a power cut would."""
    network.set_cable(node, plugged=False)  # first: nobody may hear a last word
    cgroups.kill(node.cgroup)
    cgroups.remove(node.cgroup)
    _delete_shim_sockets(node)
    mounts.clear(node.run / "containerd")
    mounts.clear(node.state)
    mounts.delete(node.run / "containerd")
    mounts.delete(node.run / "ipam")


def up(bed: Bed) -> None:
    """Bring everything up, and whatever of it is down."""
    _refuse_long_paths(bed)
    if not (bed.run / "processes").exists():  # the logs of the bed before this one
        shutil.rmtree(bed.state / "logs", ignore_errors=True)
    progress = Progress(STEPS)
    with progress.step("programs built from Go modules"):
        builds.build_missing(progress, [piece.name for piece in builds.PIECES])
        _link_binaries(bed)
    with progress.step("certificates"):
        _make_certificates(bed)
    with progress.step("network of namespaces and links"):
        network.check_kernel()
        network.connect(bed)
    with progress.step("etcd and image registry"):
        pause_image = _start_storage(bed)
    with progress.step("API server, controllers, scheduler, DNS"):
        _start_control_plane(bed)
    with progress.step(f"nodes {', '.join(node.name for node in bed.nodes)}"):
        start_nodes(bed.nodes, pause_image)
    with progress.step("last checks"):
        _check(bed)


def _check(bed: Bed) -> None:
    def problem() -> str | None:
        bad = [f"{c.name}: {why}" for c in components(bed) if (why := c.problem()) is not None]
        return "; ".join(bad) or None

    wait_until(problem, 30, "all programs to be healthy at once")


def down(bed: Bed, purge: bool) -> None:
    """End everything and remove what it left in the kernel; with `purge` also all its files.

    Built programs, images and certificates stay otherwise; the cluster's objects do not.
    """
    refuse_foreign(bed)
    progress = Progress(3)
    with progress.step("ending every process"):
        cgroups.kill(bed.cgroup)
        cgroups.remove(bed.cgroup)
    with progress.step("removing links, namespaces and mounts"):
        if bed.run.exists():  # else the slot, and so the link, may be another bed's by now
            network.disconnect(bed)
        for node in bed.nodes:
            _delete_shim_sockets(node)
        for folder in (bed.state, bed.run):
            mounts.clear(folder)
    with progress.step("removing files"):
        _delete_files(bed, purge)


def _delete_files(bed: Bed, purge: bool) -> None:
    lasting = {"registry", "pki", "kubeconfig", "logs", "bin", "bed.json"}
    if purge:
        mounts.delete(bed.state)
    elif bed.state.exists():
        for path in bed.state.iterdir():
            if path.name.startswith("node") and path.is_dir():
                _delete_node_files(path)
            elif path.name not in lasting:
                mounts.delete(path) if path.is_dir() else path.unlink()
    _delete_strays(bed)
    mounts.delete(bed.run)


def _delete_node_files(folder: Path) -> None:
    """Keep of a node only its images."""
    for path in folder.iterdir():
        if path.name != "containerd":
            mounts.delete(path) if path.is_dir() else path.unlink()


def _delete_strays(bed: Bed) -> None:
    """Remove what kubelets and CNI plugins keep in places that cannot be configured."""
    for link in Path("/var/log/containers").glob("*"):
        if link.is_symlink() and link.readlink().is_relative_to(bed.state):
            link.unlink()
    for result in Path("/var/lib/cni/results").glob("*"):
        if str(bed.run) in result.read_text(errors="replace"):  # the pod's network namespace
            result.unlink()


def _delete_shim_sockets(node: Node) -> None:
    """Remove the sockets of shims that were killed: their place cannot be configured either."""
    for path in (node.run / "containerd").glob("io.containerd.runtime.v2.task/*/*/bootstrap.json"):
        address = str(json.loads(path.read_text()).get("address", ""))
        if address.startswith("unix://"):
            Path(address.removeprefix("unix://")).unlink(missing_ok=True)
