"""Certificates and kubeconfigs of a bed, made with the openssl command.

They last ten years and outlive `down`; one is made again when a name or an address in it changes.
Extensions are complete because Python 3.13 verifies strictly: a CA without key usage is refused.
"""

import base64
import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

from .settings import Bed
from .shell import run

DAYS = "3650"
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


@dataclass(frozen=True)
class Certificate:
    """A certificate to issue: `names` are openssl's DNS:... and IP:... entries."""

    file: str
    common_name: str
    organization: str = ""
    names: tuple[str, ...] = ()
    issuer: str = "ca"

    @property
    def subject(self) -> str:
        organization = f"/O={self.organization}" if self.organization else ""
        return f"{organization}/CN={self.common_name}"


def certificates(bed: Bed) -> list[Certificate]:
    """Return every certificate of a bed."""
    api_names = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc",
                 "kubernetes.default.svc.cluster.local")  # fmt: skip
    api_addresses = ("127.0.0.1", bed.gateway, bed.kubernetes_service)
    nodes = [
        Certificate(node.name, f"system:node:{node.name}", "system:nodes",
                    (f"DNS:{node.name}", f"IP:{node.address}"))
        for node in bed.nodes
    ]  # fmt: skip
    return [
        Certificate("apiserver", "kube-apiserver", "",
                    (*(f"DNS:{n}" for n in api_names), *(f"IP:{a}" for a in api_addresses))),
        Certificate("kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
        Certificate("front-proxy", "front-proxy-client", issuer="front-proxy-ca"),
        Certificate("admin", "mfsdp-bed-admin", "system:masters"),
        Certificate("controller-manager", "system:kube-controller-manager"),
        Certificate("scheduler", "system:kube-scheduler"),
        Certificate("proxy", "system:kube-proxy"),
        Certificate("coredns", "system:coredns"),
        *nodes,
    ]  # fmt: skip


def _make_authority(folder: Path, name: str) -> None:
    run("openssl", "req", "-x509", *KEY, "-days", DAYS, "-subj", f"/CN=mfsdp-bed-{name}",
        "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.crt",
        "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip


def _issue(folder: Path, certificate: Certificate) -> None:
    name = certificate.file
    run("openssl", "req", *KEY, "-subj", certificate.subject,
        "-keyout", folder / f"{name}.key", "-out", folder / f"{name}.csr")  # fmt: skip
    extensions = [
        "basicConstraints=critical,CA:FALSE",
        "keyUsage=critical,digitalSignature",
        "extendedKeyUsage=serverAuth,clientAuth",
        "subjectKeyIdentifier=hash",
        "authorityKeyIdentifier=keyid",
    ]
    if certificate.names:
        extensions.append(f"subjectAltName={','.join(certificate.names)}")
    wanted = folder / f"{name}.ext"
    wanted.write_text("\n".join(extensions))
    issuer = folder / certificate.issuer
    run("openssl", "x509", "-req", "-in", folder / f"{name}.csr", "-days", DAYS,
        "-CA", f"{issuer}.crt", "-CAkey", f"{issuer}.key", "-CAcreateserial",
        "-extfile", wanted, "-out", folder / f"{name}.crt")  # fmt: skip


def _make_token_key(folder: Path) -> None:
    """Make the key pair that signs and checks service account tokens."""
    run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out",
        folder / "tokens.key")  # fmt: skip
    run("openssl", "pkey", "-in", folder / "tokens.key", "-pubout", "-out", folder / "tokens.pub")


def _encoded(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _write_kubeconfig(bed: Bed, folder: Path, user: str, server: str, target: Path) -> None:
    cluster = {
        "server": server,
        "certificate-authority-data": _encoded(folder / "ca.crt"),
    }
    credentials = {
        "client-certificate-data": _encoded(folder / f"{user}.crt"),
        "client-key-data": _encoded(folder / f"{user}.key"),
    }
    context = {"cluster": bed.context, "user": f"{bed.context}-{user}"}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": bed.context,
        "clusters": [{"name": bed.context, "cluster": cluster}],
        "users": [{"name": f"{bed.context}-{user}", "user": credentials}],
        "contexts": [{"name": bed.context, "context": context}],
    }
    fresh = target.with_suffix(".new")
    fresh.touch(mode=0o600)
    fresh.write_text(json.dumps(config, indent=2))  # JSON is YAML, and needs no library here
    fresh.replace(target)


def _ensure_authorities(folder: Path) -> bool:
    """Make authorities and token key unless all are there; return whether they were made."""
    complete = folder / "authorities-complete"  # written last: an interrupted run starts over
    if complete.exists():
        return False
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, mode=0o700)
    for name in ("ca", "front-proxy-ca"):
        _make_authority(folder, name)
    _make_token_key(folder)
    complete.touch()
    return True


def _ensure_issued(folder: Path, certificate: Certificate) -> None:
    stamp = folder / f"{certificate.file}.stamp"
    wanted = hashlib.sha256(repr(certificate).encode()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        _issue(folder, certificate)
        stamp.write_text(wanted)


def ensure(bed: Bed) -> bool:
    """Make what is missing or no longer fits; return whether everything was made anew."""
    made = _ensure_authorities(bed.pki)
    for certificate in certificates(bed):
        _ensure_issued(bed.pki, certificate)
    users = ["controller-manager", "scheduler", "proxy", "coredns", *(n.name for n in bed.nodes)]
    for user in users:
        _write_kubeconfig(bed, bed.pki, user, bed.api_bridge, bed.pki / f"{user}.conf")
    _write_kubeconfig(bed, bed.pki, "admin", bed.api_local, bed.kubeconfig)
    return made
