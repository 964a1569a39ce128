"""The programs of one node: container runtime, kubelet and kube-proxy, and their configuration."""

import json
import os
from typing import Any

from . import health
from .builds import binary
from .components import Component, started_at
from .prerequisites import CNI_FOLDER
from .settings import Node


def _containerd_settings(node: Node, pause_image: str) -> str:
    return f"""version = 3
root = "{node.state}/containerd"
state = "{node.run}/containerd"
[grpc]
  address = "{node.socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{node.state}/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true  # its socket has one place on the whole machine
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true  # root may lack CAP_SYS_RESOURCE
  netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["{CNI_FOLDER}"]
  conf_dir = "{node.state}/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "{binary("runc", "runc")}"
  SystemdCgroup = false
[plugins."io.containerd.cri.v1.images"]
  discard_unpacked_layers = true  # the registry has them; twice 6 GB is enough
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause_image}"
[plugins."io.containerd.cri.v1.images".registry]
  config_path = "{node.state}/certs.d"
"""


def _cni_settings(node: Node) -> dict[str, Any]:
    # Routed links rather than a bridge: a bridge would need the br_netfilter module for services
    # whose pod is on the same node.
    ipam = {
        "type": "host-local",
        "dataDir": str(node.run / "ipam"),
        "ranges": [[{"subnet": node.pod_range}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugins: list[dict[str, Any]] = [
        {"type": "ptp", "ipMasq": False, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return {"cniVersion": "1.0.0", "name": cni_network(node), "plugins": plugins}


def cni_network(node: Node) -> str:
    """Return the network's name, which CNI's result files begin with."""
    return f"mfsdp-bed-{node.bed.name}-{node.name}"


def _kubelet_settings(node: Node) -> dict[str, Any]:
    pki = node.bed.pki
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{pki}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{pki}/{node.name}.crt",
        "tlsPrivateKeyFile": f"{pki}/{node.name}.key",
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "clusterDNS": [node.bed.gateway],
        "clusterDomain": "cluster.local",
        "resolvConf": f"{node.bed.state}/resolv.conf",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        # All nodes share one disk: none may evict pods because of what others keep there.
        "evictionHard": {
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "memory.available": "100Mi",
        },
        "imageGCHighThresholdPercent": 100,
        "podLogsDir": f"{node.state}/pod-logs",
        "volumePluginDir": f"{node.state}/volume-plugins",
        "nodeStatusUpdateFrequency": "4s",
    }


def write_configuration(node: Node, pause_image: str) -> None:
    """Write every file that the node's programs read."""
    endpoint = f"http://{node.bed.gateway}:{node.bed.registry_port}"
    # Images are named localhost:PORT/..., which inside the node's namespace is somebody else.
    hosts = f'server = "{endpoint}"\n[host."{endpoint}"]\n  capabilities = ["pull", "resolve"]\n'
    files = {
        "containerd.toml": _containerd_settings(node, pause_image),
        "cni/10-bed.conflist": json.dumps(_cni_settings(node), indent=2),
        "kubelet.json": json.dumps(_kubelet_settings(node), indent=2),
        f"certs.d/{node.bed.registry}/hosts.toml": hosts,
        "../resolv.conf": f"nameserver {node.bed.gateway}\n",
    }
    for name, text in files.items():
        path = node.state / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    node.run.mkdir(parents=True, exist_ok=True)


def containerd(node: Node) -> Component:
    program = binary("containerd", "containerd")
    return Component(
        node.bed,
        f"{node.name}/containerd",
        [str(program), "--config", f"{node.state}/containerd.toml"],
        f"{node.cgroup}/system",
        lambda: health.socket_problem(node.socket),
        netns=node.netns,
        # Its own shim first: a distribution's older one does not understand it.
        environment={"PATH": f"{program.parent}:{os.environ['PATH']}"},
    )


def kubelet(node: Node) -> Component:
    command = [
        str(binary("kubernetes", "kubelet")),
        f"--config={node.state}/kubelet.json",
        f"--kubeconfig={node.bed.pki}/{node.name}.conf",
        f"--root-dir={node.state}/kubelet",
        f"--cert-dir={node.state}/kubelet-pki",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
    ]
    component = Component(
        node.bed,
        f"{node.name}/kubelet",
        command,
        f"{node.cgroup}/system",
        lambda: health.node_problem(node.bed, node.name, started_at(component)),
        netns=node.netns,
        startup=120,
    )
    return component


def proxy(node: Node) -> Component:
    health_address = f"{node.address}:10256"
    command = [
        str(binary("kubernetes", "kube-proxy")),
        f"--kubeconfig={node.bed.pki}/proxy.conf",
        f"--hostname-override={node.name}",
        f"--cluster-cidr={node.bed.pod_ranges}",
        f"--healthz-bind-address={health_address}",
        "--proxy-mode=iptables",
        # Connection tracking limits are the machine's: a namespace may not set them.
        "--conntrack-max-per-core=0",
        "--conntrack-min=0",
    ]
    return Component(
        node.bed,
        f"{node.name}/proxy",
        command,
        f"{node.cgroup}/system",
        lambda: health.http_problem(f"http://{health_address}/healthz"),
        netns=node.netns,
    )
