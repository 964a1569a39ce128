"""A small client of the bed's registry, and images made of nothing but a static binary."""

import gzip
import hashlib
import io
import json
import platform
import tarfile
import urllib.request
from http.client import HTTPResponse
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from .settings import Bed
from .shell import BedError

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _request(url: str, method: str, body: bytes | None = None, kind: str = "") -> HTTPResponse:
    headers = {"Accept": MANIFEST, **({"Content-Type": kind} if kind else {})}
    request = urllib.request.Request(url, data=body, method=method, headers=headers)
    answer: HTTPResponse = _opener.open(request, timeout=60)
    answer.read()
    return answer


def exists(bed: Bed, repository: str, tag: str) -> bool:
    """Return whether the registry has an image."""
    try:
        _request(f"http://{bed.registry}/v2/{repository}/manifests/{tag}", "HEAD")
    except HTTPError as error:
        if error.code == 404:
            return False
        raise BedError(f"the registry {bed.registry} answers {error}") from error
    except OSError as error:
        raise BedError(f"the registry {bed.registry} does not answer: {error}") from error
    return True


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def _push_blob(base: str, blob: bytes) -> None:
    place = _request(f"{base}/blobs/uploads/", "POST").headers["Location"]
    joint = "&" if "?" in place else "?"
    target = f"{place}{joint}digest={_digest(blob)}"
    _request(target, "PUT", blob, "application/octet-stream")


def _layer(files: dict[str, Path]) -> bytes:
    """Return a tar of executables, the same bytes for the same contents."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, source in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = source.stat().st_size, 0o755
            with source.open("rb") as content:
                tar.addfile(entry, content)
    return buffer.getvalue()


def push_binary(bed: Bed, repository: str, program: Path) -> str:
    """Push an image of one static program, its entry point, unless it is there; return its name.

    Its tag is a hash of its layer. It runs as the unprivileged user 65535.
    """
    layer = _layer({program.name: program})
    tag = hashlib.sha256(layer).hexdigest()[:12]
    name = f"{bed.registry}/{repository}:{tag}"
    if exists(bed, repository, tag):
        return name
    packed = gzip.compress(layer, mtime=0)
    config = json.dumps({
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
    }).encode()  # fmt: skip
    base = f"http://{bed.registry}/v2/{repository}"
    for blob in (packed, config):
        _push_blob(base, blob)
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": _digest(config), "size": len(config)},
        "layers": [{"mediaType": LAYER, "digest": _digest(packed), "size": len(packed)}],
    }
    _request(f"{base}/manifests/{tag}", "PUT", json.dumps(manifest).encode(), MANIFEST)
    return name
