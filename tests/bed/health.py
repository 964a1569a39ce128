"""Questions to the bed's programs: each returns None when all is well, else what is wrong."""

import json
import os
import socket
import ssl
import struct
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from .settings import Bed

TIMEOUT = 3.0
# Never through an HTTP proxy: everything asked is on this machine.
_DIRECT = urllib.request.ProxyHandler({})


def _open(url: str, context: ssl.SSLContext | None = None) -> bytes:
    handlers: list[urllib.request.BaseHandler] = [_DIRECT]
    if context is not None:
        handlers.append(urllib.request.HTTPSHandler(context=context))
    with urllib.request.build_opener(*handlers).open(url, timeout=TIMEOUT) as answer:
        return bytes(answer.read())


def http_problem(url: str, context: ssl.SSLContext | None = None) -> str | None:
    """Ask a health URL."""
    try:
        _open(url, context)
    except HTTPError as error:
        body = error.read().decode(errors="replace")
        failed = [line for line in body.splitlines() if line.startswith("[-]")]
        return f"{url} says {error.code}: {'; '.join(failed) or body[:200]}"
    except OSError as error:
        return f"{url}: {error}"
    return None


def unverified() -> ssl.SSLContext:
    """For a health port with a certificate that its program made for itself."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def admin(bed: Bed) -> ssl.SSLContext:
    """Return the TLS settings of the bed's administrator."""
    context = ssl.create_default_context(cafile=str(bed.pki / "ca.crt"))
    context.load_cert_chain(bed.pki / "admin.crt", bed.pki / "admin.key")
    return context


def api_get(bed: Bed, path: str) -> dict[str, Any]:
    """Return the API server's answer for a path; raises OSError when there is none."""
    answer: dict[str, Any] = json.loads(_open(f"{bed.api_local}{path}", admin(bed)))
    return answer


def api_problem(bed: Bed, server: str) -> str | None:
    """Ask the API server whether it is ready."""
    if not (bed.pki / "admin.crt").exists():
        return "its certificates are missing"
    return http_problem(f"{server}/readyz?verbose", admin(bed))


def node_problem(bed: Bed, name: str, since: float) -> str | None:
    """Ask the API server whether a node is Ready, by a report of the kubelet that began at `since`.

    After a power cut the node's last report before it still says Ready for a while.
    """
    try:
        node = api_get(bed, f"/api/v1/nodes/{name}")
    except HTTPError as error:
        return f"it has not registered yet ({error})"
    except OSError as error:
        return f"the API server does not answer: {error}"
    conditions = {c["type"]: c for c in node.get("status", {}).get("conditions", [])}
    ready = conditions.get("Ready")
    if ready is None or datetime.fromisoformat(ready["lastHeartbeatTime"]).timestamp() < int(since):
        return "it has not reported yet"
    if ready["status"] != "True":
        return f"Ready is {ready['status']}: {ready.get('message', '')}"
    if any(t["key"].startswith("node.kubernetes.io/") for t in node["spec"].get("taints", [])):
        return "it still has the taint of a node that was not ready"
    return None


def socket_problem(path: Path) -> str | None:
    """Ask whether anything accepts connections on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(TIMEOUT)
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            return f"{path}: {error}"
    return None


def dns_problem(server: str, name: str) -> str | None:
    """Ask a DNS server for an IPv4 address of a name."""
    labels = b"".join(bytes([len(part)]) + part.encode() for part in name.split("."))
    query = struct.pack(">6H", 4711, 0x0100, 1, 0, 0, 0) + labels + struct.pack(">BHH", 0, 1, 1)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as link:
        link.settimeout(TIMEOUT)
        try:
            link.sendto(query, (server, 53))
            answer = link.recv(512)
        except OSError as error:
            return f"no answer from {server}:53: {error}"
    code, answers = answer[3] & 0xF, struct.unpack(">H", answer[6:8])[0]
    if code or not answers:
        return f"{server}:53 answers {name} with code {code} and {answers} addresses"
    return None
