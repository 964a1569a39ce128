"""The embedded cluster itself: its network serves jobs, and `down` leaves nothing behind.

The network is tested on the bed that all cluster tests share. Ending a bed is tested on one of
another name, with addresses and ports of its own, so that it may run at any time.
"""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import Any
from uuid import uuid4

import pytest

BED = Path(__file__).resolve().parents[1] / "bed"
OTHER = "leaves-nothing"
CGROUPS = Path("/sys/fs/cgroup")


def bed(*words: str, name: str = "default") -> str:
    """Run a command of a bed and return what it printed."""
    done = subprocess.run(
        [sys.executable, str(BED), "--name", name, *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"bed {' '.join(words)}: {done.stderr}"
    return done.stdout


def wait_for[T](look: Callable[[], T | None], seconds: float, what: str) -> T:
    """Return the first thing that `look` finds; fail after `seconds`."""
    end = monotonic() + seconds
    while (found := look()) is None:
        assert monotonic() < end, f"waited {seconds} s for {what}"
        sleep(0.05)
    return found


class Cluster:
    """kubectl on one bed."""

    def __init__(self, name: str) -> None:
        exports = dict(re.findall(r"export (\w+)=(\S+)", bed("env", name=name)))
        self.tool = [f"{exports['PATH'].partition(':')[0]}/kubectl"]
        self.tool.append(f"--kubeconfig={exports['KUBECONFIG']}")
        self.registry = exports["MFSDP_REGISTRY"]

    def kubectl(self, *words: str, text: str | None = None) -> str:
        """Run kubectl and return what it printed."""
        done = subprocess.run(
            [*self.tool, *words], input=text, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"kubectl {' '.join(words)}: {done.stderr}"
        return done.stdout

    def apply(self, namespace: str, *objects: dict[str, Any]) -> None:
        """Apply objects to a namespace."""
        listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        self.kubectl("apply", f"--namespace={namespace}", "--filename=-", text=listed)

    def phase(self, namespace: str, pod: str) -> str:
        """Return a pod's phase."""
        return self.kubectl("get", "pod", pod, "-n", namespace, "-o", "jsonpath={.status.phase}")

    def until_phase(self, namespace: str, pod: str, *phases: str) -> str:
        """Wait until a pod is in one of some phases and return it."""

        def look() -> str | None:
            phase = self.phase(namespace, pod)
            return phase if phase in phases else None

        return wait_for(look, 60, f"pod {pod} to be {' or '.join(phases)}")


def probe(name: str, node: str, image: str, *arguments: str) -> dict[str, Any]:
    """Return a pod of the probe image on a node, by name under the service `peers`."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "probe"}},
        "spec": {
            "hostname": name,
            "subdomain": "peers",
            "nodeSelector": {"kubernetes.io/hostname": node},
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "probe", "image": image, "args": list(arguments)}],
        },
    }


def service(name: str, headless: bool) -> dict[str, Any]:
    """Return a service of all probe pods on port 8080."""
    spec: dict[str, Any] = {"selector": {"app": "probe"}, "ports": [{"port": 8080}]}
    if headless:
        spec |= {"clusterIP": "None", "publishNotReadyAddresses": True}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


@pytest.fixture
def namespace() -> Iterator[tuple[Cluster, str]]:
    """A namespace of its own on the shared bed."""
    cluster, name = Cluster("default"), f"bed-{uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    yield cluster, name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.mark.parametrize("address", ["server.peers:8080", "one-address:8080"])
def test_pods_of_different_nodes_reach_each_other_by_name(
    namespace: tuple[Cluster, str], address: str
) -> None:
    cluster, name = namespace
    image = bed("images", "probe").strip()
    cluster.apply(
        name,
        service("peers", headless=True),
        service("one-address", headless=False),
        probe("server", "node1", image, "serve", ":8080"),
    )
    cluster.until_phase(name, "server", "Running")
    asker = probe("asker", "node2", image, "ask", address, "30s")
    asker["metadata"]["labels"] = {}
    cluster.apply(name, asker)
    phase = cluster.until_phase(name, "asker", "Succeeded", "Failed")
    answer = cluster.kubectl("logs", "asker", "-n", name)
    assert (phase, answer) == ("Succeeded", "server\n")


def test_names_outside_are_refused_at_once(namespace: tuple[Cluster, str]) -> None:
    cluster, name = namespace
    image = bed("images", "probe").strip()
    cluster.apply(name, probe("asker", "node1", image, "ask", "example.invalid:80", "0s"))
    cluster.until_phase(name, "asker", "Failed")
    assert "no such host" in cluster.kubectl("logs", "asker", "-n", name)


def test_a_lost_node_is_noticed_and_comes_back() -> None:
    bed("up", "--nodes", "1", name=OTHER)
    try:
        cluster = Cluster(OTHER)
        image = bed("images", "probe", name=OTHER).strip()
        cluster.apply("default", probe("server", "node1", image, "serve", ":8080"))
        cluster.until_phase("default", "server", "Running")
        bed("node", "stop", "node1", name=OTHER)
        assert processes_of(f"mfsdp-bed-{OTHER}/node1") == {}
        bed("node", "start", "node1", name=OTHER)
        ready = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
        assert cluster.kubectl("get", "node", "node1", "-o", ready) == "True"
        cluster.until_phase("default", "server", "Failed", "Succeeded")  # it died with its node
    finally:
        bed("down", "--purge", name=OTHER)


# What a bed may leave in the kernel: each function returns lines that must be the same afterwards.
# What the shared bed has is left out, as it changes while we look.


def started(pid: int) -> str | None:
    """Return when a process started, or None when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]


def processes_of(cgroup: str) -> dict[int, str]:
    """Return the processes of a control group and below, with the times they started."""
    found: dict[int, str] = {}
    for procs in CGROUPS.glob(f"*/{cgroup}/**/cgroup.procs"):
        for pid in map(int, procs.read_text().split()):
            if (when := started(pid)) is not None:
                found[pid] = when
    return found


def output(*command: str) -> set[str]:
    """Return the lines that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {re.sub(r"\[\d+:\d+\]", "", line) for line in done.stdout.splitlines()}


def mounts() -> set[str]:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    shared = ("/mfsdp-bed/default/", "/bed/instances/default/", "/bed/buildah/")
    return {line.split()[4] for line in lines if not any(path in line for path in shared)}


def cgroups() -> set[str]:
    groups = (str(path) for path in CGROUPS.glob("**/") if "mfsdp-bed-default" not in path.parts)
    return {group for group in groups if "mfsdp" in group}


def links() -> set[str]:
    return {line.split()[0] for line in output("ip", "-br", "link")}


def firewall() -> set[str]:
    return {line for line in output("iptables-save") if not line.startswith("#")}


def dead_sockets() -> set[str]:
    """Return the sockets of container shims on which nobody listens any more."""
    heard = Path("/proc/net/unix").read_text()
    return {str(path) for path in Path("/run/containerd/s").glob("*") if str(path) not in heard}


def kernel() -> dict[str, set[str]]:
    """Return everything that must not change."""
    return {
        "mounts": mounts(),
        "network links": links(),
        "routes": output("ip", "route", "show", "table", "all"),
        "firewall rules": firewall(),
        "control groups": cgroups(),
        "dead sockets of shims": dead_sockets(),
    }


def network_namespaces(pids: dict[int, str]) -> set[str]:
    """Return the network namespaces of processes, apart from the machine's own."""
    found: set[str] = set()
    for pid in pids:
        try:
            found.add(str(Path(f"/proc/{pid}/ns/net").readlink()))
        except OSError:  # ended meanwhile
            continue
    return found - {str(Path("/proc/self/ns/net").readlink())}


def in_use(namespaces: set[str]) -> set[str]:
    """Return which of some network namespaces still exist for a process or a mount."""
    numbered = [int(p.name) for p in Path("/proc").iterdir() if p.name.isdigit()]
    alive = network_namespaces(dict.fromkeys(numbered, ""))
    mounted = {line.split()[3] for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    return namespaces & (alive | mounted)


@pytest.fixture
def before() -> Iterator[dict[str, set[str]]]:
    """The kernel's state without the other bed, which is purged again at the end."""
    bed("down", "--purge", name=OTHER)
    yield kernel()
    bed("down", "--purge", name=OTHER)


def assert_as_before(before: dict[str, set[str]]) -> None:
    """Wait until the kernel has finished tearing down and compare."""

    def difference() -> dict[str, set[str]]:
        now = kernel()
        return {kind: now[kind] ^ lines for kind, lines in before.items() if now[kind] != lines}

    end = monotonic() + 20  # links of an ended namespace vanish a moment after it
    while difference() and monotonic() < end:
        sleep(0.1)
    assert difference() == {}


def test_down_leaves_nothing_behind(before: dict[str, set[str]]) -> None:
    bed("up", "--nodes", "1", name=OTHER)
    cluster = Cluster(OTHER)
    image = bed("images", "probe", name=OTHER).strip()
    cluster.apply("default", probe("server", "node1", image, "serve", ":8080"))
    cluster.until_phase("default", "server", "Running")
    ours = processes_of(f"mfsdp-bed-{OTHER}")
    namespaces = network_namespaces(ours)
    assert len(namespaces) == 2, "the node's and the pod's"
    assert any("probe" in Path(f"/proc/{pid}/cmdline").read_text() for pid in ours)

    bed("down", name=OTHER)

    assert {pid for pid, when in ours.items() if started(pid) == when} == set()
    assert in_use(namespaces) == set()
    assert_as_before(before)


@pytest.mark.parametrize("component", ["apiserver", "node1-kubelet"])
def test_a_killed_start_can_be_taken_down(before: dict[str, set[str]], component: str) -> None:
    command = [sys.executable, str(BED), "--name", OTHER, "up", "--nodes", "1"]
    start = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    record = Path(f"/run/mfsdp-bed/{OTHER}/processes/{component}")
    wait_for(lambda: record.exists() or None, 60, f"{component} to be started")
    start.send_signal(signal.SIGKILL)
    start.wait()
    ours = processes_of(f"mfsdp-bed-{OTHER}")

    bed("down", name=OTHER)

    assert {pid for pid, when in ours.items() if started(pid) == when} == set()
    assert_as_before(before)


def test_a_killed_start_goes_on_where_it_was(before: dict[str, set[str]]) -> None:
    command = [sys.executable, str(BED), "--name", OTHER, "up", "--nodes", "1"]
    start = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    record = Path(f"/run/mfsdp-bed/{OTHER}/processes/apiserver")
    wait_for(lambda: record.exists() or None, 60, "the API server to be started")
    start.send_signal(signal.SIGKILL)
    start.wait()
    pid = record.read_text().split()[0]

    bed("up", name=OTHER)

    assert record.read_text().split()[0] == pid, "what ran already was not started again"
    bed("status", name=OTHER)  # fails unless all is healthy
    bed("down", name=OTHER)
    assert_as_before(before)
