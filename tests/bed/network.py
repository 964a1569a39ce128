"""Network of a bed: a namespace per node, all on one bridge, which sits in a namespace of its own.

The machine's own namespace gets one link, with the address where nodes find the control plane, and
a route per node to its pods (the API server calls webhooks there). Nothing is forwarded to the
outside.
"""

import json
import os
from pathlib import Path

from .settings import Bed, Node
from .shell import BedError, run

PREFIX_LENGTH = 24


def _make_namespace(path: Path) -> None:
    """Make a network namespace that lasts, as a mount on `path`."""
    if not os.path.ismount(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        run("unshare", f"--net={path}", "true")
    run("ip", "link", "set", "lo", "up", netns=path)


def _links(netns: Path | None) -> set[str]:
    shown = json.loads(run("ip", "-j", "link", "show", netns=netns) or "[]")
    return {link["ifname"] for link in shown}


def _address(link: str, address: str, netns: Path | None) -> None:
    run("ip", "address", "replace", f"{address}/{PREFIX_LENGTH}", "dev", link, netns=netns)
    run("ip", "link", "set", link, "up", netns=netns)


def _join(bed: Bed, port: str) -> None:
    run("ip", "link", "set", port, "master", "bridge", "up", netns=bed.hub)


def _make_hub(bed: Bed) -> None:
    _make_namespace(bed.hub)
    if "bridge" not in _links(bed.hub):
        run("ip", "link", "add", "bridge", "type", "bridge", netns=bed.hub)
    run("ip", "link", "set", "bridge", "up", netns=bed.hub)
    if bed.link not in _links(None):
        peer = ("peer", "name", "host", "netns", bed.hub)
        run("ip", "link", "add", bed.link, "type", "veth", *peer)
    _address(bed.link, bed.gateway, None)
    _join(bed, "host")


def _make_node(node: Node) -> None:
    _make_namespace(node.netns)
    if "eth0" not in _links(node.netns):
        peer = ("peer", "name", "eth0", "netns", node.netns)
        run("ip", "link", "add", node.name, "type", "veth", *peer, netns=node.bed.hub)
    _address("eth0", node.address, node.netns)
    _join(node.bed, node.name)
    run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward", netns=node.netns)
    # A service's address needs some route before kube-proxy's rules rewrite it; any will do.
    run("ip", "route", "replace", node.bed.service_range, "via", node.bed.gateway, netns=node.netns)
    # An answer at once for whatever else a pod tries to reach, rather than a hang.
    run("ip", "route", "replace", "unreachable", "default", "metric", "4096", netns=node.netns)


def _route_pods(bed: Bed) -> None:
    for target in bed.nodes:
        run("ip", "route", "replace", target.pod_range, "via", target.address)
        for node in bed.nodes:
            if node != target:
                run("ip", "route", "replace", target.pod_range, "via", target.address,
                    netns=node.netns)  # fmt: skip


def connect(bed: Bed) -> None:
    """Make whatever of the network is missing."""
    _make_hub(bed)
    for node in bed.nodes:
        _make_node(node)
    _route_pods(bed)


def set_cable(node: Node, plugged: bool) -> None:
    """Plug or pull a node's cable: everything on it runs on, nothing gets in or out."""
    run("ip", "link", "set", node.name, "up" if plugged else "down", netns=node.bed.hub)


def disconnect(bed: Bed) -> None:
    """Remove the link of the machine's own namespace, and with it its routes.

    The other namespaces end with their last process and mount.
    """
    if bed.link in _links(None):
        run("ip", "link", "delete", bed.link)


def taken_prefixes() -> set[str]:
    """Return the first two numbers of each 10.x network that this machine routes."""
    routes = json.loads(run("ip", "-j", "-4", "route", "show") or "[]")
    targets = [str(route.get("dst", "")) for route in routes]
    return {".".join(dst.split(".")[:2]) for dst in targets if dst.startswith("10.")}


def listener(address: str, port: int) -> str | None:
    """Return who listens on a TCP port of an address (or on all addresses), or None."""
    shown = run("ss", "-Hltnp", f"sport = :{port}")
    for line in shown.splitlines():
        local, owner = line.split()[3], line.split()[5:]
        if local.rsplit(":", 1)[0] in {address, "0.0.0.0", "*", "[::]"}:
            return " ".join(owner) or "a process of another user"
    return None


def check_kernel() -> None:
    """Raise early when the kernel lacks what the network is made of."""
    links = "ip link add br9 type bridge && ip link add ve9 type veth"
    try:
        run("unshare", "--net", "sh", "-c", links)
    except BedError as error:
        raise BedError(f"this kernel cannot make bridge and veth links: {error}") from error
