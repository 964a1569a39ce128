"""The programs of the control plane and their command lines.

They listen only on loopback and on the bridge's address, never on the machine's own network.
"""

import json
from pathlib import Path

from . import health
from .builds import binary
from .components import Component
from .settings import Bed

# Gang scheduling in the default scheduler: beta and off by default in 1.37.
FEATURES = "--feature-gates=GenericWorkload=true"
GROUPS = "--runtime-config=scheduling.k8s.io/v1beta1=true"


def etcd(bed: Bed) -> Component:
    client = f"http://127.0.0.1:{bed.etcd_port}"
    command = [
        str(binary("etcd", "etcd")),
        f"--data-dir={bed.state / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls=http://127.0.0.1:{bed.etcd_port + 1}",
        "--unsafe-no-fsync",  # a test's data need not survive a power cut
    ]
    return Component(
        bed,
        "etcd",
        command,
        f"{bed.cgroup}/system",
        lambda: health.http_problem(f"{client}/health"),
        listens=(("127.0.0.1", bed.etcd_port), ("127.0.0.1", bed.etcd_port + 1)),
    )


def _api_server_flags(bed: Bed) -> list[str]:
    pki = bed.pki
    return [
        f"--etcd-servers=http://127.0.0.1:{bed.etcd_port}",
        f"--bind-address={bed.gateway}",
        f"--advertise-address={bed.gateway}",
        f"--secure-port={bed.api_port}",
        f"--service-cluster-ip-range={bed.service_range}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={pki}/tokens.pub",
        f"--service-account-signing-key-file={pki}/tokens.key",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        # Nodes' names resolve nowhere: dial their addresses.
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={pki}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={pki}/front-proxy.crt",
        f"--proxy-client-key-file={pki}/front-proxy.key",
        # No kube-proxy here: webhooks and aggregated APIs are called at their pods' addresses.
        "--enable-aggregator-routing=true",
        "--allow-privileged=true",
        FEATURES,
        GROUPS,
    ]


def api_server(bed: Bed) -> Component:
    return Component(
        bed,
        "apiserver",
        [str(binary("kubernetes", "kube-apiserver")), *_api_server_flags(bed)],
        f"{bed.cgroup}/system",
        lambda: health.api_problem(bed, bed.api_bridge),
        listens=((bed.gateway, bed.api_port),),
        startup=120,
    )


def forward(bed: Bed) -> Component:
    """Return the forwarder that gives kubectl the API server on 127.0.0.1."""
    near, far = f"127.0.0.1:{bed.api_port}", f"{bed.gateway}:{bed.api_port}"
    return Component(
        bed,
        "forward",
        [str(binary("tools", "forward")), f"-from={near}", f"-to={far}"],
        f"{bed.cgroup}/system",
        lambda: health.api_problem(bed, bed.api_local),
        listens=(("127.0.0.1", bed.api_port),),
    )


def controller_manager(bed: Bed) -> Component:
    pki, port = bed.pki, bed.manager_port
    command = [
        str(binary("kubernetes", "kube-controller-manager")),
        *_client_flags(pki / "controller-manager.conf"),
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--root-ca-file={pki}/ca.crt",
        f"--service-account-private-key-file={pki}/tokens.key",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--use-service-account-credentials",
        "--leader-elect=false",
        # How often a new or returned node is looked at; when one counts as lost stays as it is.
        "--node-monitor-period=1s",
        FEATURES,
    ]
    return _behind_health_port(bed, "controller-manager", command, port)


def scheduler(bed: Bed) -> Component:
    port = bed.scheduler_port
    command = [
        str(binary("kubernetes", "kube-scheduler")),
        *_client_flags(bed.pki / "scheduler.conf"),
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        "--leader-elect=false",
        FEATURES,
    ]
    return _behind_health_port(bed, "scheduler", command, port)


def _client_flags(kubeconfig: Path) -> list[str]:
    uses = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    return [f"--{use}={kubeconfig}" for use in uses]


def _behind_health_port(bed: Bed, name: str, command: list[str], port: int) -> Component:
    return Component(
        bed,
        name,
        command,
        f"{bed.cgroup}/system",
        lambda: health.http_problem(f"https://127.0.0.1:{port}/healthz", health.unverified()),
        listens=(("127.0.0.1", port),),
    )


def registry(bed: Bed) -> Component:
    addresses = [("127.0.0.1", bed.registry_port), (bed.gateway, bed.registry_port)]
    command = [
        str(binary("registry", "registry")),
        f"-folder={bed.state / 'registry'}",
        f"-listen={','.join(f'{host}:{port}' for host, port in addresses)}",
    ]
    return Component(
        bed,
        "registry",
        command,
        f"{bed.cgroup}/system",
        lambda: health.http_problem(f"http://{bed.registry}/v2/"),
        listens=tuple(addresses),
        # Its telemetry would look for a collector.
        environment={"OTEL_TRACES_EXPORTER": "none"},
    )


def write_corefile(bed: Bed) -> Path:
    """Write CoreDNS's configuration: the cluster's names, and a plain no to all others."""
    path = bed.state / "Corefile"
    path.write_text(f"""cluster.local:53 in-addr.arpa:53 ip6.arpa:53 {{
  bind {bed.gateway}
  errors
  health {bed.gateway}:18081
  ready {bed.gateway}:18181
  kubernetes {{
    kubeconfig {bed.pki}/coredns.conf {bed.context}
    pods insecure
    ttl 1
  }}
}}
.:53 {{
  bind {bed.gateway}
  errors
  template ANY ANY {{
    rcode NXDOMAIN
  }}
}}
""")
    return path


def coredns(bed: Bed) -> Component:
    name = "kubernetes.default.svc.cluster.local"

    def problem() -> str | None:
        not_ready = health.http_problem(f"http://{bed.gateway}:18181/ready")
        return not_ready or health.dns_problem(bed.gateway, name)

    return Component(
        bed,
        "coredns",
        [str(binary("coredns", "coredns")), "-conf", str(bed.state / "Corefile")],
        f"{bed.cgroup}/system",
        problem,
        listens=((bed.gateway, 53), (bed.gateway, 18181)),
    )


def coredns_rights() -> str:
    """Return, as JSON for kubectl, what CoreDNS may read."""
    name = {"name": "system:coredns"}
    rules = [
        {"apiGroups": [""], "resources": ["services", "pods", "namespaces"],
         "verbs": ["list", "watch"]},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"],
         "verbs": ["list", "watch"]},
    ]  # fmt: skip
    rbac = "rbac.authorization.k8s.io"
    role = {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": name, "rules": rules}
    binding = {
        "apiVersion": f"{rbac}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": name,
        "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", **name},
        "subjects": [{"apiGroup": rbac, "kind": "User", **name}],
    }
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [role, binding]})
