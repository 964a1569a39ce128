"""Names, places, addresses and ports of one bed, all derived from its name and its slot.

Several beds can live on one machine. Each has a slot, a small number that picks its subnets and
ports and stays with it. Large and lasting things are under the cache folder; sockets, namespaces
and process records are under /run, which a reboot empties together with what they describe.
"""

import os
from dataclasses import dataclass
from pathlib import Path

RUN_ROOT = Path("/run/mfsdp-bed")
DEFAULT_NAME = "default"
SLOTS = 16
KUBERNETES_VERSION = "1.37.2"


def cache_root() -> Path:
    """Return the folder that all checkouts on this machine share."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "mfsdp" / "bed"


@dataclass(frozen=True)
class Node:
    """One node: its own network namespace, kubelet, kube-proxy and container runtime."""

    bed: "Bed"
    index: int  # from 1

    @property
    def name(self) -> str:
        return f"node{self.index}"

    @property
    def address(self) -> str:
        return f"{self.bed.prefix}.0.{10 + self.index}"

    @property
    def pod_range(self) -> str:
        return f"{self.bed.prefix}.{64 + self.index}.0/24"

    @property
    def netns(self) -> Path:
        return self.bed.run / self.name / "netns"

    @property
    def run(self) -> Path:
        return self.bed.run / self.name

    @property
    def state(self) -> Path:
        return self.bed.state / self.name

    @property
    def cgroup(self) -> str:
        return f"{self.bed.cgroup}/{self.name}"

    @property
    def socket(self) -> Path:
        return self.run / "containerd.sock"


@dataclass(frozen=True)
class Bed:
    """One cluster. `slot` picks subnets and ports, `size` is the number of nodes."""

    name: str
    slot: int
    size: int

    @property
    def state(self) -> Path:
        return cache_root() / "instances" / self.name

    @property
    def run(self) -> Path:
        return RUN_ROOT / self.name

    @property
    def cgroup(self) -> str:
        return f"mfsdp-bed-{self.name}"

    @property
    def context(self) -> str:
        """The kubeconfig context; tests refuse every other one."""
        return "mfsdp-bed" if self.name == DEFAULT_NAME else f"mfsdp-bed-{self.name}"

    @property
    def nodes(self) -> list[Node]:
        return [Node(self, index) for index in range(1, self.size + 1)]

    @property
    def prefix(self) -> str:
        """First half of all addresses: nodes .0.0/24, pods .64.0/18, services .128.0/18."""
        return f"10.{220 + self.slot}"

    @property
    def gateway(self) -> str:
        """The machine's address on the bridge: where nodes find API server, DNS and registry."""
        return f"{self.prefix}.0.1"

    @property
    def pod_ranges(self) -> str:
        return f"{self.prefix}.64.0/18"

    @property
    def service_range(self) -> str:
        return f"{self.prefix}.128.0/18"

    @property
    def kubernetes_service(self) -> str:
        return f"{self.prefix}.128.1"

    @property
    def link(self) -> str:
        """The one network link that a bed adds to the machine's own namespace."""
        return f"mfsdp{self.slot}"

    @property
    def hub(self) -> Path:
        """Network namespace of the bridge.

        The bridge is not in the machine's namespace because there a firewall for bridged traffic
        (Docker's, for one) would drop what nodes send each other.
        """
        return self.run / "hub" / "netns"

    @property
    def api_port(self) -> int:
        return 16443 + self.slot

    @property
    def api_local(self) -> str:
        return f"https://127.0.0.1:{self.api_port}"

    @property
    def api_bridge(self) -> str:
        return f"https://{self.gateway}:{self.api_port}"

    @property
    def etcd_port(self) -> int:
        return 12379 + 2 * self.slot

    @property
    def registry_port(self) -> int:
        return 15050 + self.slot

    @property
    def registry(self) -> str:
        """Registry part of image names, the same for a push from here and a pull on a node."""
        return f"localhost:{self.registry_port}"

    @property
    def manager_port(self) -> int:
        return 17257 + self.slot

    @property
    def scheduler_port(self) -> int:
        return 17359 + self.slot

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def binaries(self) -> Path:
        """Links to the binaries in use: what `env` puts on the PATH."""
        return self.state / "bin"

    def log(self, component: str) -> Path:
        return self.state / "logs" / f"{component.replace('/', '-')}.log"
